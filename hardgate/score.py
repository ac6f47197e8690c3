"""Learning without back-propagation into the gate: the score term of Theorem 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hardgate.functional import widen
from hardgate.records import HOW, Call, pay
from hardgate.units._unit import Unit

__all__ = ["clear_scores", "score_loss"]

_HOW = f"Write\n    losses = F.cross_entropy(model(x), y, reduction='none')\n    {HOW}"


def score_loss(
    model: nn.Module, losses: Tensor | Sequence[Tensor], *, update_baselines: bool = True
) -> Tensor:
    """The term whose gradient at `a` is (h - σ(a))(L - L̄_i), averaged over the losses.

    Its value is zero: it changes gradients, not the loss you print. It charges every sampled
    call since the last `score_loss` of every unit with `needs_loss` in `model`, then forgets
    them; each baseline is read before this batch updates it (Corollary 1). It has a first
    derivative only.

    Args:
        model: any module that contains such units (or is one).
        losses: one loss per example, *not* averaged: its shape is that of the leading
            dimensions of `a`, or of the first few (`[B]` with `a` of `[B, T, D]` charges each
            example's loss to all its T steps). A list charges the k-th loss to the k-th call
            since the last `score_loss`: per-step losses, or returns to go.
        update_baselines: False only reads the baselines (needed under `torch.func`).

    Returns:
        a scalar to add to the loss.

    Example:
        >>> from hardgate import StochasticBinary
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 3), StochasticBinary(), nn.Linear(3, 1))
        >>> losses = model(torch.randn(8, 4)).square().squeeze(-1)  # [8]
        >>> (losses.mean() + score_loss(model, losses)).backward()
        >>> bool(model[0].weight.grad.abs().sum() > 0)
        True
    """
    units = _scored_units(model)
    sampling = any(u.training or u.eval_mode == "sample" for u in units)
    if sampling and not any(u.records.called for u in units):
        raise RuntimeError(
            "score_loss found no forward pass to charge: no unit with needs_loss in this model was "
            "called since the last score_loss. Call model(x) first, then score_loss once, on the "
            f"same model object and outside of any checkpoint:\n    {HOW}"
        )
    # All are taken first: whatever is refused below, nothing is left to charge to later losses.
    taken = [(unit, unit.records.take()) for unit in units]
    charged = [(unit, calls, _charge(losses, calls)) for unit, calls in taken if calls]
    total = torch.zeros((), device=losses.device if isinstance(losses, Tensor) else None)
    for unit, calls, aligned in charged:
        term = pay(calls, _unit_term(unit, calls, aligned, update_baselines))
        total = total + term.to(total.device)
    return total


def clear_scores(model: nn.Module) -> None:
    """Drop the recorded calls of every unit with `needs_loss`, as after an interrupted step."""
    for unit in _scored_units(model):
        unit.records.clear()


def _scored_units(model: nn.Module) -> list[Unit]:
    return [m for m in model.modules() if isinstance(m, Unit) and m.needs_loss]


def _unit_term(unit: Unit, calls: list[Call], losses: list[Tensor], update: bool) -> Tensor:
    if update and unit.baseline is not None and any(call.transformed for call in calls):
        raise RuntimeError(
            "under torch.func the moving averages of a baseline cannot be updated. Write "
            "score_loss(model, losses, update_baselines=False), or StochasticBinary(None)."
        )
    scores = [torch.atleast_1d(widen(h) - torch.sigmoid(widen(a.detach()))) for a, h, *_ in calls]
    baseline: Tensor | float = 0.0
    if unit.baseline is not None:
        baseline = unit.baseline.step(scores, losses, update=update)
    term = torch.zeros(())
    for call, score, L in zip(calls, scores, losses, strict=True):
        term = term + (score * (L - baseline) * call.a).sum() / max(L.numel(), 1)  # Cor. 1
    term.detach().zero_()  # only the gradient counts (and 0·a is not 0 at a = ±∞)
    return term


def _charge(losses: Tensor | Sequence[Tensor], calls: list[Call]) -> list[Tensor]:
    """The losses of each call, aligned with its `a`."""
    if not torch.is_grad_enabled():
        raise RuntimeError(
            "score_loss expected gradients to be enabled, got torch.no_grad() after a forward pass "
            f"that recorded some: its term would be a constant. Outside of no_grad write\n    {HOW}"
        )
    for call in calls:
        call.check()
    if isinstance(losses, Sequence):
        if len(losses) != len(calls):
            raise ValueError(
                f"score_loss expected one tensor of losses, or a list with one entry for each of "
                f"the {len(calls)} calls of a unit, got a list of {len(losses)}. Write\n    "
                "hardgate.score_loss(model, torch.stack(losses).sum(0)) to charge all to each."
            )
        return [_align(L, call.a) for L, call in zip(losses, calls, strict=True)]
    aligned = [_align(losses, call.a) for call in calls]
    _check_same_pass(losses, calls)
    return aligned


def _check_same_pass(losses: Tensor, calls: list[Call]) -> None:
    """Refuse calls that an earlier forward pass left behind: the losses come from others only."""
    if torch.compiler.is_compiling():
        return
    made = [call.a.grad_fn for call in calls if call.a.grad_fn is not None]
    if len(made) < 2 or losses.grad_fn is None:
        return
    seen, todo = set(), [losses.grad_fn]
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += [n for n, _ in node.next_functions if n is not None]
    strays = sum(node not in seen for node in made)
    if 0 < strays < len(made):
        raise RuntimeError(
            f"score_loss expected losses that depend on every recorded call, got {len(made)} calls "
            f"of a unit and losses that do not depend on {strays} of them. Call score_loss once "
            "per forward pass, run passes without one under torch.no_grad(), or drop theirs with "
            "hardgate.clear_scores(model). If these losses are meant for all calls, write\n"
            "    hardgate.score_loss(model, losses.detach())"
        )


def _align(losses: Tensor, a: Tensor) -> Tensor:
    """`losses` with trailing axes of size 1, so that it broadcasts from the left against `a`."""
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        got = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
        raise TypeError(f"score_loss expected a tensor of floating point losses, got {got}. {_HOW}")
    leading = a.shape[:-1]
    if losses.shape != leading[: losses.dim()] or (losses.dim() == 0 and leading):
        averaged = " (a single number: was it averaged already?)" if losses.dim() == 0 else ""
        raise ValueError(
            f"score_loss expected one loss per example: a has shape {tuple(a.shape)}, so losses "
            f"of shape {tuple(leading)}{' or a prefix of it' if len(leading) > 1 else ''}, "
            f"got {tuple(losses.shape)}{averaged}. {_HOW}"
        )
    return widen(losses.detach()).reshape(losses.shape + (1,) * (a.dim() - losses.dim()))

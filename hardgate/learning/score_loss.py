"""Learning without back-propagation into the gate: the score term of Theorem 1."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from hardgate._base.precision import widen
from hardgate._base.torch_state import compiling, is_wrapped
from hardgate.learning.baselines import Baseline
from hardgate.learning.records import HOW, Call, Records, allow_backward

__all__ = ["clear_scores", "score_loss"]

_HOW = f"Write\n    losses = F.cross_entropy(model(x), y, reduction='none')\n    {HOW}"


class Scored(Protocol):
    """What `score_loss` needs of a unit with `needs_loss`."""

    training: bool
    eval_mode: str
    records: Records
    baseline: Baseline | None


class CallLosses(NamedTuple):
    """The losses of one call, with trailing axes of size 1: they broadcast from the left to a."""

    L: Tensor  # 0 where it is masked out
    mask: Tensor | None  # bool

    def number(self) -> Tensor | int:
        """How many losses there are, at least 1."""
        return max(self.L.numel(), 1) if self.mask is None else self.mask.sum().clamp(min=1)


def score_loss(
    model: nn.Module,
    losses: Tensor | Sequence[Tensor],
    mask: Tensor | Sequence[Tensor] | None = None,
    *,
    update_baselines: bool = True,
) -> Tensor:
    """The term whose gradient at `a` is (h - σ(a))(L - L̄_i), averaged over the losses.

    Its value is zero: it changes gradients, not the loss you print. It charges the losses to every
    sampled call since the last `score_loss`, of every unit with `needs_loss` in `model`, then
    forgets these calls. Each baseline is read before this batch updates it (Corollary 1). The term
    has a first derivative only.

    Args:
        model: any module that contains such units (or is one).
        losses: one loss per example, *not* averaged: its shape is that of the leading
            dimensions of `a`, or of the first few: `[B]` with `a` of `[B, T, D]` charges each
            example's loss to all its T steps. With `a` of `[T, B, D]`, `[B]` is refused, except
            where T = B: then it is taken for one loss per step. A list charges the k-th loss to
            the k-th call since the last `score_loss`: per-step losses, or returns to go.
        mask: which losses count, of their shape, bool or 0 and 1 (for a list: a list). The
            mean is over those that count, and neither gradients nor baselines see the others. This
            is not `losses * mask`, which charges a loss of 0.
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
    # Take all records first: if something is refused below, no call is left for later losses.
    taken = [(unit, unit.records.take()) for unit in units]
    charged = [(unit, calls, _losses_of(losses, mask, calls)) for unit, calls in taken if calls]
    total = torch.zeros((), device=losses.device if isinstance(losses, Tensor) else None)
    for unit, calls, theirs in charged:
        term = allow_backward(calls, _unit_term(unit, calls, theirs, update_baselines))
        total = total + term.to(total.device)
    return total


def clear_scores(model: nn.Module) -> None:
    """Drop the recorded calls of every unit with `needs_loss`, as after an interrupted step."""
    for unit in _scored_units(model):
        unit.records.clear()


def _scored_units(model: nn.Module) -> list[Scored]:
    """The units of the model that say `needs_loss`: this package is below `units`."""
    return [cast(Scored, m) for m in model.modules() if getattr(m, "needs_loss", False) is True]


def _unit_term(unit: Scored, calls: list[Call], charged: list[CallLosses], update: bool) -> Tensor:
    if update and unit.baseline is not None and any(call.transformed for call in calls):
        raise RuntimeError(
            "under torch.func the moving averages of a baseline cannot be updated. Write "
            "score_loss(model, losses, update_baselines=False), or StochasticBinary(None)."
        )
    scores = [_score(call, c.mask) for call, c in zip(calls, charged, strict=True)]
    baseline: Tensor | float = 0.0
    if unit.baseline is not None:
        losses, masks = [c.L for c in charged], [c.mask for c in charged]
        baseline = unit.baseline.step(scores, losses, masks=masks, update=update)
    term = torch.zeros(())
    for call, score, c in zip(calls, scores, charged, strict=True):
        term = term + (score * (c.L - baseline) * call.a).sum() / c.number()  # Cor. 1
    term.detach().zero_()  # only the gradient counts (and 0·a is not 0 at a = ±∞)
    return term


def _score(call: Call, mask: Tensor | None) -> Tensor:
    """h - σ(a), 0 where it is masked out."""
    score = torch.atleast_1d(widen(call.h) - torch.sigmoid(widen(call.a.detach())))
    return score if mask is None else torch.where(mask, score, 0)


def _losses_of(
    losses: Tensor | Sequence[Tensor], mask: Tensor | Sequence[Tensor] | None, calls: list[Call]
) -> list[CallLosses]:
    """The losses of each call."""
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
        masks = [None] * len(losses) if mask is None else mask
        if not isinstance(masks, Sequence) or len(masks) != len(losses):
            got = f"a list of {len(masks)}" if isinstance(masks, Sequence) else "one tensor"
            raise ValueError(
                f"score_loss expected a list of {len(losses)} masks for a list of as many losses, "
                f"got {got}. Write score_loss(model, losses, list(mask))."
            )
        each = zip(losses, masks, calls, strict=True)
        return [_align(L, m, call.a) for L, m, call in each]
    if isinstance(losses, Tensor):
        _check_same_pass(losses, calls)  # first: a call left behind may have another shape
    return [_align(losses, mask, call.a) for call in calls]


def _check_same_pass(losses: Tensor, calls: list[Call]) -> None:
    """Refuse calls of an earlier forward pass, which the losses do not depend on."""
    if compiling():
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


def _align(losses: Tensor, mask: Tensor | Sequence[Tensor] | None, a: Tensor) -> CallLosses:
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        got = losses.dtype if isinstance(losses, Tensor) else type(losses).__name__
        raise TypeError(f"score_loss expected a tensor of floating point losses, got {got}. {_HOW}")
    leading = a.shape[:-1]
    if losses.shape != leading[: losses.dim()] or (losses.dim() == 0 and leading):
        raise ValueError(
            f"score_loss expected one loss per example: a has shape {tuple(a.shape)}, so losses "
            f"of shape {tuple(leading)}{' or a prefix of it' if len(leading) > 1 else ''}, "
            f"got {tuple(losses.shape)}{_guess(losses, leading)}. {_HOW}"
        )
    shape = losses.shape + (1,) * (a.dim() - losses.dim())
    L = widen(losses.detach()).reshape(shape)
    if mask is None:
        return CallLosses(L, None)
    counted = _counted(mask, losses).reshape(shape)
    return CallLosses(L.where(counted, 0), counted)


def _guess(losses: Tensor, leading: torch.Size) -> str:
    """What may have gone wrong with losses of this shape."""
    if losses.dim() == 0:
        return " (a single number: was it averaged already?)"
    if losses.shape != leading[-losses.dim() :]:
        return ""
    steps = prod(leading[: -losses.dim()])  # the mean is over steps times as many
    return (
        ": those are the last axes, so a is time-first, [T, B, D]. Give the unit [B, T, D], or "
        f"write score_loss(model, {steps} * losses.expand{tuple(leading)})"
    )


def _counted(mask: Tensor | Sequence[Tensor], losses: Tensor) -> Tensor:
    """The mask as bool."""
    if not isinstance(mask, Tensor) or mask.shape != losses.shape:
        got = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            "score_loss expected a mask of the shape of the losses, with one entry for each: "
            f"{tuple(losses.shape)}, got {got}. Write\n"
            "    losses[mask].mean() + hardgate.score_loss(model, losses, mask)"
        )
    counted = mask.to(losses.device) != 0
    hidden = compiling() or is_wrapped(mask)
    if mask.dtype != torch.bool and not hidden and not torch.equal(counted.to(mask), mask):
        raise ValueError(
            "score_loss expected a mask of 0 and 1, got other numbers. To weigh the losses, write\n"
            "    hardgate.score_loss(model, weights * losses)"
        )
    return counted

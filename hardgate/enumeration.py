"""Ground truth by enumeration: E f(b) and its gradient over all 2^D binary vectors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.utils.checkpoint import checkpoint

from hardgate._base.precision import widen
from hardgate._base.torch_state import version

__all__ = ["exact_expectation", "exact_gradient", "losses_of"]

_MOST_UNITS = 20
_CHUNK_NUMBERS = 2**22  # numbers in b at a time, whatever D and the batch


def exact_expectation(f: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """E f(b) for b_i ~ Bernoulli(σ(a_i)), summed over all 2^D values of b.

    Differentiable with respect to `logits` and to whatever f depends on; memory stays bounded
    (chunks are computed again in the backward pass).

    Args:
        f: samples `[..., D]` → losses `[...]`.
        logits: a, `[..., D]` with D ≤ 20.

    Returns:
        the expectation, of shape `[...]`.

    Example:
        >>> exact_expectation(lambda b: b.sum(-1) ** 2, torch.zeros(2)).item()
        1.5
    """
    _check(logits)
    logits = widen(logits)

    def chunk(states: Tensor, a: Tensor) -> Tensor:
        return (_log_q(states, a).exp() * losses_of(f, states)).sum(0)

    chunks = list(_chunk_starts(logits))
    total = logits.new_zeros(logits.shape[:-1])
    for start in chunks:
        states = _states(start, logits)
        if len(chunks) > 1 and torch.is_grad_enabled():
            part = checkpoint(chunk, states, logits, use_reentrant=False)
        else:
            part = chunk(states, logits)
        total = total + part
    return total


@torch.no_grad()
def exact_gradient(f: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """∂E f(b)/∂a = Σ_b q(b) f(b)(b - p), by enumeration. Needs values of f only.

    Where f itself depends on `logits`, differentiate `exact_expectation` instead.

    Args:
        f: samples `[..., D]` → losses `[...]`.
        logits: a, `[..., D]` with D ≤ 20.

    Returns:
        the gradient, of the shape of `logits`.

    Example:
        >>> exact_gradient(lambda b: b.sum(-1) ** 2, torch.zeros(2)).tolist()
        [0.5, 0.5]
    """
    _check(logits)
    a = widen(logits)
    total = torch.zeros_like(a)
    for start in _chunk_starts(a):
        b = _states(start, a)
        weighted = _log_q(b, a).exp() * losses_of(f, b)
        total += (weighted.unsqueeze(-1) * (b - torch.sigmoid(a))).sum(0)
    return total.to(logits.dtype)


def _check(logits: Tensor) -> None:
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() == 0:
        raise TypeError(
            "enumeration expected floating point logits of shape [..., D], got "
            f"{logits.dtype if isinstance(logits, Tensor) else type(logits).__name__}"
            f"{' with no axis' if isinstance(logits, Tensor) and logits.dim() == 0 else ''}."
        )
    if logits.shape[-1] > _MOST_UNITS:
        raise ValueError(
            f"enumeration expected at most {_MOST_UNITS} units, got {logits.shape[-1]}, which "
            f"would take 2^{logits.shape[-1]} evaluations. Sample instead: see "
            "hardgate.expectation and hardgate.estimators."
        )


def _chunk_starts(logits: Tensor) -> range:
    rows = max(1, _CHUNK_NUMBERS // max(1, logits.numel()))
    return range(0, 2 ** logits.shape[-1], rows)


def _states(start: int, logits: Tensor) -> Tensor:
    """The binary vectors start, start + 1, … of this chunk: `[rows, ..., D]`."""
    D = logits.shape[-1]
    step = _chunk_starts(logits).step
    number = torch.arange(start, min(start + step, 2**D), device=logits.device)
    bits = (number.unsqueeze(-1) >> torch.arange(D, device=logits.device)) & 1
    shape = (len(number),) + (1,) * (logits.dim() - 1) + (D,)
    return bits.to(logits.dtype).reshape(shape).expand(len(number), *logits.shape)


def _log_q(b: Tensor, a: Tensor) -> Tensor:
    """log q(b) = Σ b_i log σ(a_i) + (1 - b_i) log σ(-a_i), also where a_i = ±∞ and one is 0·∞."""
    return torch.where(b > 0, logsigmoid(a), logsigmoid(-a)).sum(-1)


def losses_of(f: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """f(b), one real loss for each sample, in at least fp32: what an estimator subtracts."""
    before = version(b)
    losses = f(b)
    if version(b) != before:
        raise ValueError(
            "f expected to leave its samples as they are, got an f that changes them in place. "
            "Write b = 2 * b, not b *= 2."
        )
    if not isinstance(losses, Tensor) or losses.is_complex():
        got = losses.dtype if isinstance(losses, Tensor) else f"a {type(losses).__name__}"
        raise TypeError(
            f"f expected to give a tensor of real losses, {tuple(b.shape[:-1])} for samples "
            f"{tuple(b.shape)}, got {got}. Compute them from b with torch, like "
            "(b - t).square().sum(-1), or write torch.tensor(losses)."
        )
    if losses.shape != b.shape[:-1]:
        raise ValueError(
            f"f expected to map samples {tuple(b.shape)} to one loss each, "
            f"{tuple(b.shape[:-1])}, got {tuple(losses.shape)}. Reduce over the last axis only, "
            "like (b - t).square().sum(-1)."
        )
    return widen(losses) if losses.is_floating_point() else losses.to(b.dtype)  # counts, rewards

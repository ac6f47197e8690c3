"""Detach arithmetic: the value of one tensor with the gradient of another.

Ordinary additions and products only, no `autograd.Function`: `torch.compile`, `torch.func` and
`vmap` follow them.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clamp_infinite(a: Tensor) -> Tensor:
    """`a` with ±∞ replaced by the largest numbers: then a - a is 0 there, and NaN only at NaN."""
    limit = torch.finfo(a.dtype).max
    return a.clamp(-limit, limit)


def surrogate(hard: Tensor, soft: Tensor) -> Tensor:
    """The value of `hard`, the gradient of `soft`, NaN where `soft` is NaN.

    The brackets matter: `hard + soft - soft.detach()` rounds, and a 1 that is not exactly 1
    (or a 0 that is not exactly 0) cannot be skipped.

    Args:
        hard: the value of the forward pass.
        soft: what is differentiated instead; must be finite (or NaN) everywhere.

    Returns:
        a tensor equal to `hard` bit for bit, with the derivative of `soft`.

    Example:
        >>> a = torch.tensor([0.3, -2.0], requires_grad=True)
        >>> h = surrogate((a > 0).float(), a.sigmoid())
        >>> h.tolist()
        [1.0, 0.0]
    """
    return hard.detach() + (soft - soft.detach())


def with_slope(hard: Tensor, a: Tensor, slope: Tensor) -> Tensor:
    """The value of `hard`, the derivative `slope` with respect to `a`, NaN where `a` is NaN."""
    x = clamp_infinite(a)
    return hard.detach() + slope.detach() * (x - x.detach())


def bernoulli(p: Tensor, u: Tensor) -> Tensor:
    """b = 1[u < p] for u ~ U[0, 1), so that P(b = 1) = p. No gradient.

    Eq. 3 is printed with `>`, which gives P = 1 - p; the proof of Theorem 1 needs `<`.
    """
    return (u < p).to(p.dtype)


def indicator(on: Tensor, p: Tensor) -> Tensor:
    """1[on] in the dtype of `p`, with derivative zero, and NaN where `p` is NaN."""
    return on.to(p.dtype) + (p - p)  # not 0·p: inductor folds it to 0, at NaN too

"""Leave-one-out over K samples, for several losses at once: what DoubleCV's kind is made of."""

from __future__ import annotations

import torch
from torch import Tensor

_FEW = 8  # samples


def rloo(L: Tensor, score: Tensor, scale: Tensor | None = None) -> Tensor:
    """mean_k (L_k - mean_{j≠k} L_j)(b_k - p): `[..., K, B]` and `[K, B, D]` → `[..., B, D]`.

    L_k - mean_{j≠k} L_j is K/(K-1) times L_k - mean_j L_j; of two samples all that is left is
    ½ (L_1 - L_2)(b_1 - b_2), in half the passes. `scale`, `[B, D]`, multiplies it.
    """
    axis = L.dim() - score.dim() + 1
    if len(score) > 2:
        total = weighted(centred(L, axis), score)
        return total if scale is None else total * scale
    difference = torch.sub(*L.unbind(axis)).mul_(0.5)
    apart = torch.sub(*score.unbind())
    return difference.unsqueeze(-1) * (apart if scale is None else apart.mul_(scale))


def centred(L: Tensor, axis: int = 0) -> Tensor:
    """(L_k - mean_j L_j)/(K-1), K numbers along `axis`: what `rloo` gives each sample's score."""
    return (L - L.mean(axis, keepdim=True)) / (L.shape[axis] - 1)


def weighted(L: Tensor, score: Tensor) -> Tensor:
    """Σ_k L_k (b_k - p), the shapes as in `rloo`."""
    # Not einsum: its batched product of tiny matrices takes five times as long. One by one, a few
    # samples take two thirds of the time of all products and their sum, many take far longer.
    if len(score) > _FEW:
        return (L.unsqueeze(-1) * score).sum(-score.dim())
    factors = L.unsqueeze(-1).unbind(-score.dim())
    total = factors[0] * score[0]
    for factor, each in zip(factors[1:], score[1:], strict=True):
        total = torch.addcmul(total, factor, each)
    return total


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Σ_k x_k y_k, both `[K, ...]`; see `weighted`."""
    if len(x) > _FEW:
        return (x * y).sum(0)
    total = x[0] * y[0]
    for each, other in zip(x[1:], y[1:], strict=True):
        total = torch.addcmul(total, each, other)
    return total


def summed(x: Tensor) -> Tensor:
    """Σ_k x_k, `[K, ...]` → `[...]`; a few one by one, in half the time."""
    if len(x) > _FEW:
        return x.sum(0)
    total = x[0]
    for each in x[1:]:
        total = total + each
    return total


def across(h: Tensor, score: Tensor) -> Tensor:
    """h_{-k}·(b_k - p) for every k, h_{-k} the mean over the others: `[K, ..., D]` → `[K, ...]`."""
    if len(h) == 2:  # each with the other, as they are
        return torch.stack([(h[1] * score[0]).sum(-1), (h[0] * score[1]).sum(-1)])
    return ((summed(h) - h) * score).sum(-1) / (len(h) - 1)


def leave_one_out(x: Tensor) -> Tensor:
    """The mean over the other samples, for every sample: `[K, ...]` → `[K, ...]`."""
    others = summed(x) - x
    return others if len(x) == 2 else others / (len(x) - 1)

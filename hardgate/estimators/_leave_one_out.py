"""Leave-one-out over K samples, for several losses at once."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def rloo(L: Tensor, score: Tensor) -> Tensor:
    """mean_k (L_k - mean_{j≠k} L_j)(b_k - p): `[..., K, B]` and `[K, B, D]` → `[..., B, D]`.

    L_k - mean_{j≠k} L_j is K/(K-1) times L_k - mean_j L_j.
    """
    axis = L.dim() - score.dim() + 1
    centred = (L - L.mean(axis, keepdim=True)) / (L.shape[axis] - 1)
    return weighted(centred, score)


def weighted(L: Tensor, score: Tensor) -> Tensor:
    """Σ_k L_k (b_k - p), of the shapes in `rloo`."""
    factors = L.unsqueeze(-1).unbind(-score.dim())
    return functools.reduce(torch.add, map(torch.mul, factors, score))


def leave_one_out(x: Tensor) -> Tensor:
    """The mean over the other samples, for every sample: `[K, ...]` → `[K, ...]`."""
    return (sum_samples(x) - x) / (len(x) - 1)


def sum_samples(x: Tensor) -> Tensor:
    """Σ_k x_k: a few samples one by one, in half the time of x.sum(0)."""
    return functools.reduce(torch.add, x.unbind())

"""Leave-one-out over K samples, for several losses at once."""

from __future__ import annotations

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
    return (L.unsqueeze(-1) * score).sum(-score.dim())


def leave_one_out(x: Tensor) -> Tensor:
    """The mean over the other samples, for every sample: `[K, ...]` → `[K, ...]`."""
    return (x.sum(0) - x) / (len(x) - 1)

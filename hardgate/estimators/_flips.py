"""One unit changed at a time: which one, or all of them in turn."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_CHUNK_NUMBERS = 2**17  # numbers in b at a time: f's own layers should stay in the cache


def flip(b: Tensor, chosen: Tensor) -> Tensor:
    """b with the units changed where `chosen` is 1 (or True)."""
    return (b - chosen.to(b.dtype)).abs()


def draw_unit(w: Tensor, u: Tensor) -> Tensor:
    """One unit j of every example with probability w_j / Σ w, as a mask; none where all w are 0.

    Args:
        w: weights ≥ 0, `[..., D]`.
        u: a uniform number for each example, `[..., 1]`.
    """
    below = w.cumsum(-1)
    winner = (below <= u * below[..., -1:]).sum(-1, keepdim=True)
    return torch.arange(w.shape[-1], device=w.device) == winner


@torch.no_grad()
def unit_by_unit(change: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """`change(e)` for the one-hot vector e of every unit: `[..., D]`, as b is.

    Args:
        change: one-hot vectors `[rows, 1, ..., D]` → numbers `[rows, ...]`, without a graph.
        b: `[..., D]`, the samples to be changed.
    """
    D = b.shape[-1]
    eye = torch.eye(D, dtype=b.dtype, device=b.device).reshape(D, *(1,) * (b.dim() - 1), D)
    rows = max(1, _CHUNK_NUMBERS // max(1, b.numel()))
    return torch.cat([change(e) for e in eye.split(rows)]).movedim(0, -1)

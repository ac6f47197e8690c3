"""Decaying averages, which one bad batch must not spoil."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def decay_(sums: tuple[Tensor, ...], by: tuple[Tensor, ...], decay: float) -> None:
    """In place: sum ← decay · sum + by, for all or, where one would not be finite, for none.

    One bad batch must not spoil all that follow.
    """
    given = [x.detach().to(s) for s, x in zip(sums, by, strict=True)]
    moved = torch._foreach_add(given, sums, alpha=decay)
    if all(map(finite, moved)):
        torch._foreach_copy_(sums, moved)


def finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite, nor their sum: a third of the time of isfinite."""
    return math.isfinite((x.sum() if x.dim() else x).item())

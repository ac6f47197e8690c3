"""A conditional layer of a few units."""

from __future__ import annotations

from typing import Any

import torch

from hardgate import ConditionalMLP, StraightThrough, Unit


def mlp(unit: Unit | None = None, *sizes: int, **options: Any) -> ConditionalMLP:
    torch.manual_seed(0)
    sizes = sizes or (6, 32, 3)
    options = {"bottleneck": 5, **options}
    return ConditionalMLP(*sizes, unit=unit or StraightThrough(), **options)

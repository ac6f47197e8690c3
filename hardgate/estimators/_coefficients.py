"""The best multiples of several control variates at once, learnt from past samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hardgate._across import total
from hardgate._state import LazyState

_RIDGE = 1e-4  # relative: control variates that are nearly the same keep their start


class Coefficients(LazyState):
    """α_1…α_R that give g + Σ_r α_r v_r the least variance, where E[v_r] = 0.

    α = -E[v vᵀ]⁻¹ E[v g], by moving averages that are read before the present samples move them:
    `Coefficient` for several control variates.

    Args:
        start: α before the first update.
        decay: of the averages, per update.
    """

    numerator: Tensor
    denominator: Tensor

    def __init__(self, start: Sequence[float], *, decay: float = 0.99) -> None:
        super().__init__()
        self.start, self.decay = tuple(start), decay
        self.register_buffer("numerator", torch.zeros(len(self.start)))
        self.register_buffer("denominator", torch.zeros(len(self.start), len(self.start)))

    def value(self) -> Tensor:
        """α, `[R]`."""
        start = self.denominator.new_tensor(self.start)
        size = self.denominator.diagonal().sqrt()
        known = size > 0
        size = size.where(known, 1)
        gram = self.denominator / size.outer(size)
        # In units of each v_r's own size, and from the start on.
        missing = self.numerator / size - gram @ (start * size)
        ridge = _RIDGE * torch.eye(len(start), dtype=gram.dtype, device=gram.device)
        ridge = ridge + torch.diag((~known).to(gram))
        step: Tensor = torch.linalg.solve(gram + ridge, missing) / size
        return start + step

    @torch.no_grad()
    def update(self, g: Tensor, v: Tensor) -> None:
        """Move the averages by estimates g `[..., D]` and control variates v `[R, ..., D]`."""
        wide = self.denominator.dtype
        v, g = v.flatten(1).to(wide), g.flatten().to(wide)
        sums = (total(x, self.synchronised) for x in (-v @ g, v @ v.T))
        num, den = (x.to(self.denominator.device) for x in sums)
        num, den = self.decay * self.numerator + num, self.decay * self.denominator + den
        if num.isfinite().all() and den.isfinite().all():  # one bad batch must not spoil the rest
            self.numerator.copy_(num)
            self.denominator.copy_(den)


def combine(g: Tensor, coefficients: Tensor, v: Tensor) -> Tensor:
    """g + Σ_r α_r v_r."""
    control: Tensor = torch.tensordot(coefficients.to(v), v, 1)
    return g + control

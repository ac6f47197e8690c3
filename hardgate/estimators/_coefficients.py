"""The best multiples of several control variates at once, learnt from past samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hardgate._across import total
from hardgate._state import LazyState, decay_

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
        # NumPy: on so few numbers a dozen of torch's operations take as long as a product.
        numerator, gram = (x.cpu().numpy() for x in (self.numerator, self.denominator))
        start, size = np.asarray(self.start), np.sqrt(gram.diagonal(), dtype=np.float64)
        known = size > 0
        size[~known] = 1
        gram = gram / np.outer(size, size)
        # In units of each v_r's own size, and from the start on.
        missing = numerator / size - gram @ (start * size)
        ridge = np.where(known, _RIDGE, 1 + _RIDGE)
        step = np.linalg.solve(gram + np.diag(ridge), missing) / size
        return torch.as_tensor(start + step).to(self.denominator)

    @torch.no_grad()
    def update(self, estimates: Tensor) -> None:
        """Move the averages by an estimate g and its control variates, `[1 + R, ..., D]`."""
        rows = estimates.flatten(1).to(self.denominator.dtype)
        gram = total(rows @ rows.T, self.synchronised)
        decay_((self.numerator, self.denominator), (-gram[0, 1:], gram[1:, 1:]), self.decay)


def combine(estimates: Tensor, alpha: Tensor) -> Tensor:
    """g + Σ_r α_r v_r of g, v_1…v_R, `[1 + R, ..., D]`."""
    factors = torch.cat([alpha.new_ones(1), alpha]).to(estimates)
    return (factors @ estimates.flatten(1)).view(estimates.shape[1:])

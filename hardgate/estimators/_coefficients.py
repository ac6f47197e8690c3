"""The best multiples of several control variates at once, learnt from past samples."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from hardgate._base.averages import decay_
from hardgate._base.distributed import total
from hardgate._base.lazy_state import LazyState

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
        # In Python: on so few numbers a dozen calls of torch or NumPy take longer than a product.
        gram: list[list[float]] = self.denominator.tolist()
        size = [math.sqrt(max(row[r], 0.0)) or 1.0 for r, row in enumerate(gram)]
        # In units of each v_r's own size, and from the start on.
        start = [alpha * s for alpha, s in zip(self.start, size, strict=True)]
        system = []
        for r, (row, right) in enumerate(zip(gram, self.numerator.tolist(), strict=True)):
            row = [x / (size[r] * s) for x, s in zip(row, size, strict=True)]
            missing = right / size[r] - sum(map(operator.mul, row, start))
            row[r] += _RIDGE if row[r] > 0 else 1 + _RIDGE
            system.append([*row, missing])
        step = _solve(system)
        alpha = [(x + d) / s for x, d, s in zip(start, step, size, strict=True)]
        return self.denominator.new_tensor(alpha)

    def update(self, estimates: Tensor) -> None:
        """Move the averages by an estimate g and its control variates, `[1 + R, ..., D]`."""
        rows = estimates.flatten(1).to(self.denominator.dtype)
        gram = total(rows @ rows.T, self.synchronised)
        decay_((self.numerator, self.denominator), (-gram[0, 1:], gram[1:, 1:]), self.decay)


def _solve(system: list[list[float]]) -> list[float]:
    """x of A x = y, given rows of A with y at their end, for a positive definite A.

    By elimination, which needs no pivots there.
    """
    n, x = len(system), list[float]()
    for k, pivot in enumerate(system):
        for i in range(k + 1, n):
            factor = system[i][k] / pivot[k]
            system[i] = [a - factor * b for a, b in zip(system[i], pivot, strict=True)]
    for k in reversed(range(n)):
        known = sum(map(operator.mul, system[k][k + 1 : n], x))
        x.insert(0, (system[k][n] - known) / system[k][k])
    return x


def combine(estimates: Tensor, alpha: Tensor) -> Tensor:
    """g + Σ_r α_r v_r of g, v_1…v_R, `[1 + R, ..., D]`."""
    factors = torch.cat([alpha.new_ones(1), alpha]).to(estimates)
    return (factors @ estimates.flatten(1)).view(estimates.shape[1:])

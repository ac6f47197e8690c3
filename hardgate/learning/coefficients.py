"""The best multiples of control variates, learnt from past samples."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from hardgate._base.arguments import flag
from hardgate._base.averages import DecayingRatio

_RIDGE = 1e-4  # relative: control variates that are nearly the same keep their start


class Coefficient(DecayingRatio):
    """α that gives g + α v the least variance, where E[v] = 0: α = -E[g·v] / E[v·v].

    Both means are moving averages, and α is read before the present samples update them: the
    paper's Corollary 1, for any control variate. Minimising E‖g + α v‖² minimises the variance, as
    v does not change the mean.

    Args:
        start: α before the first update.
        per_unit: one α for each unit, instead of one for all.
        decay: of the averages, per update.
    """

    def __init__(self, start: float, *, per_unit: bool = False, decay: float = 0.99) -> None:
        super().__init__(decay, start)
        self.per_unit = flag("per_unit", per_unit)

    def value(self, units: int | None = None) -> Tensor:
        """α, `[D]` or `[]`; where the number of units is given, it is checked."""
        if units is not None:
            self.check_shape(*((units,) if self.per_unit else ()))
        return self.ratio()

    def learn_(self, g: Tensor, v: Tensor) -> None:
        """Update the averages by estimates g and control variates v, both `[..., D]`."""
        units = g.shape[-1:] if self.per_unit else ()
        self.update_(-(g * v).sum_to_size(units), v.square().sum_to_size(units))


class Coefficients(DecayingRatio):
    """α_1…α_R that give g + Σ_r α_r v_r the least variance, where E[v_r] = 0.

    α = -E[v vᵀ]⁻¹ E[v g], by moving averages that are read before the present samples update them:
    `Coefficient` for several control variates.

    Args:
        starts: α before the first update.
        decay: of the averages, per update.
    """

    def __init__(self, starts: Sequence[float], *, decay: float = 0.99) -> None:
        super().__init__(decay)
        self.starts = tuple(starts)

    def value(self) -> Tensor:
        """α, `[R]`."""
        if self.empty:
            return self.numerator.new_tensor(self.starts)
        # In Python: for so few numbers, a dozen calls of torch take longer than a matrix product.
        gram: list[list[float]] = self.denominator.tolist()
        size = [math.sqrt(max(row[r], 0.0)) or 1.0 for r, row in enumerate(gram)]
        # In units of each v_r's own size, as a difference from the start.
        start = [alpha * s for alpha, s in zip(self.starts, size, strict=True)]
        system = []
        for r, (row, right) in enumerate(zip(gram, self.numerator.tolist(), strict=True)):
            row = [x / (size[r] * s) for x, s in zip(row, size, strict=True)]
            missing = right / size[r] - sum(map(operator.mul, row, start))
            row[r] += _RIDGE if row[r] > 0 else 1 + _RIDGE
            system.append([*row, missing])
        step = _solve(system)
        alpha = [(x + d) / s for x, d, s in zip(start, step, size, strict=True)]
        return self.denominator.new_tensor(alpha)

    def learn_(self, estimates: Tensor) -> None:
        """Update the averages by an estimate g and its control variates, `[1 + R, ..., D]`."""
        rows = estimates.flatten(1)
        gram = rows @ rows.T
        self.update_(-gram[0, 1:], gram[1:, 1:])


def combine(estimates: Tensor, alpha: Tensor) -> Tensor:
    """g + Σ_r α_r v_r of g, v_1…v_R, `[1 + R, ..., D]`."""
    factors = torch.cat([alpha.new_ones(1), alpha]).to(estimates)
    return (factors @ estimates.flatten(1)).view(estimates.shape[1:])


def _solve(system: list[list[float]]) -> list[float]:
    """x of A x = y, given the rows of A with y at their end, for a positive definite A.

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

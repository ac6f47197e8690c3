"""The KL penalty that holds each unit's mean probability of being on at a target (App. A.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hardgate._base.arguments import positive
from hardgate._base.distributed import mean
from hardgate._base.precision import widen
from hardgate.sparsity._controller import Controller, examples
from hardgate.units._unit import Unit


class KLTarget(Controller):
    """weight · Σ_i KL(s ‖ p̄_i), p̄_i the batch mean of P(h_i ≠ 0 | a)  (App. A.1).

    p̄ is the mean probability of being *non-zero* (√σ(a) for STS). The paper prints the
    cross-entropy, which has the same gradient; this is zero at the target. Both p̄ and 1 - p̄ are
    averages of probabilities that do not cancel, so the gradient at any `a` is at most about
    `weight` and a unit at a = ±40 is still pulled back (±12 for Gaussian noise: Φ(-13) underflows).

    Args:
        rate: the target s.
        weight: λ; from 1e-4 to 1 in the authors' runs.

    Example:
        >>> from hardgate import StraightThrough
        >>> unit, a = StraightThrough(), torch.full((32, 5), math.log(1 / 9))
        >>> round(abs(KLTarget(0.1, weight=1.0)(unit, a.requires_grad_(), unit(a)).item()), 5)
        0.0
    """

    def __init__(self, rate: float, weight: float) -> None:
        super().__init__(rate)
        self.weight = positive("weight", weight)

    def penalty(self, unit: Unit, a: Tensor, h: Tensor) -> Tensor:
        s, x = self.rate, widen(a)
        p, q = unit.active_probability(x), unit.inactive_probability(x)
        if a.requires_grad and torch.is_grad_enabled() and not p.requires_grad:
            raise ValueError(
                f"KLTarget needs a probability of being non-zero that varies smoothly with a; "
                f"that of {unit!r} does not. Use AdaptiveL1 (as the paper does for rectifiers) "
                "or FiringRate."
            )
        tiny = torch.finfo(x.dtype).tiny  # reached only beyond |a| = 87 in fp32
        log_p = mean(examples(p), self.synchronised).clamp(min=tiny).log()
        log_q = mean(examples(q), self.synchronised).clamp(min=tiny).log()
        divergence = s * (math.log(s) - log_p) + (1 - s) * (math.log(1 - s) - log_q)
        return self.weight * divergence.sum()

    def extra_repr(self) -> str:
        return f"rate={self.rate}, weight={self.weight}"

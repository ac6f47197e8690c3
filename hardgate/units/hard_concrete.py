"""The hard Concrete gate of L0 regularisation (Louizos, Welling & Kingma 2018)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from hardgate._base.arguments import positive
from hardgate._base.precision import widen
from hardgate.functional import relaxations
from hardgate.functional.concrete import mixture
from hardgate.noise import Logistic
from hardgate.units._law import nodes_per_unit, unit_interval
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single


class HardConcrete(Unit):
    """h = clip(s(ζ - γ) + γ, 0, 1), s = σ((a + z)/λ): relaxed, with exact zeros and exact ones.

    P(h ≠ 0) = σ(a - λ log(-γ/ζ)) has a closed form: `KLTarget` can control it, and its sum is the
    L0 penalty of the authors. Clipping stops the gradient of a unit that is off or fully on. So
    back-propagation is exact for E L(h), the unit's own objective, and what an off unit gates
    need not be evaluated.

    In evaluation mode h = E[h | a] where a > threshold, which starts at P(h ≠ 0) = ½.

    Args:
        temperature: λ; the authors used 2/3.
        gamma: γ < 0, the lower end that s is stretched to.
        zeta: ζ > 1, the upper end.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = HardConcrete()
        >>> h = unit(torch.zeros(1000))
        >>> bool((h == 0).any()), bool((h == 1).any()), unit.binary
        (True, True, False)

    References:
        Louizos, Welling & Kingma 2018, Learning sparse neural networks through L0 regularization.
    """

    unbiased = True
    binary = False
    own_objective = True
    off_gradient = "zero"

    def __init__(
        self,
        temperature: float = 2 / 3,
        gamma: float = -0.1,
        zeta: float = 1.1,
        *,
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        self.temperature = positive("temperature", temperature, like=0.5)
        if not -math.inf < gamma < 0 or not 1 < zeta < math.inf:
            raise ValueError(
                "HardConcrete expected gamma below 0 and zeta above 1, like -0.1 and 1.1, got "
                f"{gamma!r} and {zeta!r}. Without stretching it is BinaryConcrete(temperature)."
            )
        self.gamma, self.zeta = float(gamma), float(zeta)
        self.noise = Logistic()
        low, high = math.log(-gamma / zeta), math.log((1 - gamma) / (zeta - 1))  # h = 0, h = 1
        self._ends = low, high
        self._start = self.temperature * low
        self.threshold.fill_(self._start)
        # E h = ∫ P(h > t) dt over (0, 1), and P(h > t) = σ(a - λx) at t = γ + (ζ - γ)σ(x).
        nodes, weights = np.polynomial.legendre.leggauss(16)
        x = low + (high - low) * (nodes + 1) / 2
        dt = weights / np.cosh(x / 2) ** 2
        self._nodes, self._weights = (-self.temperature * x).tolist(), (dt / dt.sum()).tolist()

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.noise.sample(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return relaxations.hard_concrete(a, single(noise), self.temperature, self.gamma, self.zeta)

    def mean(self, a: Tensor) -> Tensor:
        return mixture(widen(a), self._nodes, self._weights).to(a.dtype)

    def gate(self, a: Tensor) -> Tensor:
        return self.mean(a) * (widen(a) > self.threshold)

    def active_probability(self, a: Tensor) -> Tensor:
        return torch.sigmoid(widen(a) - self._start).to(a.dtype)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return torch.sigmoid(self._start - widen(a)).to(a.dtype)

    def law(self, a: Tensor) -> Law:
        (low, high), scale = self._ends, self.temperature
        t, weights = unit_interval(nodes_per_unit(a) - 2, a)
        x, dx = low + (high - low) * t, (high - low) * weights  # x = (a + z)/λ
        density = scale * torch.sigmoid(scale * x - a) * torch.sigmoid(a - scale * x)
        values = (torch.sigmoid(x) * (self.zeta - self.gamma) + self.gamma).expand_as(density)
        zero, one = torch.sigmoid(scale * low - a), torch.sigmoid(a - scale * high)
        ends = torch.zeros_like(a)[None], torch.ones_like(a)[None]
        return (
            torch.cat([ends[0], values, ends[1]]),
            torch.cat([zero[None], density * dx, one[None]]),
        )

    def extra_repr(self) -> str:
        ends = f"gamma={self.gamma:g}, zeta={self.zeta:g}"
        parts = [f"temperature={self.temperature:g}, {ends}", super().extra_repr()]
        return ", ".join(filter(None, parts))

"""The binary Concrete relaxation (Maddison, Mnih & Teh 2017; Jang, Gu & Poole 2017)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from hardgate._base.arguments import positive
from hardgate._base.precision import widen
from hardgate.functional import relaxations
from hardgate.functional.concrete import mixture
from hardgate.noise import Logistic
from hardgate.units._law import nodes_per_unit, unit_interval
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single


class BinaryConcrete(Unit):
    """h = σ((a + z)/λ), z logistic: a Bernoulli(σ(a)) variable, relaxed; never 0 or 1.

    Back-propagation is exact for E L(h) of this *relaxed* h, so the unit is `unbiased` for its own
    objective. It is often used as a gradient of E L(b) for the binary b = 1[h > ½]; as such it is
    biased. A smaller λ reduces this bias, but the variance grows as 1/λ.
    For binary values take `STGumbel` or `GRMCK`.

    In evaluation mode h = E[h | a] where a > threshold. The threshold starts at -∞: no gate is
    closed until `calibrate_thresholds` raises it.

    Args:
        temperature: λ.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> h = BinaryConcrete(0.1)(torch.zeros(1000))
        >>> bool(((h < 0.01) | (h > 0.99)).float().mean() > 0.5)
        True

    References:
        Maddison, Mnih & Teh 2017; Jang, Gu & Poole 2017.
    """

    unbiased = True
    binary = False
    off_gradient = "zero"
    never_off = True
    natural_threshold: ClassVar[float] = -math.inf

    def __init__(self, temperature: float = 0.5, *, eval_mode: EvalMode = "threshold") -> None:
        super().__init__(eval_mode=eval_mode)
        self.temperature = positive("temperature", temperature, like=0.5)
        self.noise = Logistic()
        # E σ((a + z)/λ) = P(a + z > λz') = E σ(a - λz') for z' logistic: the smoother of the two.
        self._scale = max(self.temperature, 1.0)
        nodes, self._weights = self.noise.quadrature(32)
        self._nodes = [z * min(self.temperature, 1 / self.temperature) for z in nodes]

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.noise.sample(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return relaxations.binary_concrete(a, single(noise), self.temperature)

    def mean(self, a: Tensor) -> Tensor:
        return mixture(widen(a) / self._scale, self._nodes, self._weights).to(a.dtype)

    def gate(self, a: Tensor) -> Tensor:
        return self.mean(a) * (widen(a) > self.threshold)

    def active_probability(self, a: Tensor) -> Tensor:
        p = torch.sigmoid(a.detach())
        return 1 + (p - p)  # NaN where a is

    def inactive_probability(self, a: Tensor) -> Tensor:
        p = torch.sigmoid(a.detach())
        return p - p

    def law(self, a: Tensor) -> Law:
        t, weights = unit_interval(nodes_per_unit(a), a)
        # z = logit(u) with u = t²(3 - 2t): denser towards 0 and 1, where h is a power of u.
        z = torch.log(t**2 * (3 - 2 * t)) - torch.log((1 - t) ** 2 * (1 + 2 * t))
        values = torch.sigmoid((a + z) / self.temperature)
        return values, (weights * 6 * t * (1 - t)).expand_as(values)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"temperature={self.temperature:g}", super().extra_repr()]))

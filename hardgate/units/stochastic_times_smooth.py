"""Stochastic times smooth (STS; §2.2, Eq. 2, Proposition 2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, get_args

import torch
from torch import Tensor

from hardgate._base.arguments import flag, one_of
from hardgate._base.precision import widen
from hardgate.functional import neurons
from hardgate.functional.neurons import Placement, sqrt_sigmoid
from hardgate.noise import Noise, uniform
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single


class StochasticTimesSmooth(Unit):
    """p = σ(a), b ~ Bernoulli(√p), h = b·√p: E[h] = p, P(h > 0) = √p  (Eq. 2, Prop. 2).

    The default gradient is the paper's, plain back-propagation with b held constant. Its mean
    is *half* the derivative of E[h], even for a linear loss. `corrected=True` passes the
    gradient straight through b as well, which restores the factor; an off unit then has a
    gradient, so what it gates must be evaluated (`off_gradient` is `"expert"`).

    Args:
        corrected: pass the gradient through b too.
        noise: additive noise at the sigmoid's input, such as `noise.Beta(40.1)` (App. A.2).
            Its mean replaces it in evaluation mode.
        placement: `"both"` adds the noise in both halves (A.2), `"stochastic"` only where b is
            drawn (A.4).
        eval_mode: see `hardgate.Unit`. The deterministic counterpart is p where a > threshold.

    Example:
        >>> unit = StochasticTimesSmooth(corrected=True)
        >>> unit.off_gradient, StochasticTimesSmooth().off_gradient
        ('expert', 'zero')

    References:
        Bengio, Léonard & Courville 2013, §2.2; App. A.2.
    """

    unbiased = False
    binary = False
    own_objective = True
    natural_threshold: ClassVar[float] = -math.log(3)  # √σ(a) > ½

    def __init__(
        self,
        corrected: bool = False,
        *,
        noise: Noise | None = None,
        placement: Placement = "both",
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        if noise is not None and (not isinstance(noise, Noise) or noise.multiplicative):
            raise ValueError(
                "StochasticTimesSmooth expected additive noise such as hardgate.noise.Beta(40.1) "
                f"or None, got {noise!r}."
            )
        self.corrected = flag("corrected", corrected)
        self.off_gradient = "expert" if corrected else "zero"
        self.noise = noise
        self.placement: Placement = one_of("placement", placement, get_args(Placement))
        self.shift = 0.0 if noise is None else noise.mean
        self.threshold.sub_(self.shift)
        self._nodes = [(0.0, 1.0)] if noise is None else list(zip(*noise.quadrature(), strict=True))

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        u = uniform(a, generator)
        return u if self.noise is None else (u, self.noise.sample(a, generator))

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        if self.noise is None:
            u, n = single(noise), None
        elif isinstance(noise, tuple) and len(noise) == 2:
            u, n = noise
        else:
            raise ValueError(
                "this StochasticTimesSmooth expected two noise tensors (uniform, input noise), got "
                f"{len(noise) if isinstance(noise, tuple) else 1}. "
                "Write unit(a, unit.sample_noise(a))."
            )
        return neurons.stochastic_times_smooth(
            a, u, n, placement=self.placement, corrected=self.corrected
        )

    def mean(self, a: Tensor) -> Tensor:
        x = widen(a)
        if self.placement == "both":
            return torch.sigmoid(x + self.shift).to(a.dtype)  # Prop. 2 (a)
        return (sqrt_sigmoid(x + self.shift) * sqrt_sigmoid(x)).to(a.dtype)

    def gate(self, a: Tensor) -> Tensor:
        return self.mean(a) * (widen(a) > self.threshold)

    def active_probability(self, a: Tensor) -> Tensor:
        return self._expect(sqrt_sigmoid, a)  # Prop. 2 (b)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return self._expect(_one_minus_sqrt_sigmoid, a)

    def law(self, a: Tensor) -> Law:
        if self.noise is not None:
            raise NotImplementedError(
                "StochasticTimesSmooth has a law without input noise only. Write "
                "StochasticTimesSmooth() for exact gradients."
            )
        root = sqrt_sigmoid(a)
        return torch.stack([0 * root, root]), torch.stack([1 - root, root])

    def _expect(self, g: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
        """E[g(a + n)] over the input noise, by Gauss quadrature."""
        x = widen(a)
        terms = [w * g(x + n) for n, w in self._nodes]
        if len(terms) == 1:
            return terms[0].to(a.dtype)
        return torch.stack(terms).sum(0).clamp(max=1).to(a.dtype)  # the weights' sum rounds

    def extra_repr(self) -> str:
        noise = "" if self.noise is None else f"noise={self.noise!r}, placement={self.placement!r}"
        corrected = "corrected=True" if self.corrected else ""
        return ", ".join(filter(None, [corrected, noise, super().extra_repr()]))


def _one_minus_sqrt_sigmoid(a: Tensor) -> Tensor:
    """1 - √p = (1-p)/(1 + √p), which does not cancel as p → 1."""
    return torch.sigmoid(-a) / (1 + sqrt_sigmoid(a))

"""The sigmoid gate, with or without noise (the paper's second and third baselines)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from hardgate._base.arguments import one_of
from hardgate._base.precision import widen
from hardgate.functional import neurons
from hardgate.noise import Gaussian, Noise
from hardgate.units._law import column, nodes_per_unit
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single


class Sigmoid(Unit):
    """h = σ(a + z), or σ(a)·z for multiplicative noise; never zero unless z masks it.

    Args:
        noise: None, `"gaussian"` (scale 1), or any `hardgate.noise.Noise`: additive noise enters
            before the sigmoid, multiplicative noise after it (§2). Its mean replaces it in
            evaluation mode.
        eval_mode: see `hardgate.Unit`. The threshold starts at -∞: no gate is closed until
            `calibrate_thresholds` raises it.

    Example:
        >>> Sigmoid()(torch.zeros(2)).tolist()
        [0.5, 0.5]
    """

    unbiased = True
    binary = False
    own_objective = True
    off_gradient = "zero"
    natural_threshold: ClassVar[float] = -math.inf

    def __init__(
        self, noise: str | Noise | None = None, *, eval_mode: EvalMode = "threshold"
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        if isinstance(noise, str):
            one_of("noise", noise, ("gaussian",))
            noise = Gaussian()
        if noise is not None and not isinstance(noise, Noise):
            raise TypeError(
                "noise expected None, 'gaussian' or a hardgate.noise.Noise, "
                f"got {type(noise).__name__}. Write noise=hardgate.noise.Gaussian(0.5)."
            )
        self.noise, self.never_off = noise, noise is None or noise.nonzero == 1

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        return () if self.noise is None else self.noise.sample(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        if self.noise is None:
            return neurons.sigmoid(a)
        return self._inject(a, single(noise))

    def mean(self, a: Tensor) -> Tensor:
        if self.noise is None:
            return neurons.sigmoid(a)
        return self._inject(a, self.noise.mean)

    def gate(self, a: Tensor) -> Tensor:
        return self.mean(a) * (widen(a) > self.threshold)

    def active_probability(self, a: Tensor) -> Tensor:
        return self._constant(a, self._nonzero)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return self._constant(a, 1 - self._nonzero)

    def law(self, a: Tensor) -> Law:
        if self.noise is None:
            return torch.sigmoid(a)[None], torch.ones_like(a)[None]
        count = 2 if self.noise.multiplicative else nodes_per_unit(a)
        nodes, weights = self.noise.quadrature(count)
        return self._inject(a, column(nodes, a)), column(weights, a).expand(count, *a.shape)

    @property
    def _nonzero(self) -> float:
        return 1.0 if self.noise is None else self.noise.nonzero

    def _constant(self, a: Tensor, value: float) -> Tensor:
        p = neurons.sigmoid(a.detach())
        return value + (p - p)  # NaN where a is

    def _inject(self, a: Tensor, z: Tensor | float) -> Tensor:
        if self.noise is not None and self.noise.multiplicative:
            return (neurons.sigmoid(widen(a)) * z).to(a.dtype)
        return neurons.sigmoid(a, z)

    def extra_repr(self) -> str:
        noise = "" if self.noise is None else f"noise={self.noise!r}"
        return ", ".join(filter(None, [noise, super().extra_repr()]))

"""The deterministic rectifier: the noisy rectifier at noise 0 (the paper's first baseline)."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from hardgate._base.precision import widen
from hardgate.functional import neurons
from hardgate.functional.surrogates import indicator
from hardgate.units._unit import Law, NoiseTensors, Unit


class Rectifier(Unit):
    """h = max(0, a): exact gradient, exact zeros, no noise.

    The threshold starts at -∞, so evaluation equals training until `calibrate_thresholds`
    raises it.

    Example:
        >>> Rectifier()(torch.tensor([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """

    unbiased = True
    binary = False
    own_objective = True
    starts_sparse = True
    off_gradient = "zero"
    natural_threshold: ClassVar[float] = -math.inf

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        return ()

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return neurons.rectifier(a)

    def mean(self, a: Tensor) -> Tensor:
        return neurons.rectifier(a)

    def gate(self, a: Tensor) -> Tensor:
        return neurons.rectifier(a) * (widen(a) > self.threshold)

    def active_probability(self, a: Tensor) -> Tensor:
        return indicator(a > 0, torch.sigmoid(a.detach()))

    def inactive_probability(self, a: Tensor) -> Tensor:
        return indicator(a <= 0, torch.sigmoid(a.detach()))

    def law(self, a: Tensor) -> Law:
        return torch.relu(a)[None], torch.ones_like(a)[None]

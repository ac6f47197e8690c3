"""What the units that draw a Bernoulli(σ(a)) variable and back-propagate a slope share."""

from __future__ import annotations

from abc import ABC

import torch
from torch import Tensor

from hardgate._base.precision import widen
from hardgate.functional import neurons
from hardgate.units._law import bernoulli_law
from hardgate.units._unit import Law, Unit


class BernoulliUnit(Unit, ABC):
    """h = 1 with probability σ(a), else 0; ∂L/∂a := ∂L/∂h · slope, on and off.

    In evaluation mode h = 1[a > threshold], differentiated as its mean σ(a). A unit adds
    `sample_noise` and `sample`, which holds the slope.
    """

    unbiased = False
    binary = True
    off_gradient = "expert"

    def mean(self, a: Tensor) -> Tensor:
        return neurons.sigmoid(a)

    def gate(self, a: Tensor) -> Tensor:
        return neurons.threshold(a, self.threshold, sigmoid_derivative=True)

    def law(self, a: Tensor) -> Law:
        return bernoulli_law(a)

    def active_probability(self, a: Tensor) -> Tensor:
        return torch.sigmoid(widen(a)).to(a.dtype)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return self.active_probability(-a)

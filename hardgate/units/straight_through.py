"""The straight-through estimator (ST; §4)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate import functional
from hardgate.functional import indicator, widen
from hardgate.noise import uniform
from hardgate.units._unit import EvalMode, NoiseTensors, Unit, single


class StraightThrough(Unit):
    """h = 1 with probability σ(a), back-propagated as if h were a: ∂L/∂a := ∂L/∂h  (§4).

    Biased, simple, and the paper's best. It does *not* always have the right sign, not even in
    a single layer: f(h) = 4h³ - 6h² + h has f'(0) = f'(1) = 1 but f(1) - f(0) = -1.

    Args:
        sigmoid_derivative: multiply the gradient by σ'(a). Exact in expectation for losses that
            are linear in each h_i; worse in the paper's experiment.
        sample: False gives the deterministic hard threshold 1[a > 0].
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = StraightThrough(sample=False)
        >>> a = torch.tensor([0.5, -0.5], requires_grad=True)
        >>> h = unit(a)
        >>> h.sum().backward()
        >>> h.tolist(), a.grad.tolist()
        ([1.0, 0.0], [1.0, 1.0])

    References:
        Bengio, Léonard & Courville 2013, §4; Hinton 2012, lecture 15b.
    """

    unbiased = False
    binary = True
    off_gradient = "expert"

    def __init__(
        self,
        sigmoid_derivative: bool = False,
        sample: bool = True,
        *,
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        self.sigmoid_derivative = sigmoid_derivative
        self.samples = sample

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        return uniform(a, generator) if self.samples else ()

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        if self.samples:
            return functional.straight_through(
                a, single(noise), sigmoid_derivative=self.sigmoid_derivative
            )
        return functional.threshold(a, sigmoid_derivative=self.sigmoid_derivative)

    def mean(self, a: Tensor) -> Tensor:
        if self.samples:
            return functional.sigmoid(a)
        return functional.threshold(a, sigmoid_derivative=self.sigmoid_derivative)

    def gate(self, a: Tensor) -> Tensor:
        return functional.threshold(a, self.threshold, sigmoid_derivative=self.sigmoid_derivative)

    def active_probability(self, a: Tensor) -> Tensor:
        x = widen(a)
        p = torch.sigmoid(x)
        return (p if self.samples else indicator(x > 0, p.detach())).to(a.dtype)

    def inactive_probability(self, a: Tensor) -> Tensor:
        x = widen(a)
        q = torch.sigmoid(-x)
        return (q if self.samples else indicator(x <= 0, q.detach())).to(a.dtype)

    def extra_repr(self) -> str:
        options = {
            "sigmoid_derivative=True": self.sigmoid_derivative,
            "sample=False": not self.samples,
            super().extra_repr(): True,
        }
        return ", ".join(option for option, said in options.items() if said and option)

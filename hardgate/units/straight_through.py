"""The straight-through estimator (ST; §4), and what it spends on the units that are off."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor

from hardgate._base.arguments import flag, one_of
from hardgate._base.precision import widen
from hardgate.functional import neurons
from hardgate.functional.surrogates import indicator
from hardgate.noise import uniform
from hardgate.units._law import bernoulli_law
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single

OffUnits = Literal["exact", "sampled", "ignore"]


class StraightThrough(Unit):
    """h = 1 with probability σ(a), back-propagated as if h were a: ∂L/∂a := ∂L/∂h  (§4).

    Biased, simple, and the paper's best. It does *not* always have the right sign, not even in
    a single layer: f(h) = 4h³ - 6h² + h has f'(0) = f'(1) = 1 but f(1) - f(0) = -1.

    It needs ∂L/∂h of units that are *off*, so what they gate has to be evaluated. With
    `off_units="sampled"` the gradient of an off unit is kept with probability `off_rate` and then
    weighs 1/off_rate, else it is zero: in expectation over that choice, given h, it is the exact
    straight-through gradient, and a conditional layer evaluates only the units it keeps. One
    uniform number u makes both choices: on where u < p, kept where u ≥ 1 - off_rate·(1-p), which
    has the probability off_rate among those that are off.

    Args:
        sigmoid_derivative: multiply the gradient by σ'(a). Exact in expectation for losses that
            are linear in each h_i; worse in the paper's experiment.
        sample: False gives the deterministic hard threshold 1[a > 0].
        off_units: `"exact"`: off units have their whole gradient; `"sampled"`: see above;
            `"ignore"`: none, which is cheapest, adds bias, and leaves a dead unit dead.
        off_rate: the fraction of off units that `"sampled"` keeps. In evaluation mode nothing is
            drawn and it is exact.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = StraightThrough(sample=False)
        >>> a = torch.tensor([0.5, -0.5], requires_grad=True)
        >>> h = unit(a)
        >>> h.sum().backward()
        >>> h.tolist(), a.grad.tolist()
        ([1.0, 0.0], [1.0, 1.0])
        >>> StraightThrough(off_units="ignore").off_gradient
        'zero'

    References:
        Bengio, Léonard & Courville 2013, §4; Hinton 2012, lecture 15b.
    """

    unbiased = False
    binary = True

    def __init__(
        self,
        sigmoid_derivative: bool = False,
        sample: bool = True,
        *,
        off_units: OffUnits = "exact",
        off_rate: float = 0.1,
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        self.sigmoid_derivative = flag("sigmoid_derivative", sigmoid_derivative)
        self.samples = flag("sample", sample)
        self.off_units: OffUnits = one_of("off_units", off_units, get_args(OffUnits))
        self.off_gradient = "zero" if off_units == "ignore" else "expert"
        if not 0 < off_rate < 1:
            raise ValueError(
                "off_rate expected a fraction between 0 and 1, like 0.1, "
                f"got {off_rate!r}. Write off_units='exact' for 1, off_units='ignore' for 0."
            )
        self.off_rate = float(off_rate)

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        drawn = self.samples or self.off_units == "sampled"
        return uniform(a, generator) if drawn else ()

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        if self.samples:
            h = neurons.straight_through(
                a, single(noise), sigmoid_derivative=self.sigmoid_derivative
            )
        else:
            h = neurons.threshold(a, sigmoid_derivative=self.sigmoid_derivative)
        if self.off_units == "sampled":
            return _weigh(h, self._kept(a, noise).to(widen(h).dtype) / self.off_rate)
        return self._ignore_off(h)

    def probe(self, a: Tensor, noise: NoiseTensors | None) -> Tensor | None:
        if self.off_units != "sampled" or noise is None:
            return super().probe(a, noise)
        return self._kept(a, noise)

    def _kept(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        """Which off units keep their gradient: 1, else 0."""
        u = single(noise)
        if not self.samples:
            return (u < self.off_rate).float()
        return (1 - u <= self.off_rate * torch.sigmoid(-widen(a.detach()))).float()

    def mean(self, a: Tensor) -> Tensor:
        if self.samples:
            return neurons.sigmoid(a)
        return self._ignore_off(neurons.threshold(a, sigmoid_derivative=self.sigmoid_derivative))

    def gate(self, a: Tensor) -> Tensor:
        return self._ignore_off(
            neurons.threshold(a, self.threshold, sigmoid_derivative=self.sigmoid_derivative)
        )

    def active_probability(self, a: Tensor) -> Tensor:
        x = widen(a)
        p = torch.sigmoid(x)
        return (p if self.samples else indicator(x > 0, p.detach())).to(a.dtype)

    def inactive_probability(self, a: Tensor) -> Tensor:
        x = widen(a)
        q = torch.sigmoid(-x)
        return (q if self.samples else indicator(x <= 0, q.detach())).to(a.dtype)

    def law(self, a: Tensor) -> Law:
        return bernoulli_law(a)

    def _ignore_off(self, h: Tensor) -> Tensor:
        return _weigh(h, 0.0) if self.off_units == "ignore" else h

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        return {"sample": self.samples}

    def extra_repr(self) -> str:
        rate = f", off_rate={self.off_rate}" if self.off_units == "sampled" else ""
        options = {
            "sigmoid_derivative=True": self.sigmoid_derivative,
            "sample=False": not self.samples,
            f"off_units={self.off_units!r}{rate}": self.off_units != "exact",
            super().extra_repr(): True,
        }
        return ", ".join(option for option, said in options.items() if said and option)


def _weigh(h: Tensor, off: Tensor | float) -> Tensor:
    """h bit for bit, its gradient multiplied by `off` where h is zero."""
    value = h.detach()
    weight = torch.where(value != 0, 1.0, off)
    return value + (weight * (h - value)).to(h.dtype)

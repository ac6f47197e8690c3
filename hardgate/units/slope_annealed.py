"""Slope-annealed straight-through (Chung, Ahn & Bengio 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardgate._base.arguments import flag, positive
from hardgate._base.precision import widen
from hardgate.functional import neurons, relaxations
from hardgate.functional.relaxations import hard_sigmoid
from hardgate.functional.surrogates import indicator, surrogate
from hardgate.noise import uniform
from hardgate.units._law import bernoulli_law
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single


class SlopeAnnealed(Unit):
    """h = 1 with probability σ(a), back-propagated as the hard sigmoid clip((αa + 1)/2, 0, 1).

    The slope α starts at 1. Raise it during training: `unit.steepen_()` once per epoch is the
    authors' schedule, α = min(5, 1 + 0.04·epoch). The hard sigmoid then comes
    closer to the step 1[a > 0], and fewer units have a gradient: only those with |a| < 1/α.
    α is part of `state_dict()`.

    Biased. The authors take the step itself, `sample=False`, which is what the slope converges
    to; or they draw from the hard sigmoid. Here the sampled form draws from σ(a), like every
    binary unit of this library, so that only the gradient differs.

    Args:
        slope: α at the start.
        sample: False gives the deterministic step 1[a > 0].
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = SlopeAnnealed()
        >>> for epoch in range(3):
        ...     unit.steepen_()
        >>> round(unit.slope.item(), 2)
        1.12

    References:
        Chung, Ahn & Bengio 2017, Hierarchical multiscale recurrent neural networks, §3.3.
    """

    unbiased = False
    binary = True
    off_gradient = "expert"
    slope: Tensor

    def __init__(
        self, slope: float = 1.0, sample: bool = True, *, eval_mode: EvalMode = "threshold"
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        self.register_buffer("slope", torch.tensor(positive("slope", slope), dtype=torch.float32))
        self.samples = flag("sample", sample)

    @torch.no_grad()
    def steepen_(self, by: float = 0.04, most: float = 5.0) -> None:
        """Raise α by this much, in place, up to `most`; a slope beyond `most` stays."""
        self.slope.copy_(torch.maximum(self.slope, (self.slope + by).clamp(max=most)))

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        return uniform(a, generator) if self.samples else ()

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        if not self.samples:
            return self._step(a, 0.0)
        return relaxations.slope_annealed(a, single(noise), self.slope)

    def mean(self, a: Tensor) -> Tensor:
        return neurons.sigmoid(a) if self.samples else self._step(a, 0.0)

    def gate(self, a: Tensor) -> Tensor:
        return self._step(a, self.threshold)

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

    def _step(self, a: Tensor, threshold: Tensor | float) -> Tensor:
        x = widen(a)
        return surrogate((x > threshold).to(x.dtype), hard_sigmoid(x, self.slope)).to(a.dtype)

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        return {"sample": self.samples}

    def extra_repr(self) -> str:
        slope = "" if self.slope.is_meta else f"slope={self.slope:g}"
        sample = "" if self.samples else "sample=False"
        return ", ".join(filter(None, [slope, sample, super().extra_repr()]))

"""Gumbel-Rao Monte Carlo, binary (Paulus, Maddison & Krause 2021)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import positive
from hardgate.functional import relaxations
from hardgate.functional.concrete import table
from hardgate.functional.relaxations import of_outcome
from hardgate.noise import uniform
from hardgate.units._bernoulli import BernoulliUnit
from hardgate.units._unit import EvalMode, NoiseTensors


class GRMCK(BernoulliUnit):
    """h = 1 with probability σ(a); the slope of `STGumbel`, averaged over its noise given h.

    Rao-Blackwellised: it has the mean gradient of `STGumbel` with less variance, which falls with
    K. For a binary unit, the average over infinitely many draws is a one-dimensional integral.
    This is the default. It is computed by quadrature with nodes where the integrand is large, so
    it is accurate at small λ and extreme p, too (see `hardgate.functional.concrete.mean_slope`).

    Args:
        temperature: λ. Small: less bias, more variance.
        samples: K, or None for K = ∞; the noise is then one number per unit, else 1 + K.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = GRMCK(temperature=1.0)
        >>> a = torch.zeros(3, requires_grad=True)
        >>> unit(a).sum().backward()
        >>> round(a.grad[0].item(), 4)  # E[s(1-s)] for s uniform on (0, 1)
        0.1667

    References:
        Paulus, Maddison & Krause 2021, Rao-Blackwellizing the straight-through Gumbel-softmax
        gradient estimator.
    """

    def __init__(
        self,
        temperature: float = 0.5,
        samples: int | None = None,
        *,
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        self.temperature = positive("temperature", temperature, like=0.5)
        if samples is not None and (not isinstance(samples, int) or samples < 1):
            raise ValueError(
                "GRMCK expected samples=None (K = ∞, by quadrature) or a whole number of at least "
                f"1, got {samples!r}."
            )
        self.samples = samples
        self._mean_slope = table(self.temperature) if samples is None else None

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        if self.samples is None:
            return uniform(a, generator)
        return tuple(uniform(a, generator) for _ in range(1 + self.samples))

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        tensors = noise if isinstance(noise, tuple) else (noise,)
        if len(tensors) != 1 + (self.samples or 0):
            raise ValueError(
                f"this GRMCK expected {1 + (self.samples or 0)} noise tensors, got {len(tensors)}. "
                "Write unit(a, unit.sample_noise(a))."
            )
        u, *v = tensors
        if self._mean_slope is not None:
            return of_outcome(a, u, self._mean_slope)
        return relaxations.gr_mck(a, u, v, self.temperature)

    def extra_repr(self) -> str:
        samples = "" if self.samples is None else f"samples={self.samples}"
        parts = [f"temperature={self.temperature:g}", samples, super().extra_repr()]
        return ", ".join(filter(None, parts))

"""The noisy rectifier (§2.1, Proposition 1)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from hardgate._base.arguments import one_of
from hardgate._base.precision import widen
from hardgate.functional import neurons
from hardgate.noise import Gaussian, Logistic
from hardgate.units._law import nodes_per_unit, unit_interval
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single

NOISES = {"gaussian": Gaussian, "logistic": Logistic}


class NoisyRectifier(Unit):
    """h = max(0, a + z), z zero-mean noise: sparse, and trained by plain back-propagation.

    With logistic noise P(h > 0) = σ(a) and E[h] = softplus(a)  (Proposition 1); with Gaussian
    noise P(h > 0) = Φ(a/scale). The gradient 1[h > 0] is exact for the noisy objective.

    In evaluation mode h = E[h | a] where a > threshold, else 0. The 90 % quantile of `a` is
    negative in a sparse layer, and max(0, a) above it would be zero almost everywhere.

    Args:
        noise: `"gaussian"` or `"logistic"`.
        scale: the noise's scale; 1.0 worked best in the paper.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = NoisyRectifier("logistic")
        >>> a = torch.full((4, 3), -2.0)
        >>> tuple(unit(a).shape), bool((unit(a) >= 0).all())
        ((4, 3), True)

    References:
        Bengio, Léonard & Courville 2013, §2.1.
    """

    unbiased = True
    binary = False
    own_objective = True
    starts_sparse = True
    off_gradient = "zero"

    def __init__(
        self,
        noise: Literal["gaussian", "logistic"] = "gaussian",
        scale: float = 1.0,
        *,
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        if not isinstance(noise, str):
            raise TypeError(
                f"noise expected 'gaussian' or 'logistic', and its scale besides, got {noise!r}. "
                "Write NoisyRectifier('gaussian', scale=2.0)."
            )
        self.noise = NOISES[one_of("noise", noise, tuple(NOISES))](scale)

    @property
    def rectified_noise(self) -> float | None:
        cls = type(self)  # a subclass that draws in another way is not drawn as this one
        same = cls.sample is NoisyRectifier.sample and cls.forward is Unit.forward
        same = same and cls.sample_noise is NoisyRectifier.sample_noise
        return self.noise.scale if same and type(self.noise) is Gaussian else None

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.noise.sample(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return neurons.noisy_rectifier(a, single(noise))

    def mean(self, a: Tensor) -> Tensor:
        return self.noise.rectified(widen(a)).to(a.dtype)  # Prop. 1 (b)

    def gate(self, a: Tensor) -> Tensor:
        return self.mean(a) * (widen(a) > self.threshold)

    def active_probability(self, a: Tensor) -> Tensor:
        return self.noise.positive(widen(a)).to(a.dtype)  # Prop. 1 (a)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return self.active_probability(-a)

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        kind = next(name for name, cls in NOISES.items() if cls is type(self.noise))
        return {"noise": kind, "scale": self.noise.scale}

    def law(self, a: Tensor) -> Law:
        t, weights = unit_interval(nodes_per_unit(a) - 1, a)
        # x = h/scale in (0, top), with nodes at squares: denser near 0.
        top = (a.detach() / self.noise.scale).clamp(min=0) + self.noise.reach
        x, dx = top * t.square(), top * 2 * t * weights
        density = self.noise.density(x - a / self.noise.scale)
        off = self.inactive_probability(a)
        values = torch.cat([torch.zeros_like(a)[None], self.noise.scale * x])
        return values, torch.cat([off[None], density * dx])

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"noise={self.noise!r}", super().extra_repr()]))

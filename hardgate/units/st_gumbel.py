"""Straight-through Gumbel, binary (Jang, Gu & Poole 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import positive
from hardgate.functional import relaxations
from hardgate.noise import Logistic
from hardgate.units._bernoulli import BernoulliUnit
from hardgate.units._unit import EvalMode, NoiseTensors, single


class STGumbel(BernoulliUnit):
    """h = 1[a + z > 0], z logistic, back-propagated as the binary Concrete σ((a + z)/λ).

    The slope is s(1-s)/λ, s = σ((a + z)/λ): hard values, a relaxed gradient. Biased; `GRMCK` has
    the same mean and less variance.

    Args:
        temperature: λ. Small: less bias, more variance.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = STGumbel(temperature=0.5)
        >>> a = torch.zeros(1, requires_grad=True)
        >>> unit(a, torch.tensor([0.0001])).backward()  # z, barely on
        >>> round(a.grad.item(), 4)
        0.5

    References:
        Jang, Gu & Poole 2017, Categorical reparameterization with Gumbel-softmax, §2.2.
    """

    def __init__(self, temperature: float = 0.5, *, eval_mode: EvalMode = "threshold") -> None:
        super().__init__(eval_mode=eval_mode)
        self.temperature = positive("temperature", temperature, like=0.5)
        self.noise = Logistic()

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return self.noise.sample(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return relaxations.st_gumbel(a, single(noise), self.temperature)

    def extra_repr(self) -> str:
        return ", ".join(filter(None, [f"temperature={self.temperature:g}", super().extra_repr()]))

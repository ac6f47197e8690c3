"""Gapped straight-through, binary (Fan, Chi, Rudnicky & Ramadge 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import not_negative, positive
from hardgate.functional import relaxations
from hardgate.noise import uniform
from hardgate.units._bernoulli import BernoulliUnit
from hardgate.units._unit import EvalMode, NoiseTensors, single


class GappedST(BernoulliUnit):
    """h = 1 with probability σ(a); the slope s(1-s)/τ, s = σ(max(y, gap)/τ), y = (2h - 1)a.

    Like that of `GRMCK`, the slope depends on h and on no other noise. Instead of averaging, it
    takes the logit of the outcome to be at least `gap`. Biased and cheap, with little variance.

    Args:
        gap: the least logit of the outcome, at least 0.
        temperature: τ.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> unit = GappedST(gap=0.0)
        >>> a = torch.tensor([2.0], requires_grad=True)
        >>> unit(a, torch.tensor([0.99])).backward()  # off, against the odds: y = -2
        >>> a.grad.item()
        0.25

    References:
        Fan, Chi, Rudnicky & Ramadge 2022, Training discrete deep generative models via gapped
        straight-through estimator.
    """

    def __init__(
        self, gap: float = 1.0, temperature: float = 1.0, *, eval_mode: EvalMode = "threshold"
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        self.gap = not_negative("gap", gap)
        self.temperature = positive("temperature", temperature, like=0.5)

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return uniform(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return relaxations.gapped_straight_through(a, single(noise), self.gap, self.temperature)

    def extra_repr(self) -> str:
        options = f"gap={self.gap:g}, temperature={self.temperature:g}"
        return ", ".join(filter(None, [options, super().extra_repr()]))

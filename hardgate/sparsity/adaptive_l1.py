"""The L1 penalty whose weight follows the measured sparsity (App. A.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import positive
from hardgate._base.distributed import mean
from hardgate._base.precision import widen
from hardgate.sparsity._controller import Controller, examples
from hardgate.units._unit import Unit


class AdaptiveL1(Controller):
    """λ · Σ_i |h_i|, batch mean; λ rises while too many units are on, falls while too few.

    With s_e the fraction of non-zero h in the batch: λ ← λ(1+step) when s_e > rate + band,
    λ ← λ/(1+step) when s_e < rate - band, between `least` and `most`. The penalty of a batch
    uses the λ that the batches before it left.

    Args:
        rate: the target fraction of non-zero units.
        band: the dead zone around it.
        weight: λ at the start.
        step: the multiplicative step.
        least, most: the range of λ.

    Example:
        >>> from hardgate import Rectifier
        >>> control, unit, a = AdaptiveL1(0.1), Rectifier(), torch.ones(4, 3)
        >>> before = control.weight.item()
        >>> _ = control(unit, a, unit(a))  # everything is on
        >>> control.weight.item() > before
        True
    """

    weight: Tensor

    def __init__(
        self,
        rate: float,
        band: float = 0.01,
        *,
        weight: float = 1e-5,
        step: float = 0.1,
        least: float = 1e-13,
        most: float = 1.0,
    ) -> None:
        super().__init__(rate)
        if not (band >= 0 and 0 < least <= most):
            raise ValueError(
                "AdaptiveL1 expected band ≥ 0 and 0 < least ≤ most, got "
                f"band={band!r}, least={least!r}, most={most!r}."
            )
        self.band, self.least, self.most = band, least, most
        self.step = positive("step", step)
        self.register_buffer("weight", torch.tensor(positive("weight", weight)))

    def penalty(self, unit: Unit, a: Tensor, h: Tensor) -> Tensor:
        if unit.needs_loss:
            raise ValueError(
                f"AdaptiveL1 expected a unit that back-propagates, got {type(unit).__name__}: no "
                "gradient of |h| reaches its a. Use KLTarget or FiringRate."
            )
        size = mean(examples(widen(h)).abs().sum(-1), self.synchronised)
        penalty = self.weight.clone() * size
        if self.training:
            on = mean(examples((h.detach() != 0).float()), self.synchronised)
            self._adapt(on.mean())
        return penalty

    @torch.no_grad()
    def _adapt(self, density: Tensor) -> None:
        up, down = density > self.rate + self.band, density < self.rate - self.band
        factor = torch.where(up, 1 + self.step, torch.where(down, 1 / (1 + self.step), 1.0))
        self.weight.mul_(factor.to(self.weight)).clamp_(self.least, self.most)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, band={self.band}, step={self.step}"

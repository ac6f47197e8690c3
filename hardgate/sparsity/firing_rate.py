"""Keeping units alive: a push on each unit's bias towards a target firing rate (§2.1, end)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hardgate._base.arguments import positive, proper_decay
from hardgate._base.distributed import mean
from hardgate._base.precision import widen
from hardgate.sparsity._controller import Controller, examples
from hardgate.units._unit import Unit


class FiringRate(Controller):
    """Moves each unit's bias so that its moving average of "is non-zero" reaches `rate`.

    The penalty has the value zero and the gradient strength·clip((r̄_i - rate)/rate, -1, 1) at
    the bias of unit i: bounded, and there even when the unit is never on, so that the optimiser
    brings every dead unit back. Needs no gradient through h.

    Args:
        rate: the target fraction of the time that each unit is non-zero.
        layer: the layer that computes `a`. Its bias `[D]` is pushed and nothing else moves, as in
            the paper. None pushes `a`, alike for all examples, which also reaches the weights.
        strength: the largest gradient at a bias.
        decay: of the moving average, per step.

    Example:
        >>> from hardgate import StraightThrough
        >>> layer, unit = nn.Linear(4, 3), StraightThrough()
        >>> control = FiringRate(0.1, layer)
        >>> a = layer(torch.randn(8, 4)) - 40  # dead
        >>> control(unit, a, unit(a)).backward()
        >>> layer.bias.grad.tolist(), layer.weight.grad
        ([-0.10000000149011612, -0.10000000149011612, -0.10000000149011612], None)
    """

    firing: Tensor
    weight: Tensor

    def __init__(
        self,
        rate: float,
        layer: nn.Linear | None = None,
        *,
        strength: float = 0.1,
        decay: float = 0.9,
    ) -> None:
        super().__init__(rate)
        self.decay = proper_decay(decay)
        self.strength = positive("strength", strength)
        if layer is not None and not isinstance(getattr(layer, "bias", None), Tensor):
            raise TypeError(
                "FiringRate expected a layer with a bias, such as nn.Linear(400, 2000), got "
                f"{layer!r}. Write FiringRate(rate, layer), or FiringRate(rate) to push a."
            )
        self._layer = (layer,)  # in a tuple: the model owns the layer, not this module
        self.register_buffer("firing", torch.zeros(0))
        self.register_buffer("weight", torch.zeros(()))

    def penalty(self, unit: Unit, a: Tensor, h: Tensor) -> Tensor:
        fired = mean(examples((h.detach() != 0).float()), self.synchronised)
        if self.training:
            self._track(fired)
        push = ((self.average() - self.rate) / self.rate).clamp(-1, 1) * self.strength
        (layer,) = self._layer
        moved = mean(examples(widen(a)), self.synchronised) if layer is None else layer.bias
        term = (push.to(moved) * moved).sum()
        return term - term.detach()

    def average(self) -> Tensor:
        """r̄: the moving average of each unit's firing rate (the target before the first call)."""
        if self.firing.numel() == 0:
            return torch.full_like(self.weight, self.rate)
        return self.firing / self.weight.clamp(min=torch.finfo(self.weight.dtype).tiny)

    @torch.no_grad()
    def _track(self, fired: Tensor) -> None:
        if self.firing.numel() == 0:
            with torch.inference_mode(False):  # the state outlives the mode
                self.firing = fired.new_zeros(fired.shape, dtype=self.weight.dtype)
        if self.firing.shape != fired.shape:
            raise ValueError(
                f"FiringRate expected the {len(self.firing)} units that it was first used with, "
                f"got {len(fired)}. Give each layer a controller of its own: FiringRate(rate)."
            )
        self.firing.mul_(self.decay).add_(fired, alpha=1 - self.decay)
        self.weight.mul_(self.decay).add_(1 - self.decay)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, strength={self.strength}, decay={self.decay}"

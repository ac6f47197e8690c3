"""What every sparsity controller is: `penalty = controller(unit, a, h)`, added to the loss."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from hardgate._base.arguments import fraction
from hardgate._base.distributed import active
from hardgate._base.lazy_state import LazyState
from hardgate.units._unit import Unit


class Controller(LazyState, ABC):
    """Steers the fraction of units that are non-zero towards `rate`.

    Called once per training step; its state moves only in training mode and is in `state_dict`.

    Args:
        rate: the target fraction, in (0, 1); 0.1 in the paper.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = fraction("rate", rate)

    def forward(self, unit: Unit, a: Tensor, h: Tensor) -> Tensor:
        """The penalty, a scalar to add to the loss.

        Args:
            unit: the unit that produced h.
            a: its pre-activations `[..., D]`.
            h: its output.
        """
        if not isinstance(unit, Unit) or a.shape != h.shape:
            raise TypeError(
                f"{type(self).__name__} expected (unit, a, h) with a and h of one shape, got "
                f"({type(unit).__name__}, {tuple(a.shape)}, {tuple(h.shape)}). "
                "Write h = unit(a); penalty = controller(unit, a, h)."
            )
        if unit.never_off:
            raise ValueError(
                f"{type(self).__name__} expected a unit that can be off, got {unit!r}, whose h is "
                "never zero: there is no sparsity to control. Leave the controller out."
            )
        if a.numel() == 0 and not active(self.synchronised):
            return a.sum()  # an empty batch says nothing, and moves nothing
        return self.penalty(unit, a, h)

    @abstractmethod
    def penalty(self, unit: Unit, a: Tensor, h: Tensor) -> Tensor:
        """The penalty for a batch that is not empty."""


def examples(x: Tensor) -> Tensor:
    """`[..., D]` → `[N, D]`: all leading axes are examples."""
    x = x if x.dim() else x.unsqueeze(0)
    return x.unsqueeze(0).flatten(0, -2)  # not reshape(-1, D): D may be 0

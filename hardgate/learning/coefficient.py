"""The best multiple of a control variate, learnt from past samples."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.averages import decay_
from hardgate._base.distributed import total
from hardgate._base.lazy_state import LazyState


class Coefficient(LazyState):
    """α that gives g + α v the least variance, where E[v] = 0: α = -E[g·v] / E[v·v].

    Both means are moving averages, and α is read before the present samples move them: the
    paper's Corollary 1, for any control variate. Minimising E‖g + α v‖² is minimising the
    variance, as v does not move the mean.

    Args:
        start: α before the first update.
        per_unit: one α for each unit, not one for all.
        decay: of the averages, per update.
    """

    numerator: Tensor
    denominator: Tensor

    def __init__(self, start: float, *, per_unit: bool = False, decay: float = 0.99) -> None:
        super().__init__()
        self.start, self.per_unit, self.decay = start, per_unit, decay
        self.register_buffer("numerator", torch.zeros(0))
        self.register_buffer("denominator", torch.zeros(0))

    def value(self) -> Tensor:
        """α, `[D]` or `[]`."""
        numerator, start = self.numerator, self.start
        if numerator.numel() == 0:
            return numerator.new_tensor(start)
        # Where v was always zero the ratio is 0/0, or 1/0 if its square underflowed.
        return (numerator / self.denominator).nan_to_num_(start, start, start)

    def update(self, g: Tensor, v: Tensor) -> None:
        """Move the averages by estimates g and control variates v, both `[..., D]`."""
        units = g.shape[-1:] if self.per_unit else torch.Size()
        if self.per_unit:
            sums = -(g * v).sum_to_size(units), v.square().sum_to_size(units)
        else:
            v = v.flatten()
            sums = -g.flatten().dot(v), v.dot(v)
        product, square = (total(each, self.synchronised) for each in sums)
        numerator = self.numerator
        if numerator.numel() == 0:
            self.numerator = numerator = numerator.new_zeros(units, device=g.device)
            self.denominator = torch.zeros_like(numerator)
        if numerator.shape != units:
            known, got = (str(list(shape)) for shape in (numerator.shape, units))
            raise ValueError(
                f"a control variate expected coefficients {known}, as it was first used or stored "
                f"with, got {got}. Give each layer one of its own, and load only what the same "
                "options have saved."
            )
        decay_((numerator, self.denominator), (product, square), self.decay)

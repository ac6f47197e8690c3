"""E[x] / E[y] from past samples, of a size that the first call decides."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import proper_decay
from hardgate._base.averages import decay_
from hardgate._base.distributed import total
from hardgate._base.lazy_state import LazyState
from hardgate.estimators._refusals import other_units


class Ratio(LazyState):
    """Σ x / Σ y by decaying sums; 0 where nothing is known.

    Args:
        decay: of both sums, per update.
    """

    numerator: Tensor
    denominator: Tensor
    state = ("numerator", "denominator")

    def __init__(self, decay: float) -> None:
        super().__init__()
        self.decay = proper_decay(decay)
        self.register_buffer("numerator", torch.zeros(0))
        self.register_buffer("denominator", torch.zeros(0))

    def value(self, like: Tensor, *shape: int) -> Tensor:
        """The ratio, in the dtype of `like`; an error where it was learnt for another shape."""
        numerator = self.numerator
        if numerator.numel() == 0:
            return like.new_zeros(shape)
        if numerator.shape != shape:
            raise other_units(numerator.shape[-1], shape[-1])
        return (numerator / self.denominator).nan_to_num_(0.0, 0.0, 0.0).to(like)

    def update(self, x: Tensor, y: Tensor) -> None:
        """Move the sums by x, and by y of the same shape or one that broadcasts to it."""
        x, y = (total(each, self.synchronised) for each in (x, y))
        numerator = self.numerator
        if numerator.numel() == 0:
            kept = numerator.dtype
            self.numerator = numerator = torch.zeros_like(x, dtype=kept)
            self.denominator = torch.zeros_like(y, dtype=kept)
        decay_((numerator, self.denominator), (x, y), self.decay)

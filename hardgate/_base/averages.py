"""Decaying averages over past batches: the one place that keeps them."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import proper_decay
from hardgate._base.distributed import total
from hardgate._base.lazy_state import LazyState


class DecayingRatio(LazyState):
    """Σ x / Σ y over past batches, where both sums decay by the same factor per batch.

    The factor between a sum and a mean is in both sums and cancels: the ratio is a proper weighted
    mean from the first batch on. Read it before the present batch updates it, so that an estimate
    never depends on statistics of its own samples. The first update decides the shapes; so does
    `load_state_dict`. With `synchronised`, x and y are summed over all processes: the ratio is
    then that of all samples, which a mean of ratios would not be.

    Args:
        decay: of both sums, per update, in [0, 1).
        start: the ratio before the first update, and wherever Σ y is zero.
    """

    numerator: Tensor
    denominator: Tensor
    state = ("numerator", "denominator")

    def __init__(self, decay: float, start: float = 0.0) -> None:
        super().__init__()
        self.decay, self.start = proper_decay(decay), start
        self.register_buffer("numerator", torch.zeros(0))
        self.register_buffer("denominator", torch.zeros(0))

    @property
    def empty(self) -> bool:
        """Whether nothing has been learnt yet."""
        return self.numerator.numel() == 0

    def ratio(self, *shape: int) -> Tensor:
        """Σ x / Σ y, of this shape if one is given; `start` before the first update."""
        if self.empty:
            return self.numerator.new_full(shape, self.start)
        if shape:
            self.check_shape(*shape)
        # 0/0 where y was always zero, 1/0 where it underflowed.
        ratio = self.numerator / self.denominator
        return ratio.nan_to_num(self.start, self.start, self.start)

    def check_shape(self, *shape: int) -> None:
        """Raise where the averages were learnt for another shape: they would broadcast."""
        if not self.empty and self.numerator.shape != shape:
            known, got = list(self.numerator.shape), list(shape)
            raise ValueError(
                f"learnt averages expected the shape {known} that they were first used or loaded "
                f"with, got {got}. Give each layer an estimator or a unit of its own, and load "
                "only what was saved with the same options."
            )

    @torch.no_grad()
    def update_(self, x: Tensor, y: Tensor) -> None:
        """Add x and y to the decayed sums.

        A batch that is not finite changes nothing, and neither does one whose y is all zero.
        """
        self.check_shape(*x.shape)
        x, y = (total(each, self.synchronised) for each in (x, y))
        if self.empty:
            self.numerator = self.numerator.new_zeros(x.shape, device=x.device)
            self.denominator = self.denominator.new_zeros(y.shape, device=y.device)
        decay_((self.numerator, self.denominator), (x, y), self.decay, when=y.any())

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


def decay_(
    sums: tuple[Tensor, ...], by: tuple[Tensor, ...], decay: float, when: Tensor | bool = True
) -> None:
    """In place: sum ← decay · sum + by, for all sums, or for none.

    None moves where `when` is False, or where one of them would not be finite. There is no branch,
    so that it can be compiled.
    """
    moved = [torch.add(x.detach().to(s), s, alpha=decay) for s, x in zip(sums, by, strict=True)]
    good = torch.stack([m.sum() for m in moved]).sum().isfinite() & when  # NaN and ±∞ stay in a sum
    for s, m in zip(sums, moved, strict=True):
        s.copy_(m.where(good, s))

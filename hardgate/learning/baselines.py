"""Baselines L̄_i for the score estimator (h - σ(a))(L - L̄_i)  (Corollary 1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hardgate._base.arguments import proper_decay
from hardgate._base.distributed import active, total
from hardgate._base.lazy_state import LazyState

__all__ = ["Baseline", "MeanBaseline", "OptimalBaseline"]


class Baseline(LazyState, ABC):
    """L̄ = E[w L] / E[w] by two moving averages per unit, read before they are updated.

    The averages are kept as the decaying sums Σ w L and Σ w: the factor between a sum and a
    mean is in both and cancels. Their ratio is a proper weighted mean from the first update on;
    before it L̄ = 0. Across processes (`hardgate.synchronise_`) the numerators are summed and
    the denominators are: their ratio is then that of all samples, as a mean of ratios is not.

    Args:
        decay: of both sums, per update, in [0, 1).
    """

    numerator: Tensor
    denominator: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = proper_decay(decay)
        self.register_buffer("numerator", torch.zeros(0))
        self.register_buffer("denominator", torch.zeros(0))

    @abstractmethod
    def weight(self, score: Tensor) -> Tensor:
        """w, from the scores h - σ(a)."""

    def value(self) -> Tensor:
        """L̄, one per unit (a single 0 before the first update)."""
        if self.numerator.numel() == 0:
            return self.numerator.new_zeros(())
        known = self.denominator > 0
        return torch.where(known, self.numerator / self.denominator.where(known, 1), 0)

    @torch.no_grad()
    def step(
        self,
        scores: Sequence[Tensor],
        losses: Sequence[Tensor],
        *,
        update: bool = True,
        masks: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """L̄ as it stood before this batch, which then moves it.

        Args:
            scores: h - σ(a), `[..., D]`, of each call.
            losses: of each call, such that they broadcast with its scores.
            update: False only reads.
            masks: of each call, of the shape of its losses: which of them count.
        """
        weights = self._weights(scores)
        if masks is not None:  # w = 0 where nothing is known, not only L
            pairs = zip(weights, masks, strict=True)
            weights = [w if mask is None else w * mask for w, mask in pairs]
        before = self.value()
        if update:
            before = self._move(weights, losses, before)
        return before

    @torch.no_grad()
    def update(self, scores: Sequence[Tensor], losses: Sequence[Tensor]) -> None:
        """Move the averages by one batch, as `step` does."""
        self._move(self._weights(scores), losses, self.value())

    def _weights(self, scores: Sequence[Tensor]) -> list[Tensor]:
        weights = [self.weight(score) for score in scores]
        known = self.numerator.numel() or weights[0].shape[-1]
        for w in weights:
            if w.shape[-1] != known:
                raise ValueError(
                    f"a baseline expected the {known} units that it was first used with, got "
                    f"{w.shape[-1]}. Give each layer a unit or an estimator of its own, or share "
                    "one that has the same baseline for every unit: 'mean' instead of 'optimal'."
                )
        return weights

    def _move(self, weights: list[Tensor], losses: Sequence[Tensor], before: Tensor) -> Tensor:
        if not any(w.numel() for w in weights) and not active(self.synchronised):
            return before
        units = weights[0].shape[-1:]
        if self.numerator.numel() == 0:
            self.numerator = self.numerator.new_zeros(units, device=weights[0].device)
            self.denominator = torch.zeros_like(self.numerator)
        weighted = [w * L for w, L in zip(weights, losses, strict=True)]
        # Numerators and denominators are summed over processes, not their ratios.
        num, den = (total(_sum(each, units), self.synchronised) for each in (weighted, weights))
        said = den.any()
        num = self.decay * self.numerator + num.to(self.numerator.dtype)
        den = self.decay * self.denominator + den.to(self.denominator.dtype)
        # One bad batch must not spoil all that follow, and one that says nothing moves nothing.
        good = num.isfinite() & said
        num, den = num.where(good, self.numerator), den.where(good, self.denominator)
        if torch.compiler.is_compiling():
            before, num, den = _at_once(before, num, den)
        self.numerator.copy_(num)
        self.denominator.copy_(den)
        return before

    def extra_repr(self) -> str:
        return f"decay={self.decay}"


class OptimalBaseline(Baseline):
    """L̄_i = E[(h_i - σ(a_i))² L] / E[(h_i - σ(a_i))²]: least variance, one per unit  (Cor. 1)."""

    def weight(self, score: Tensor) -> Tensor:
        return score.square()


class MeanBaseline(Baseline):
    """L̄ = E[L]: the moving average of the loss, the same for every unit."""

    def weight(self, score: Tensor) -> Tensor:
        return torch.ones_like(score[..., :1])


BASELINES: dict[str, Callable[[float], Baseline]] = {
    "optimal": OptimalBaseline,
    "mean": MeanBaseline,
}


def _sum(tensors: Sequence[Tensor], units: torch.Size) -> Tensor:
    """The sum over all calls and all axes but the last."""
    return torch.stack([t.sum_to_size(units) for t in tensors]).sum(0)


# What only the backward pass needs, a compiler may compute there: from averages updated since.
# Here L̄ comes out of one opaque operation with its successors, which the forward pass needs.


@torch.library.custom_op("hardgate::at_once", mutates_args=())
def _at_once(before: Tensor, num: Tensor, den: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return before.clone(), num.clone(), den.clone()


@_at_once.register_fake
def _(before: Tensor, num: Tensor, den: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(before), torch.empty_like(num), torch.empty_like(den)

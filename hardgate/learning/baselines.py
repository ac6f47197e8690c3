"""Baselines L̄_i for the score estimator (h - σ(a))(L - L̄_i)  (Corollary 1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hardgate._base.averages import DecayingRatio
from hardgate._base.distributed import active
from hardgate._base.torch_state import compiling

__all__ = ["Baseline", "MeanBaseline", "OptimalBaseline"]


class Baseline(DecayingRatio, ABC):
    """L̄ = E[w L] / E[w] by two moving averages per unit, read before they are updated.

    Before the first update L̄ = 0. Across processes (`hardgate.synchronise_`) L̄ is that of all
    samples.

    Args:
        decay: of both averages, per update, in [0, 1).
    """

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__(decay)

    @abstractmethod
    def weight(self, score: Tensor) -> Tensor:
        """w, from the scores h - σ(a)."""

    def value(self) -> Tensor:
        """L̄, one per unit (a single 0 before the first update)."""
        return self.ratio()

    @torch.no_grad()
    def step(
        self,
        scores: Sequence[Tensor],
        losses: Sequence[Tensor],
        *,
        update: bool = True,
        masks: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        """L̄ as it stood before this batch, which then updates it.

        Args:
            scores: h - σ(a), `[..., D]`, of each call.
            losses: of each call, such that they broadcast with its scores.
            update: False only reads.
            masks: of each call, of the shape of its losses: which of them count.
        """
        weights = [self.weight(score) for score in scores]
        self._check_units(weights)
        if masks is not None:  # w = 0 where nothing is known, not only L
            pairs = zip(weights, masks, strict=True)
            weights = [w if mask is None else w * mask for w, mask in pairs]
        before = self.value()
        if update and (any(w.numel() for w in weights) or active(self.synchronised)):
            units = weights[0].shape[-1:]
            weighted = [w * L for w, L in zip(weights, losses, strict=True)]
            x, y = _sum(weighted, units), _sum(weights, units)
            if compiling():
                before, x, y = _together(before, x, y)
            self.update_(x, y)
        return before

    def _check_units(self, weights: Sequence[Tensor]) -> None:
        known = self.numerator.numel() or weights[0].shape[-1]
        for w in weights:
            if w.shape[-1] != known:
                raise ValueError(
                    f"a baseline expected the {known} units that it was first used with, got "
                    f"{w.shape[-1]}. Give each layer a unit or an estimator of its own, or share "
                    "one that has the same baseline for every unit: 'mean' instead of 'optimal'."
                )


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


# A compiler may compute in the backward pass what only that pass needs: L̄, from averages that were
# updated since. One opaque operation that also gives x and y, which the forward pass needs, keeps
# L̄ in the forward pass.


@torch.library.custom_op("hardgate::together", mutates_args=())
def _together(before: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return before.clone(), x.clone(), y.clone()


@_together.register_fake
def _(before: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(before), torch.empty_like(x), torch.empty_like(y)

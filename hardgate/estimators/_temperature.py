"""The temperature λ of a relaxation, fixed or learnt on the variance."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hardgate._base.lazy_state import LazyState
from hardgate.estimators._adam import Adam

_RATE = 0.02


class Temperature(LazyState):
    """λ = exp(log λ), so that every step keeps it positive.

    Args:
        start: λ at the start.
        learn: whether it moves at all.
    """

    log: Tensor

    def __init__(self, start: float, *, learn: bool) -> None:
        super().__init__()
        if not (isinstance(start, (int, float)) and 0 < start < math.inf):
            raise ValueError(
                f"temperature expected a positive number, got {start!r}. Write temperature=0.5."
            )
        self.learns = learn
        self.register_buffer("log", torch.tensor([math.log(start)]), persistent=learn)
        if learn:
            self.adam = Adam(_RATE)

    def learnt(self, prefix: str) -> tuple[str, ...]:
        """The names of what moves, for an estimator's `state`."""
        names = ("log", "adam.first", "adam.second", "adam.steps") if self.learns else ()
        return tuple(f"{prefix}.{name}" for name in names)

    def leaf(self, *, learning: bool) -> Tensor:
        """log λ, to be differentiated where it is learnt."""
        log = self.log.detach().clone()
        return log.requires_grad_() if learning and self.learns else log

    def learn(self, loss: Tensor, leaf: Tensor) -> None:
        """One step down the gradient of `loss`, where λ is learnt."""
        if leaf.requires_grad:
            (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
            self.adam.step(self.log, gradient)

    def extra_repr(self) -> str:
        return f"{self.log.exp().item():.3g}"

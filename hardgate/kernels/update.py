"""A step of SGD taken inside the backward pass, where the rows to change are in the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from hardgate.kernels.problem import Gradients, Problem


class Step(NamedTuple):
    """w ← w - lr·gradient, then rows no longer than `most` (0: any length)."""

    lr: float
    most: float


class Update:
    """The right to change the weights of one layer, once per step of an optimiser.

    The weights change while the backward pass runs, so a layer that is used twice before the next
    step (accumulated gradients, recurrence, shared weights) would see them half changed: the
    second backward pass is refused.
    """

    def __init__(self, step: Callable[[], Step]) -> None:
        self._step = step
        self._claimed = False

    def claim(self) -> Step:
        """What to do now; raises when this step was claimed already."""
        if self._claimed:
            raise RuntimeError(
                "FusedSGD expected one backward pass through each layer between two steps, got "
                "a second one. Call optimiser.step() after each backward pass; for accumulated "
                "gradients, recurrence or shared weights use torch.optim.SGD, and call "
                "detach() of the FusedSGD that this model had before."
            )
        self._claimed = True
        return self._step()

    def renew(self) -> None:
        """The optimiser took its step: the next backward pass may claim again."""
        self._claimed = False


def refuse(update: Update | None) -> None:
    """Raise where a graph is traced or transformed: nothing may change in place there."""
    if update is not None:
        raise RuntimeError(
            "FusedSGD expected eager mode, got torch.compile or torch.func. "
            "Use torch.optim.SGD there."
        )


def descend(w: Tensor, gradient: Tensor, step: Step) -> None:
    """The same step from a gradient that was computed densely."""
    w.detach().add_(gradient, alpha=-step.lr)
    if step.most > 0:
        w.detach().renorm_(2, 0, step.most)


def descended(problem: Problem, gradients: Gradients, step: Step) -> Gradients:
    """The weights of a layer one step further, their gradients used up."""
    g = gradients
    if g.w_in is not None:
        descend(problem.w_in, g.w_in, step)
    if g.w_out is not None and problem.w_out is not None:
        descend(problem.w_out, g.w_out, Step(step.lr, 0.0))  # rows are outgoing weights
    for bias, gradient in ((problem.b_in, g.b_in), (problem.b_out, g.b_out)):
        if bias is not None and gradient is not None:
            bias.detach().sub_(gradient, alpha=step.lr)
    return Gradients(x=g.x, gates=g.gates)

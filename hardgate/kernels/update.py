"""A step of SGD taken inside the backward pass, where the rows to change are in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardgate._base import torch_state
from hardgate.kernels.problem import Gradients, Weights


class Step(NamedTuple):
    """w ← w - lr·gradient, then rows no longer than `most` (0: any length)."""

    lr: float
    most: float


class Update:
    """The right to change the weights of one layer, once per step of an optimiser.

    The weights change while the backward pass runs, so a layer that is used twice before the next
    step (accumulated gradients, recurrence, shared weights) would see them half changed: the
    second backward pass is refused. So is one that goes to some of the weights only, and one
    through weights that are no parameters or whose gradient somebody waits for.
    """

    def __init__(self, step: Callable[[], Step]) -> None:
        self._step = step
        self._claimed = False

    def claim(self, weights: Iterable[tuple[Any, int]]) -> Step | None:
        """What to do now; None where the backward pass does not go to the weights.

        Args:
            weights: their entries in `next_functions` of the node whose backward pass this is.
        """
        nodes = [node for node, _ in weights if node is not None]
        reached = [torch_state.runs_in_this_backward(node) for node in nodes]
        if not any(reached):  # torch.autograd.grad of something else, a saliency map: no step
            return None
        _check(nodes, reached)
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


def _check(nodes: list[Any], reached: list[bool]) -> None:
    parameters = [getattr(node, "variable", None) for node in nodes]
    for parameter in parameters:
        if parameter is None:
            raise RuntimeError(
                "FusedSGD expected the layers' own parameters, got weights that are computed from "
                "others (a parametrization, pruning, another dtype), which it cannot change. "
                "Use torch.optim.SGD, and call detach() of this FusedSGD."
            )
        if torch_state.has_gradient_hooks(parameter):
            raise RuntimeError(
                "FusedSGD expected parameters without hooks, got one whose hook waits for a "
                "gradient, and there is none. Use torch.optim.SGD, and call detach() of this "
                "FusedSGD."
            )
    if not all(reached):
        raise RuntimeError(
            "FusedSGD expected a backward pass to all weights of a layer or to none, got "
            "backward(inputs=...) with some of them. Write requires_grad_(False) on the others."
        )


def refuse(update: Update | None) -> None:
    """Raise where a graph is traced or transformed: nothing may change in place there."""
    if update is not None:
        raise RuntimeError(
            "FusedSGD expected eager mode, got torch.compile or torch.func. "
            "Use torch.optim.SGD there."
        )


def changed(*weights: Tensor | None) -> None:
    """Tell autograd what a kernel changed, as torch's own operations do.

    Else a backward pass that needs the weights as they were would not know.
    """
    torch.autograd.graph.increment_version([w for w in weights if w is not None])


def descend(w: Tensor, gradient: Tensor, step: Step) -> None:
    """The same step from a gradient that was computed densely."""
    w.detach().add_(gradient, alpha=-step.lr)
    if step.most > 0:
        w.detach().renorm_(2, 0, step.most)


def descended(weights: Weights, gradients: Gradients, step: Step) -> Gradients:
    """Take the step with the gradients of the weights; return the other gradients."""
    w_in, b_in, w_out, b_out = weights
    g = gradients
    if g.w_in is not None:
        descend(w_in, g.w_in, step)
    if g.w_out is not None and w_out is not None:
        descend(w_out, g.w_out, Step(step.lr, 0.0))  # its rows are outgoing weights: no limit
    for bias, gradient in ((b_in, g.b_in), (b_out, g.b_out)):
        if bias is not None and gradient is not None:
            bias.detach().sub_(gradient, alpha=step.lr)
    return Gradients(x=g.x, gates=g.gates)

"""Derivatives of first order alone: a second one is an error, not zero."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_REFUSED = (
    "conditional layers and gaters expected derivatives of first order, got that of a gradient "
    "(create_graph=True, or a Hessian). Write them with torch.nn.functional.linear there: "
    "y = linear(linear(x, w_in, b_in) * gates, w_out, b_out)."
)

Backward = Callable[..., tuple[Tensor | None, ...]]


def first_order(backward: Backward) -> Backward:
    """The backward pass of a `torch.autograd.Function` whose gradients refuse to be differentiated.

    Torch's `once_differentiable` does so only where the gradient that comes in has a graph; but
    what goes out depends on the inputs and weights as well, so that a gradient penalty or a Hessian
    would be silently without them.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            gradients = backward(ctx, *dy)
        if not torch.is_grad_enabled():
            return gradients
        leaves: list[Any] = [None if g is None else g.detach().requires_grad_() for g in gradients]
        refusing = torch._C._functions.DelayedError(_REFUSED.encode(), len(leaves))
        refused: tuple[Tensor | None, ...] = refusing(*leaves)
        return refused

    return run

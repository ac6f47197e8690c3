"""Derivatives of first order alone: a second one is an error, not zero."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Backward = Callable[..., tuple[Tensor | None, ...]]


def first_order(backward: Backward) -> Backward:
    """The backward pass of a `torch.autograd.Function` whose gradients refuse to be differentiated.

    Torch's `once_differentiable` does so only where the gradient that comes in has a graph. What
    goes out depends on the inputs and weights as well: a gradient penalty or a Hessian would be
    without them, and nobody would know.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            gradients = backward(ctx, *dy)
        if not torch.is_grad_enabled():
            return gradients
        sources = (*dy, *ctx.saved_tensors, *getattr(ctx, "biases", ()))
        found = [g for g in gradients if g is not None]
        refusing = iter(_Refusing.apply(len(found), *found, *sources))  # type: ignore[no-untyped-call]
        return tuple(None if g is None else next(refusing) for g in gradients)

    return run


class _Refusing(torch.autograd.Function):
    """Gradients as they are, in a graph that leads to what they depend on."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.view_as(gradient) for gradient in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "conditional layers and gaters expected derivatives of first order, got that of a "
            "gradient (create_graph=True, or a Hessian). Write them with torch.nn.functional."
            "linear there: y = linear(linear(x, w_in, b_in) * gates, w_out, b_out)."
        )

"""Where an estimator would be silently wrong, or fail without saying why: refused."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch as functorch

SECOND = (
    "expectation has a first derivative only; the derivative of its gradient would be zero. Leave "
    "create_graph=True out, or differentiate hardgate.exact_expectation, which has them all."
)
BATCHED = (
    "this estimator expected one backward pass at a time, got several at once (is_grads_batched, "
    "or jacobian with vectorize=True). Leave that out, or write estimator.one_pass = False."
)
NOT_DIFFERENTIABLE = (
    "this estimator expected f to be differentiable in b, got losses that do not depend on b "
    "through torch operations. Write estimator=hardgate.estimators.DisARM(), or another with "
    "needs_gradient_of_f = False."
)


def needs_autograd(name: str) -> None:
    """Refuse where `torch.autograd.grad` does not work: in inference mode, under `torch.func`."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{name} expected torch.no_grad(), got torch.inference_mode(), in which nothing can be "
            "differentiated. Write with torch.no_grad():"
        )
    if functorch.get_dynamic_layer_stack_depth():
        raise RuntimeError(
            f"{name} expected no torch.func transform around it: it differentiates with "
            "torch.autograd. Write value.sum().backward(), or estimator="
            "hardgate.estimators.DisARM(), which needs values of f only."
        )


def may_learn(name: str) -> None:
    """Refuse to learn where the state would keep what belongs to a transform, or learn twice."""
    if functorch.get_dynamic_layer_stack_depth():
        raise RuntimeError(
            f"{name} expected no torch.func transform around it while it learns. Write "
            "estimator.adapt = False, or call expectation outside of the transform."
        )
    # A checkpoint that computes its forward pass again would use its result for the gradient:
    # with averages that the same samples have moved since.
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            f"{name} expected not to be called again in a backward pass: it would learn from the "
            "same samples twice, and be biased. Call expectation outside of checkpoint(...), "
            "which may be inside of f, or write estimator.adapt = False."
        )


def other_units(known: int, got: int) -> ValueError:
    """Units are not as many as those that something was learnt for."""
    return ValueError(
        f"an estimator expected the {known} units that it was first used with, got {got}. "
        "Give each layer an estimator of its own."
    )


def first_derivative_only(carried: Tensor) -> None:
    """Refuse `create_graph=True`; under `torch.func.grad` every pass is one, and is let through."""
    if carried.requires_grad and not torch.compiler.is_compiling():
        carried.register_hook(_refuse_second)


def _refuse_second(gradient: Tensor) -> None:
    if torch.is_grad_enabled() and not functorch.is_functorch_wrapped_tensor(gradient):
        raise RuntimeError(SECOND)

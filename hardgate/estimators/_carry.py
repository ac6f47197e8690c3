"""A value that brings its own gradient: how an estimate enters autograd's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

from hardgate.estimators._refusals import SECOND, first_derivative_only


def carry(value: Tensor, g: Tensor, logits: Tensor) -> Tensor:
    """`value`, with the gradient g at `logits`, and NaN for examples with a NaN logit.

    What is added is a node of the graph of its own where that is possible: a fifth of the time that
    the estimators with one evaluation take besides f. `torch.compile`, `torch.func`, `vmap` and
    forward mode see additions and products only.
    """
    if eager():
        carried: Tensor = _Carry.apply(g.detach(), logits)  # type: ignore[no-untyped-call]
        return value + carried
    carried = (g.detach().to(logits.dtype) * logits).sum(-1)
    carried.detach().copy_(spoilt(logits.detach()))  # only its gradient counts (0·∞ is not 0)
    first_derivative_only(carried)
    return value + carried


def eager() -> bool:
    """Whether the graph may have nodes of our own: nobody compiles or transforms it."""
    transformed = functorch.get_dynamic_layer_stack_depth() or forward_ad._current_level >= 0
    return not torch.compiler.is_compiling() and not transformed


def spoilt(a: Tensor) -> Tensor:
    """NaN for examples with a NaN logit, else 0: 1[u < σ(NaN)] is 0, as if the unit were off."""
    if a.shape[-1] == 0:
        return a.new_zeros(a.shape[:-1])
    return a.amax(-1).clamp(0, 0)  # both keep NaN; a fifth of the time of isnan().any(-1)


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, logits: Tensor) -> Tensor:
        ctx.save_for_backward(g)
        return spoilt(logits).to(g.dtype)

    @staticmethod
    def backward(ctx: Any, dv: Tensor) -> tuple[None, Tensor]:
        if torch.is_grad_enabled():
            raise RuntimeError(SECOND)
        (g,) = ctx.saved_tensors
        return None, dv.unsqueeze(-1) * g  # which autograd narrows to the logits' dtype

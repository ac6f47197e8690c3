"""How an estimate enters autograd's graph: a value with a given gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.precision import widen
from hardgate._base.torch_state import compiling, is_wrapped

_SECOND = (
    "expectation has a first derivative only; the derivative of its gradient would be zero. Leave "
    "create_graph=True out, or differentiate hardgate.exact_expectation, which has them all."
)


def attach_gradient(value: Tensor, g: Tensor, logits: Tensor) -> Tensor:
    """`value`, with the additional gradient g at `logits`; NaN for examples with a NaN logit.

    Ordinary operations only, which `torch.compile`, `torch.func`, `vmap` and forward mode follow.
    """
    term = (g.detach() * widen(logits)).sum(-1)
    # Only its gradient counts. Not term - term.detach(): at an infinite logit that is NaN.
    term.detach().copy_(nan_where_logits_nan(logits.detach()))
    if term.requires_grad and not compiling():
        term.register_hook(_refuse_second)
    return value + term


def nan_where_logits_nan(a: Tensor) -> Tensor:
    """NaN for examples with a NaN logit, else 0: 1[u < σ(NaN)] is 0, as if the unit were off."""
    if a.shape[-1] == 0:
        return a.new_zeros(a.shape[:-1])
    return a.amax(-1).clamp(0, 0)  # both keep NaN


def _refuse_second(gradient: Tensor) -> None:
    """Refuse `create_graph=True`. Under `torch.func.grad`, which always sets it, let it pass."""
    if torch.is_grad_enabled() and not is_wrapped(gradient):
        raise RuntimeError(_SECOND)

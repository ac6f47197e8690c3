"""The gater's output layer: computed densely, back-propagated only from gates with a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from hardgate.kernels.compiler import run, unavailable
from hardgate.kernels.op import SMALL, break_even
from hardgate.kernels.sparse import Found, at, find
from hardgate.kernels.update import Step, Update, descend, refuse


def gate_linear(z: Tensor, w: Tensor, b: Tensor, update: Update | None = None) -> Tensor:
    """a = z wᵀ + b, whose backward pass skips every (example, gate) where ∂L/∂a is zero.

    Most are, where an off gate has no gradient (`off_gradient == "zero"`) and no penalty reaches
    `a`. Where most are not, the backward pass is dense; it looks at the gradient to know.

    Args:
        z: `[..., bottleneck]`.
        w: `[gates, bottleneck]`.
        b: `[gates]`.
        update: change w in the backward pass instead of returning its gradient.

    Returns:
        a, `[..., gates]`.

    Example:
        >>> z, w, b = torch.randn(4, 3), torch.randn(5, 3), torch.zeros(5)
        >>> torch.equal(gate_linear(z, w, b), torch.nn.functional.linear(z, w, b))
        True
    """
    if torch.compiler.is_compiling() or functorch.is_functorch_wrapped_tensor(z):
        refuse(update)
        return linear(z, w, b)
    kernel = z.dtype in (torch.float32, torch.float64) and z.device.type == "cpu"
    if not torch.is_grad_enabled() or (update is None and not kernel):
        return linear(z, w, b)
    a: Tensor = _GateLinear.apply(z.reshape(-1, z.shape[-1]), w, b, update)  # type: ignore[no-untyped-call]
    return a.reshape(*z.shape[:-1], a.shape[-1])


class _GateLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, w: Tensor, b: Tensor, update: Update | None) -> Tensor:
        ctx.save_for_backward(z, w)
        ctx.update = update
        return linear(z, w, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, da: Tensor) -> tuple[Tensor | None, ...]:
        step = None if ctx.update is None else ctx.update.claim()
        z, w = ctx.saved_tensors
        wants_z, wants_w, wants_b = ctx.needs_input_grad[:3]
        in_place = step is None or w.is_contiguous()  # a step needs the memory of the weights
        if in_place and da.numel() * z.shape[1] >= SMALL and unavailable() is None:
            found = find(da)
            if break_even(len(da)) * da.numel() >= found.N:
                return (*_skip(z, w, da, found, ctx.needs_input_grad, step), None)
        db = da.sum(0) if wants_b else None
        dz, dw = da @ w if wants_z else None, da.T @ z if wants_w else None
        if step is not None and dw is not None:
            descend(w, dw, step)
            dw = None
        return dz, dw, db, None


def _skip(
    z: Tensor, w: Tensor, da: Tensor, found: Found, wanted: tuple[bool, ...], step: Step | None
) -> tuple[Tensor | None, ...]:
    """dz = da w, dw = daᵀ z and db, over the entries of da that are not zero."""
    z, w, da, (offsets, N, T) = z.contiguous(), w.contiguous(), da.contiguous(), found
    dz = torch.empty_like(z) if wanted[0] else None
    dw = (torch.empty_like(w) if step is None else w.detach()) if wanted[1] else None
    db = w.new_empty(len(w)) if wanted[2] else None
    entries, values = offsets.new_empty(3 * N), z.new_empty(N)
    tensors = (at(da), at(z), at(w), at(offsets), at(entries), at(values), at(dz), at(dw), at(db))
    lr, most = (-1.0, 0.0) if step is None else (float(step.lr), float(step.most))
    run("linear_backward", z.dtype, *tensors, *da.shape, z.shape[1], N, lr, most, T)
    return dz, dw if step is None else None, db

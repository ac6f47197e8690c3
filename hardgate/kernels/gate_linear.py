"""The gater's output layer: computed densely, back-propagated only from gates with a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.nn.functional import linear

from hardgate._base.precision import unmixed
from hardgate.kernels.compiler import plain, run, tracing, unavailable
from hardgate.kernels.first_order import first_order
from hardgate.kernels.flops import tell
from hardgate.kernels.op import SMALL, break_even
from hardgate.kernels.sparse import at, chunks, density
from hardgate.kernels.update import Step, Update, changed, descend, refuse


def gate_linear(z: Tensor, w: Tensor, b: Tensor, update: Update | None = None) -> Tensor:
    """a = z wᵀ + b, whose backward pass skips every (example, gate) where ∂L/∂a is zero.

    Most are, where an off gate has no gradient (`off_gradient == "zero"`) and no penalty reaches
    `a`. Where most are not, the backward pass is dense; it looks at the gradient to know.

    Args:
        z: `[..., bottleneck]`.
        w: `[gates, bottleneck]`.
        b: `[gates]`.
        update: change w and b in the backward pass instead of returning their gradients.

    Returns:
        a, `[..., gates]`.

    Example:
        >>> z, w, b = torch.randn(4, 3), torch.randn(5, 3), torch.zeros(5)
        >>> torch.equal(gate_linear(z, w, b), torch.nn.functional.linear(z, w, b))
        True
    """
    if tracing() or functorch.is_functorch_wrapped_tensor(z):
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
        ctx.b, ctx.update = b, update  # a controller may move b before the backward pass
        return linear(z, w, b)

    @staticmethod
    @first_order
    @unmixed
    def backward(ctx: Any, da: Tensor) -> tuple[Tensor | None, ...]:
        step = None if ctx.update is None else ctx.update.claim(ctx.next_functions[1:])
        z, w = ctx.saved_tensors
        dz, dw, db, _ = back(z, w, ctx.b, da, ctx.needs_input_grad[:3], step)
        return dz, dw, db, None


def back(
    z: Tensor,
    w: Tensor,
    b: Tensor,
    da: Tensor,
    wanted: tuple[bool, ...],
    step: Step | None,
    h: Tensor | None = None,
    c: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients of z, w and b that are wanted; with a step, w and b change instead.

    Given h = max(0, a + noise), `da` is the gradient of h, and counts where h > 0. Given the biases
    c of z = tanh(s + c), the gradient of s takes the place of that of z, and c's is the fourth.
    """
    z, da = z.to(w.dtype), da.to(w.dtype)  # which autocast made half as precise
    in_place = step is None or all(t is None or t.is_contiguous() for t in (w, b, c))
    kernel = da.is_cpu and w.dtype in (torch.float32, torch.float64) and plain(z, w, da)
    enough = da.numel() * z.shape[1] >= max(1, SMALL) and kernel and in_place
    if enough and unavailable() is None and density(da) <= break_even(len(da)):
        return _skip(z, w, b, da, wanted, step, h, c)
    if h is not None:
        da = torch.ops.aten.threshold_backward(da, h, 0)
    dz, dw = da @ w if wanted[0] else None, da.T @ z if wanted[1] else None
    db = da.sum(0) if wanted[2] else None
    dc = None
    if c is not None and dz is not None:
        dz = torch.ops.aten.tanh_backward(dz, z)
        dc = dz.sum(0) if wanted[3] else None
    if step is None:
        return dz, dw, db, dc
    if dw is not None:
        descend(w, dw, step)
    for bias, gradient in ((b, db), (c, dc)):
        if bias is not None and gradient is not None:
            bias.detach().sub_(gradient, alpha=step.lr)
    return dz, None, None, None


def _target(t: Tensor | None, wanted: bool, step: Step | None) -> Tensor | None:
    """Where a gradient goes: to memory of its own or, with a step, onto the weights."""
    if t is None or not wanted:
        return None
    return t if step is not None else torch.empty_like(t)


def _skip(
    z: Tensor,
    w: Tensor,
    b: Tensor,
    da: Tensor,
    wanted: tuple[bool, ...],
    step: Step | None,
    h: Tensor | None,
    c: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The same over the entries of da that are not zero, by the kernels."""
    z, w, da = z.contiguous(), w.contiguous(), da.contiguous()
    dw, db, dc = (
        _target(t, want, step) for t, want in zip((w, b, c), (*wanted[1:], True), strict=False)
    )
    dz = torch.empty_like(z) if wanted[0] else None
    C, _, T = chunks(len(w), 1)
    lr, most = (-1.0, 0.0) if step is None else (float(step.lr), float(step.most))
    tensors = (at(da), at(h), at(z), at(w), at(dz), at(dw), at(db), at(dc))
    sizes = (*da.shape, z.shape[1], c is not None)
    run("linear_backward", z.dtype, *tensors, *sizes, lr, most, C, T)
    tell(da, z.shape[1] * (wanted[0] + wanted[1]))
    if step is None:
        return dz, dw, db, dc
    changed(dw, db, dc)
    return dz, None, None, None

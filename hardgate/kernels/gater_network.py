"""The gater's network in eager mode: one node of the graph, its backward pass from few gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.nn.functional import linear

from hardgate._base.precision import unmixed
from hardgate.kernels.compiler import tracing
from hardgate.kernels.first_order import first_order
from hardgate.kernels.gate_linear import back, gate_linear
from hardgate.kernels.update import Step, Update

Rectify: TypeAlias = Callable[[Tensor], Tensor]


def gater_network(
    x: Tensor,
    U: Tensor,
    c: Tensor,
    V: Tensor,
    d: Tensor,
    update: Update | None = None,
    rectify: Rectify | None = None,
) -> Tensor:
    """a = V tanh(U x + c) + d, whose backward pass skips every gate where ∂L/∂a is zero.

    Args:
        x: `[..., in]`.
        U, c: the bottleneck's weights `[bottleneck, in]` and biases.
        V, d: the gates' weights `[gates, bottleneck]` and biases.
        update: change all four in the backward pass instead of returning their gradients.
        rectify: None, or a function from a to h = max(0, a + z), noise z of its own: then h is
            returned, and its gradient is taken where h > 0.

    Returns:
        a or h, `[..., gates]`.

    Example:
        >>> x, U, c = torch.randn(4, 3), torch.randn(2, 3), torch.zeros(2)
        >>> V, d = torch.randn(5, 2), torch.zeros(5)
        >>> a = gater_network(x, U, c, V, d)
        >>> torch.allclose(a, torch.tanh(x @ U.T) @ V.T)
        True
    """
    eager = not tracing() and functorch.peek_interpreter_stack() is None
    if not eager or not torch.is_grad_enabled() or not _usual(x, U, c, V, d):
        a = gate_linear(torch.tanh(linear(x, U, c)), V, d, update)
        return a if rectify is None else rectify(a)
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    h: Tensor = _Network.apply(rows, U, c, V, d, update, rectify)  # type: ignore[no-untyped-call]
    return h if x.dim() == 2 else h.reshape(*x.shape[:-1], h.shape[-1])


def _usual(x: Tensor, *weights: Tensor) -> bool:
    """Whether all is of one dtype that the kernels know, on the CPU."""
    dtype = x.dtype
    return (
        (dtype is torch.float32 or dtype is torch.float64)
        and x.is_cpu
        and all(w.dtype is dtype for w in weights)
        and not torch.is_autocast_enabled("cpu")
    )


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, U, c, V, d, ctx.update, rectify = arguments
        z = torch.addmm(c, x, U.t()).tanh_()
        a = torch.addmm(d, z, V.t())
        h: Tensor = a if rectify is None else rectify(a)
        ctx.save_for_backward(x, U, V, z, None if rectify is None else h)
        ctx.biases = c, d  # which a controller may move before the backward pass
        return h

    @staticmethod
    @first_order
    @unmixed
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        step: Step | None = None if ctx.update is None else ctx.update.claim(ctx.next_functions[1:])
        (x, U, V, z, h), (c, d) = ctx.saved_tensors, ctx.biases
        wants_x, wants_U, wants_c, wants_V, wants_d = ctx.needs_input_grad[:5]
        deeper = wants_x or wants_U or wants_c
        ds, dV, dd, dc = back(z, V, d, dh, (deeper, wants_V, wants_d, wants_c), step, h, c)
        if ds is None:
            return None, None, None, dV, dd, None, None
        dx = ds @ U if wants_x else None  # before a step changes the weights
        if wants_U and step is not None:
            weight = U.detach().addmm_(ds.t(), x, alpha=-step.lr)
            if step.most > 0:
                weight.renorm_(2, 0, step.most)
            wants_U = False
        return dx, ds.t() @ x if wants_U else None, dc, dV, dd, None, None

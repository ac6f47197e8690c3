"""The conditional layer as a function: checked, sent on its path, differentiated."""

from __future__ import annotations

from math import prod
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

from hardgate._base.precision import unmixed
from hardgate.kernels import dense, registered, sparse
from hardgate.kernels.check import check, fits
from hardgate.kernels.compiler import tracing, unavailable
from hardgate.kernels.dispatch import BACKENDS, SMALL, Backend, Path, break_even, choose, last_path
from hardgate.kernels.first_order import first_order
from hardgate.kernels.infer import infer
from hardgate.kernels.problem import Problem, Wanted
from hardgate.kernels.update import Update, refuse

__all__ = [
    "SMALL",
    "Backend",
    "Path",
    "break_even",
    "conditional_linear",
    "conditional_mlp",
    "last_path",
]

_T = TypeVar("_T", Tensor, Tensor | None)


def conditional_mlp(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    *,
    backend: Backend = "auto",
    probe: Tensor | None = None,
    relu: bool = False,
    update: Update | None = None,
) -> Tensor:
    """y = ((x W_inᵀ + b_in) ⊙ gates) W_outᵀ + b_out, computing only what non-zero gates need.

    Forward and backward. The gradient of `gates` exists where they are non-zero, and where
    `probe` is: there it is multiplied by the probe's weight. A unit that is off and not probed
    is not evaluated at all, whatever its weights hold. On every backend alike.

    Args:
        x: `[..., in]`.
        gates: `[..., gates]`; `hidden / gates` consecutive units share a gate, so gates of width
            hidden/16 mean blocks of 16.
        w_in: `[hidden, in]`, as in `nn.Linear`.
        b_in: `[hidden]` or None.
        w_out: `[out, hidden]`, as in `nn.Linear`. The transposed view of a contiguous
            `[hidden, out]` tensor is used without a copy, and its gradient has that layout.
        b_out: `[out]` or None.
        backend: `"dense"` (masked matrix products), `"sparse"` (kernels that skip), or `"auto"`,
            the faster by density, batch and shape. `hardgate.last_path()` says which ran.
        probe: `[..., gates]`, weights of the gate's gradient where the gate is off; 0 is not
            probed. All ones give exact straight-through.
        relu: experts max(0, x W_inᵀ + b_in) instead of linear ones.
        update: change `w_in` and `w_out` in the backward pass instead of returning their
            gradients; see `hardgate.FusedSGD`.

    Returns:
        y, `[..., out]`, in the dtype of x.

    Example:
        >>> x, gates = torch.randn(4, 8), (torch.rand(4, 16) < 0.1).float()
        >>> w_in, w_out = torch.randn(16, 8), torch.randn(3, 16)
        >>> y = conditional_mlp(x, gates, w_in, None, w_out, None)
        >>> torch.allclose(y, ((x @ w_in.T) * gates) @ w_out.T, atol=1e-4)
        True
    """
    return _call(x, gates, w_in, b_in, w_out, b_out, backend, probe, relu, update)


def conditional_linear(
    x: Tensor,
    gates: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    *,
    backend: Backend = "auto",
    probe: Tensor | None = None,
    relu: bool = False,
    update: Update | None = None,
) -> Tensor:
    """y = (x Wᵀ + b) ⊙ gates, computing only where gates are non-zero.

    The paper's conditional layer without an output transform; see `conditional_mlp`.

    Args:
        x: `[..., in]`.
        gates: `[..., gates]`.
        w: `[hidden, in]`.
        b: `[hidden]` or None.
        backend, probe, relu, update: as in `conditional_mlp`.

    Returns:
        y, `[..., hidden]`, zero where the gate is.

    Example:
        >>> x, gates, w = torch.ones(1, 2), torch.tensor([[0.0, 2.0]]), torch.ones(2, 2)
        >>> conditional_linear(x, gates, w).tolist()
        [[0.0, 4.0]]
    """
    return _call(x, gates, w, b, None, None, backend, probe, relu, update)


@unmixed
def _call(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    backend: str,
    probe: Tensor | None,
    relu: bool,
    update: Update | None,
) -> Tensor:
    if backend not in BACKENDS:
        choices = ", ".join(map(repr, BACKENDS))
        raise ValueError(f"backend expected one of {choices}, got {backend!r}.")
    if not torch.is_grad_enabled():
        y = infer(x, gates, w_in, b_in, w_out, b_out, relu, backend)
        if y is not None:
            return y
    if fits(x, gates, w_in, b_in, w_out, b_out, probe):
        return _run(x, gates, w_in, b_in, w_out, b_out, probe, relu, backend, update)
    check(x, gates, w_in, b_in, w_out, b_out, probe)
    wide = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    kept = w_in.dtype if _stays_narrow(x, gates, w_in, b_in, w_out, b_out) else wide
    weights = (_wide(w_in, kept), _wide(b_in, wide), _wide(w_out, kept), _wide(b_out, wide))
    probed = None if probe is None else _rows(probe.detach(), wide)
    y = _run(_rows(x, wide), _rows(gates, wide), *weights, probed, relu, backend, update)
    if x.dim() != 2:
        y = y.reshape(*x.shape[:-1], y.shape[-1])
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _run(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    probe: Tensor | None,
    relu: bool,
    backend: str,
    update: Update | None,
) -> Tensor:
    """The layer for matrices of one dtype, in the mode that torch is in."""
    y: Tensor
    given = (x, gates, w_in, b_in, w_out, b_out)
    if forward_ad._current_level >= 0 and any(map(_has_tangent, given)):
        raise NotImplementedError("conditional layers expected reverse mode, got forward-mode AD.")
    if tracing():
        refuse(update)
        y = registered.forward(*given, probe, relu, backend)
    elif functorch.peek_interpreter_stack() is not None:
        refuse(update)
        y = registered.Transformed.apply(*given, probe, relu, backend)  # type: ignore[no-untyped-call]
    elif torch.is_grad_enabled() and (
        w_in.requires_grad
        or gates.requires_grad
        or any(t is not None and t.requires_grad for t in given)
    ):
        y = _Layer.apply(*given, probe, relu, backend, update)  # type: ignore[no-untyped-call]
    else:
        skips = choose(x, gates, w_in, w_out, probe, backend)
        way = sparse if skips else dense
        y = way.forward(Problem.of(*given, probe, relu), keep=False)[0]
    return y


def _has_tangent(t: Tensor | None) -> bool:
    return t is not None and forward_ad.unpack_dual(t).tangent is not None


def _stays_narrow(x: Tensor, gates: Tensor, w_in: Tensor, *others: Tensor | None) -> bool:
    """Whether the kernels read weights in bf16 as they are: where no gradient is wanted."""
    _, w_out, _ = others
    return (
        x.dtype is not torch.float64
        and w_in.dtype is torch.bfloat16
        and (w_out is None or w_out.dtype is torch.bfloat16)
        and functorch.peek_interpreter_stack() is None
        and not (
            torch.is_grad_enabled()
            and any(t is not None and t.requires_grad for t in (x, gates, w_in, *others))
        )
    )


def _wide(t: _T, dtype: torch.dtype) -> _T:
    return t if t is None or t.dtype == dtype else t.to(dtype)


def _rows(t: Tensor, dtype: torch.dtype) -> Tensor:
    t = t if t.dim() == 2 else t.reshape(prod(t.shape[:-1]), t.shape[-1])  # sizes may be symbols
    return t if t.dtype == dtype else t.to(dtype)


class _Layer(torch.autograd.Function):
    """The layer in eager mode, where the forward pass can leave the backward what it needs."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, gates, w_in, b_in, w_out, b_out, probe, ctx.relu, backend, ctx.update = arguments
        skips = choose(x, gates, w_in, w_out, probe, backend)
        ctx.path = sparse if skips else dense
        problem = Problem.of(x, gates, w_in, b_in, w_out, b_out, probe, ctx.relu)
        y, kept = ctx.path.forward(problem)
        memory, ctx.sizes = (kept[:2], kept[2:]) if skips else ((kept,), ())
        # What autograd saves it frees after the backward pass, though the loss is kept in a list.
        ctx.save_for_backward(x, gates, w_in, b_in, w_out, b_out, probe, *memory)
        output: Tensor = y
        return output

    @staticmethod
    @first_order
    @unmixed
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        step = None if ctx.update is None else ctx.update.claim(ctx.next_functions[2:])
        x, gates, w_in, b_in, w_out, b_out, probe, *memory = ctx.saved_tensors
        problem = Problem.of(x, gates, w_in, b_in, w_out, b_out, probe, ctx.relu)
        path, wanted = ctx.path, Wanted(*ctx.needs_input_grad[:6])
        kept = sparse.Saved(*memory, *ctx.sizes) if path is sparse else memory[0]
        if path is sparse and unavailable() is not None:  # forked since the forward pass
            choose(x, gates, w_in, w_out, probe, "sparse")  # which says so
            path, kept = dense, None
        g = path.backward(problem, dy, wanted, kept, step)
        dw_out = None if g.w_out is None else g.w_out.t()
        return (g.x, g.gates, g.w_in, g.b_in, dw_out, g.b_out, None, None, None, None)

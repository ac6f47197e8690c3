"""The conditional layer as registered operations, and the choice of what runs them."""

from __future__ import annotations

import threading
import warnings
from dataclasses import fields
from types import ModuleType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from hardgate.kernels import dense, sparse
from hardgate.kernels.compiler import unavailable
from hardgate.kernels.problem import Problem, Wanted
from hardgate.kernels.update import Update, refuse

Backend = Literal["auto", "dense", "sparse"]

_T = TypeVar("_T", Tensor, Tensor | None)
_BACKENDS = get_args(Backend)
_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


class Path(NamedTuple):
    """What the last call of the layer in this thread did."""

    backend: str
    why: str
    density: float | None


_last = threading.local()
_said: set[str] = set()

# Measured by benchmarks/layer.py: below the one dense products win at any density, above the
# other they win at any size.
SMALL = 1_000_000  # multiply-adds of the up-projection


def break_even(batch: int) -> float:
    """The density above which dense products win: large batches keep their kernels busier."""
    return 0.5 if batch < 128 else 0.35


def last_path() -> Path | None:
    """Which path the last call in this thread took, and why; None before the first."""
    path: Path | None = getattr(_last, "path", None)
    return path


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


def _check(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    backend: str,
    probe: Tensor | None,
) -> None:
    if backend not in _BACKENDS:
        choices = ", ".join(map(repr, _BACKENDS))
        raise ValueError(f"backend expected one of {choices}, got {backend!r}.")
    shape, gated, experts = x.shape, gates.shape, w_in.shape
    outer = (0, *experts[:1]) if w_out is None else w_out.shape
    if len(experts) != 2 or len(outer) != 2 or not shape or not gated:
        got = ", ".join(str(tuple(t.shape)) for t in (x, gates, w_in, w_out) if t is not None)
        raise ValueError(
            "conditional layers expected x [..., in], gates [..., gates], w_in [hidden, in] and "
            f"w_out [out, hidden], got the shapes {got}."
        )
    (hidden, n_in), leading, width = experts, shape[:-1], gated[-1]
    if shape[-1] != n_in:
        raise _wrong("x", x, "[..., in]", (*leading, n_in))
    if gated[:-1] != leading:
        raise _wrong("gates", gates, "[..., gates]", (*leading, width))
    if width == 0 or hidden == 0 or hidden % width:
        raise ValueError(
            f"gates expected a width that divides the {hidden} hidden units, got {width}."
        )
    if b_in is not None and b_in.shape != (hidden,):
        raise _wrong("b_in", b_in, "[hidden]", (hidden,))
    if outer[1] != hidden:
        raise _wrong("w_out", w_in if w_out is None else w_out, "[out, hidden]", (outer[0], hidden))
    if b_out is not None and (w_out is None or b_out.shape != outer[:1]):
        raise _wrong("b_out", b_out, "[out]", outer[:1] if w_out is not None else ())
    if probe is not None and probe.shape != gated:
        raise _wrong("probe", probe, "of gates", tuple(gated))
    device = x.device
    for t in (x, gates, w_in, b_in, w_out, b_out, probe):
        if t is not None and (t.dtype not in _FLOATS or t.device != device):
            raise TypeError(
                "conditional layers expected floating point tensors on the device of x, "
                f"{x.device}, got {t.dtype} on {t.device}. Write .to(x) on the one of shape "
                f"{tuple(t.shape)}."
            )


def _wrong(name: str, tensor: Tensor, words: str, shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"{name} expected shape {words}, here {tuple(shape)}, got {tuple(tensor.shape)}."
    )


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
    _check(x, gates, w_in, b_in, w_out, b_out, backend, probe)
    wide = x.dtype if x.dtype in (torch.float32, torch.float64) else torch.float32
    problem = Problem(
        _rows(x, wide),
        _rows(gates, wide),
        _wide(w_in, wide),
        _wide(b_in, wide),
        None if w_out is None else _wide(w_out.t(), wide),
        _wide(b_out, wide),
        None if probe is None else _rows(probe.detach(), wide),
        relu,
    )
    if forward_ad._current_level >= 0 and any(map(_has_tangent, problem)):
        raise NotImplementedError("conditional layers expected reverse mode, got forward-mode AD.")
    if torch.compiler.is_compiling() or functorch.is_functorch_wrapped_tensor(x):
        refuse(update)
        y: Tensor = _forward(*problem, backend)
    elif torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in problem
    ):
        y = _Layer.apply(*problem, backend, update)  # type: ignore[no-untyped-call]
    else:
        y = _infer(problem, backend)
    if x.dim() != 2:
        y = y.reshape(*x.shape[:-1], y.shape[-1])
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _has_tangent(t: object) -> bool:
    return isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None


def _wide(t: _T, dtype: torch.dtype) -> _T:
    return t if t is None or t.dtype == dtype else t.to(dtype)


def _rows(t: Tensor, dtype: torch.dtype) -> Tensor:
    t = t if t.dim() == 2 else t.reshape(t.shape[:-1].numel(), t.shape[-1])
    return t if t.dtype == dtype else t.to(dtype)


class _Layer(torch.autograd.Function):
    """The layer in eager mode, where the forward pass can leave the backward what it needs."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        problem, (backend, ctx.update) = Problem(*arguments[:-2]), arguments[-2:]
        ctx.path, found = _choose(problem, backend)
        ctx.relu = problem.relu
        y: Tensor
        y, ctx.kept = ctx.path.forward(problem, found=found)
        ctx.save_for_backward(*problem[:-1])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        step = None if ctx.update is None else ctx.update.claim()
        problem = Problem(*(*ctx.saved_tensors, ctx.relu))
        wanted = Wanted(*ctx.needs_input_grad[:6])
        if ctx.path is sparse and unavailable() is not None:  # forked since the forward pass
            (ctx.path, _), ctx.kept = _choose(problem, "sparse"), None
        gradients = ctx.path.backward(problem, dy, wanted, ctx.kept, step)
        return (*(getattr(gradients, f.name) for f in fields(gradients)), *[None] * 4)


def _infer(problem: Problem, backend: str) -> Tensor:
    path, found = _choose(problem, backend, keep=False)
    y: Tensor = path.forward(problem, keep=False, found=found)[0]
    return y


def _choose(
    problem: Problem, backend: str, keep: bool = True
) -> tuple[ModuleType, sparse.Found | None]:
    """The implementation to run, noted for `last_path`, and what was counted on the way."""
    name, why, found = _decide(problem, backend, keep)
    density = None if found is None else found.N / max(1, problem.gates.numel())
    _last.path = Path(name, why, density)
    return (sparse if name == "sparse" else dense), found


def _decide(problem: Problem, backend: str, keep: bool) -> tuple[str, str, sparse.Found | None]:
    if backend == "dense":
        return "dense", "asked for", None
    if problem.x.numel() == 0 or (problem.w_out is not None and problem.w_out.numel() == 0):
        return "dense", "nothing to compute", None
    if problem.x.device.type != "cpu":
        _say_once(f"the kernels are for CPUs; on {problem.x.device.type} the layer runs dense")
        return "dense", "not on a CPU", None
    if backend == "auto" and problem.x.numel() * problem.hidden < SMALL:
        return "dense", "too small for the kernels to pay", None
    if problem.gates.numel() >= 2**31:
        return "dense", "more gates than the kernels' 32-bit index can hold", None
    missing = unavailable()
    if missing is not None:
        _say_once(f"the conditional layer runs dense: {missing}")
        return "dense", missing, None
    if backend == "sparse":
        return "sparse", "asked for", None
    if len(problem.x) == 1 and not keep and problem.w_out is not None:
        return "sparse", "one example: the weights that are read count", None
    found = sparse.find(problem.gates)
    evaluated = found.N
    if problem.probe is not None:
        evaluated += sparse.find(problem.probe.masked_fill(problem.gates != 0, 0)).N
    density = evaluated / max(1, problem.gates.numel())
    limit = break_even(len(problem.x))
    if density > limit:
        return "dense", f"density {density:.2f} is above {limit}", found
    return "sparse", f"density {density:.2f} is at most {limit}", found


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        warnings.warn(f"hardgate: {message}.", RuntimeWarning, stacklevel=5)


# Under torch.compile the layer is one opaque operation; its backward pass finds the index again.


@torch.library.custom_op("hardgate::conditional", mutates_args=())
def _forward(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    probe: Tensor | None,
    relu: bool,
    backend: str,
) -> Tensor:
    return _infer(Problem(x, gates, w_in, b_in, w_out, b_out, probe, relu), backend)


@_forward.register_fake
def _(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    probe: Tensor | None,
    relu: bool,
    backend: str,
) -> Tensor:
    return x.new_empty(x.shape[0], w_in.shape[0] if w_out is None else w_out.shape[1])


@torch.library.custom_op("hardgate::conditional_backward", mutates_args=())
def _backward(
    dy: Tensor,
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    probe: Tensor | None,
    relu: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    problem = Problem(x, gates, w_in, b_in, w_out, None, probe, relu)
    wanted = Wanted(b_out=False, w_out=w_out is not None)
    path, _ = _choose(problem, backend)
    found = path.backward(problem, dy, wanted, None)
    w_out_gradient = x.new_empty(0) if found.w_out is None else found.w_out
    return tuple(  # type: ignore[return-value]
        t.contiguous() for t in (found.x, found.gates, found.w_in, found.b_in, w_out_gradient)
    )


@_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    probe: Tensor | None,
    relu: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    shapes = (x.shape, gates.shape, w_in.shape, w_in.shape[:1])
    last = x.new_empty(0) if w_out is None else x.new_empty(w_out.shape)
    dx, dgates, dw_in, db_in = (x.new_empty(shape) for shape in shapes)
    return dx, dgates, dw_in, db_in, last


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gates, w_in, b_in, w_out, b_out, probe, ctx.relu, ctx.backend = inputs
    ctx.has_b_in, ctx.has_b_out = b_in is not None, b_out is not None
    ctx.save_for_backward(x, gates, w_in, b_in, w_out, probe)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    w_out = ctx.saved_tensors[4]
    dx, dgates, dw_in, db_in, dw_out = _backward(dy, *ctx.saved_tensors, ctx.relu, ctx.backend)
    return (
        dx,
        dgates,
        dw_in,
        db_in if ctx.has_b_in else None,
        None if w_out is None else dw_out,
        dy.sum(0) if ctx.has_b_out else None,
        None,
        None,
        None,
    )


_forward.register_autograd(_differentiate, setup_context=_setup)

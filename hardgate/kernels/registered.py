"""The conditional layer as registered operations, for torch.compile and torch.func.

One opaque operation forward and one backward, which finds the index again. Under vmap examples
are folded into one batch; weights that differ from sample to sample are taken one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from hardgate._base.precision import without_autocast
from hardgate.kernels import dense, sparse
from hardgate.kernels.dispatch import choose
from hardgate.kernels.problem import Problem, Wanted, Weights


@torch.library.custom_op("hardgate::conditional", mutates_args=())
def forward(
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
    """y for matrices of one dtype; w_out is unit-major."""
    problem = Problem(x, gates, Weights(w_in, b_in, w_out, b_out), probe, relu)
    way = sparse if choose(problem, backend).backend == "sparse" else dense
    y: Tensor = without_autocast(way.forward)(problem, keep=False)[0]
    return y


@forward.register_fake
def _(x: Tensor, gates: Tensor, w_in: Tensor, b_in: Any, w_out: Tensor | None, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], w_in.shape[0] if w_out is None else w_out.shape[1])


@torch.library.custom_op("hardgate::conditional_backward", mutates_args=())
def backward(
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
    """The gradients of x, gates, w_in, b_in and w_out."""
    problem = Problem(x, gates, Weights(w_in, b_in, w_out), probe, relu)
    wanted = Wanted(b_in=b_in is not None, w_out=w_out is not None, b_out=False)
    way = sparse if choose(problem, backend).backend == "sparse" else dense
    found = without_autocast(way.backward)(problem, dy, wanted, None)
    nothing = {"b_in": w_in.new_zeros(len(w_in)), "w_out": w_in.new_zeros(0)}
    gradients = {name: getattr(found, name) for name in ("x", "gates", "w_in", "b_in", "w_out")}
    filled = (nothing[name] if g is None else g for name, g in gradients.items())
    return tuple(g.contiguous() for g in filled)  # type: ignore[return-value]


@backward.register_fake
def _(
    dy: Tensor, x: Tensor, gates: Tensor, w_in: Tensor, b_in: Any, w_out: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    last = x.new_empty(0) if w_out is None else x.new_empty(w_out.shape)
    shapes = (x.shape, gates.shape, w_in.shape, w_in.shape[:1])
    dx, dgates, dw_in, db_in = (x.new_empty(shape) for shape in shapes)
    return dx, dgates, dw_in, db_in, last


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gates, w_in, b_in, w_out, b_out, probe, ctx.relu, ctx.backend = inputs
    ctx.has_b_in, ctx.has_b_out = b_in is not None, b_out is not None
    ctx.save_for_backward(x, gates, w_in, b_in, w_out, probe)


def _differentiate(
    ctx: Any, dy: Tensor, of: Callable[..., tuple[Tensor, ...]] = backward
) -> tuple[Tensor | None, ...]:
    dx, dgates, dw_in, db_in, dw_out = of(dy, *ctx.saved_tensors, ctx.relu, ctx.backend)
    return (
        *(dx, dgates, dw_in),
        db_in if ctx.has_b_in else None,
        None if ctx.saved_tensors[4] is None else dw_out,
        dy.sum(0) if ctx.has_b_out else None,
        *(None, None, None),
    )


forward.register_autograd(_differentiate, setup_context=_setup)


def transformed(*arguments: Any) -> Tensor:
    """The same for torch.func, which does not differentiate registered operations."""
    y: Tensor = _Transformed.apply(*arguments)  # type: ignore[no-untyped-call]
    return y


class _Transformed(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        y: Tensor = forward(*arguments)
        return y

    setup_context = staticmethod(_setup)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _differentiate(ctx, dy, _TransformedBackward.apply)


class _TransformedBackward(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        gradients: tuple[Tensor, ...] = backward(*arguments)
        return gradients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        raise NotImplementedError(
            "conditional layers expected first derivatives, got one of second order."
        )


def _sample(argument: Any, dim: int | None, k: int) -> Any:
    return argument if dim is None else argument.select(dim, k)


def _folded(t: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """The samples of t one below the other."""
    if t is None:
        return None
    t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t.flatten(0, 1)


@forward.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    size, of_weights = info.batch_size, in_dims[2:6]
    if any(dim is not None for dim in of_weights):
        ys = [forward(*map(_sample, arguments, in_dims, [k] * 9)) for k in range(size)]
        return torch.stack(ys), 0
    x, gates, *weights, probe, relu, backend = arguments
    x, gates, probe = (
        _folded(t, dim, size)
        for t, dim in zip((x, gates, probe), (*in_dims[:2], in_dims[6]), strict=True)
    )
    y = forward(x, gates, *weights, probe, relu, backend)
    return y.unflatten(0, (size, -1)), 0


@backward.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], *arguments: Any
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Each sample has gradients of its own."""
    found = [backward(*map(_sample, arguments, in_dims, [k] * 9)) for k in range(info.batch_size)]
    return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * 5


def _evaluated(x: Tensor, gates: Tensor, weights: Weights, probe: Any, backend: str) -> int:
    """How many gates a pass evaluates: those that are on, or all of them where it is dense."""
    path = choose(Problem(x, gates, weights, probe), backend)
    return int(gates.count_nonzero()) if path.backend == "sparse" else gates.numel()


@register_flop_formula(torch.ops.hardgate.conditional, get_raw=True)
def _(
    x: Tensor, gates: Tensor, w_in: Tensor, b_in: Any, w_out: Any, b_out: Any, *rest: Any, **_: Any
) -> int:
    probe, _, backend = rest
    evaluated = _evaluated(x, gates, Weights(w_in, b_in, w_out, b_out), probe, backend)
    out = 0 if w_out is None else w_out.shape[1]
    return 2 * evaluated * (len(w_in) // gates.shape[1]) * (w_in.shape[1] + out)


@register_flop_formula(torch.ops.hardgate.conditional_backward, get_raw=True)
def _(
    dy: Tensor, x: Tensor, gates: Tensor, w_in: Tensor, b_in: Any, w_out: Any, *rest: Any, **_: Any
) -> int:
    """H again, dS, and the gradients of x, w_in and w_out; H and dS for gates that are probed."""
    probe, _, backend = rest
    n, out = w_in.shape[1], 0 if w_out is None else w_out.shape[1]
    evaluated = _evaluated(x, gates, Weights(w_in, b_in, w_out), probe, backend)
    probed = 0 if probe is None else int(probe.masked_fill(gates != 0, 0).count_nonzero())
    probed = probed if evaluated < gates.numel() else 0
    pairs = evaluated * (3 * n + 2 * out) + probed * (n + out)
    return 2 * (len(w_in) // gates.shape[1]) * pairs

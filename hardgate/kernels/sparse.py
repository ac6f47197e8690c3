"""The conditional layer by kernels that skip what is off."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from hardgate._base import torch_state
from hardgate.kernels.compiled.layout import at_once, length, of_index, of_values
from hardgate.kernels.compiler import run, threads
from hardgate.kernels.problem import Gradients, Problem, Wanted, Weights
from hardgate.kernels.update import Step, changed, descended

_SAMPLE = 2**15  # gates from which the density is estimated
_CHUNK_UNITS = 128  # few enough to stay in the cache, enough to be worth a chunk


class Saved(NamedTuple):
    """What the forward pass leaves to the backward pass: the index, and g, H and S by entry."""

    ints: Tensor
    floats: Tensor
    slots: int
    C: int
    T: int


def density(gates: Tensor) -> float:
    """The fraction of the gates that is on; for large batches, estimated from some examples."""
    B, G = gates.shape
    every = min(B, -(-B * G // _SAMPLE)) if B * G > _SAMPLE else 1
    on: int = run("count", gates.dtype, gates.contiguous().data_ptr(), B, G, every)
    return on / max(1, -(-B // every) * G)


def chunks(G: int, K: int) -> tuple[int, int, int]:
    """How many gates make a chunk, how many chunks that gives, for how many threads."""
    T = threads()
    C = min(max(8, _CHUNK_UNITS // K), max(8, -(-G // (8 * T))))
    C = -(-C // 8) * 8  # the index takes eight at a time
    return C, -(-G // C), T


@lru_cache
def _lengths(slots: int, C: int, B: int, K: int) -> tuple[int, int]:
    """How many integers and numbers the forward pass saves."""
    n = length(slots, C, B)
    return of_index(slots, C, B, n), of_values(K, n)


def forward(
    problem: Problem, keep: bool = True, output: bool = True
) -> tuple[Tensor, Saved | None]:
    """As `reference.forward`; with `keep`, saves what the backward pass can use.

    Without `output`, y stays empty: the pass is for what it saves.
    """
    (B, n), G = problem.x.shape, problem.gates.shape[1]
    x, gates = problem.x.contiguous(), problem.gates.contiguous()
    w_in, b_in, w_out, b_out = contiguous(problem.weights)
    K, n_out = w_in.shape[0] // G, 0 if w_out is None else w_out.shape[1]
    (C, slots, T), saved = chunks(G, K), None
    if keep:
        n_ints, n_floats = _lengths(slots, C, B, K)
        ints = torch.empty(n_ints, dtype=torch.int32)
        saved = Saved(ints, x.new_empty(n_floats), slots, C, T)
        kept = (ints.data_ptr(), saved.floats.data_ptr(), slots)
    else:  # a second pass needs the index of all chunks
        kept = (0, 0, T if at_once(K, B, n_out) else slots)
    y = x.new_empty(B if output else 0, G * K if w_out is None else n_out)
    tensors = (
        *(y.data_ptr(), x.data_ptr(), gates.data_ptr(), w_in.data_ptr()),
        *(address(b_in), address(w_out), address(b_out)),
    )
    run("forward", w_in.dtype, *tensors, *kept, B, G, K, n, n_out, problem.relu, C, T)
    if torch_state.dispatch_modes():
        report_multiplications(gates, K * (n + n_out))
    return y, saved


def backward(
    problem: Problem, dy: Tensor, wanted: Wanted, saved: Saved | None, step: Step | None = None
) -> Gradients:
    """As `reference.backward`; with `step`, the weights that are wanted change in place."""
    p = problem
    if step is not None and not all(t is None or t.is_contiguous() for t in p.weights):
        # Kernels change rows in memory, and a contiguous copy is not the weights.
        return descended(p.weights, backward(p, dy, wanted, saved), step)
    if saved is None:
        saved = _saved(p)
    (B, n), G = p.x.shape, p.gates.shape[1]
    x, dy, (w_in, _, w_out, _) = p.x.contiguous(), dy.contiguous(), contiguous(p.weights)
    K, n_out = w_in.shape[0] // G, 0 if w_out is None else w_out.shape[1]
    g = Gradients(
        x.new_empty(B, n) if wanted.x else None,
        x.new_empty(B, G) if wanted.gates else None,
        *(target(w, want, step) for w, want in zip(p.weights, wanted[2:], strict=True)),
    )
    sizes = (saved.slots, B, G, K, n, n_out)
    probed = g.gates is not None and p.probe is not None
    if g.gates is not None and p.probe is not None:  # before a step changes the weights
        _differentiate_probed(p, dy, p.probe, g.gates, sizes)
    tensors = (dy.data_ptr(), x.data_ptr(), w_in.data_ptr(), address(w_out), *_kept(saved))
    targets = map(address, (g.x, g.gates, g.w_in, g.b_in, g.w_out, g.b_out))
    flags, rates = (not probed, False, p.relu), step or _NO_STEP
    run("backward", x.dtype, *tensors, *targets, *sizes, *flags, *rates, saved.C, saved.T)
    if torch_state.dispatch_modes():
        inner, outer = wanted.x + wanted.w_in, 1 + wanted.w_out
        report_multiplications(p.gates, K * (inner * n + outer * n_out))
    if step is None:
        return g
    changed(g.w_in, g.b_in, g.w_out, g.b_out)
    return Gradients(x=g.x, gates=g.gates)


def gate_gradients(
    z: Tensor,
    w: Tensor,
    b: Tensor,
    da: Tensor,
    wanted: tuple[bool, ...],
    step: Step | None,
    h: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """As `op.gate_gradients`, over the entries of da that are not zero."""
    z, w, da = z.contiguous(), w.contiguous(), da.contiguous()
    dz = torch.empty_like(z) if wanted[0] else None
    dw, db = target(w, wanted[1], step), target(b, wanted[2], step)
    C, _, T = chunks(len(w), 1)
    tensors = (da.data_ptr(), address(h), z.data_ptr(), w.data_ptr())
    targets = map(address, (dz, dw, db))
    sizes = (*da.shape, z.shape[1])
    run("linear_backward", z.dtype, *tensors, *targets, *sizes, *(step or _NO_STEP), C, T)
    report_multiplications(da, z.shape[1] * (wanted[0] + wanted[1]))
    if step is None:
        return dz, dw, db
    changed(dw, db)
    return dz, None, None


_NO_STEP = Step(-1.0, 0.0)  # to the kernels, a negative learning rate means: gradients


def _differentiate_probed(
    problem: Problem, dy: Tensor, probe: Tensor, out: Tensor, sizes: tuple[int, ...]
) -> None:
    """out = probe·dS·H for gates that are off but probed, which only this pass evaluates."""
    weights = probe.masked_fill(problem.gates != 0, 0)
    p = problem._replace(gates=weights, probe=None)
    saved, (w_in, _, w_out, _) = _saved(p), contiguous(p.weights)
    tensors = (dy.data_ptr(), 0, w_in.data_ptr(), address(w_out), *_kept(saved))
    targets, flags = (0, out.data_ptr(), 0, 0, 0, 0), (True, True, p.relu)
    run("backward", out.dtype, *tensors, *targets, *sizes, *flags, *_NO_STEP, saved.C, saved.T)
    report_multiplications(weights, sizes[3] * sizes[5])


def _saved(problem: Problem) -> Saved:
    """What a forward pass with `keep` saves."""
    w_in, b_in, _, _ = problem.weights
    _, saved = forward(problem._replace(weights=Weights(w_in, b_in)), output=False)
    assert saved is not None
    return saved


def _kept(saved: Saved) -> tuple[int, int]:
    return saved.ints.data_ptr(), saved.floats.data_ptr()


def target(w: Tensor | None, wanted: bool, step: Step | None) -> Tensor | None:
    """Where a weight's gradient goes: into a tensor of its own or, with a step, onto itself."""
    if w is None or not wanted:
        return None
    if step is not None:
        return w.detach()
    return torch.empty_like(w, memory_format=torch.contiguous_format)


def contiguous(weights: Weights) -> Weights:
    """The same, each in one piece of memory."""
    w_in, b_in, w_out, b_out = weights
    return Weights(
        w_in.contiguous(),
        None if b_in is None else b_in.contiguous(),
        None if w_out is None else w_out.contiguous(),
        None if b_out is None else b_out.contiguous(),
    )


def address(t: Tensor | None) -> int:
    """Where the tensor's numbers are; 0 for None."""
    return 0 if t is None else t.data_ptr()


# Torch does not see a kernel. While a FlopCounterMode is active, each kernel calls an operation
# that does nothing and has a formula for what the kernel did.


@torch.library.custom_op("hardgate::multiplied", mutates_args=())
def _multiplied(on: Tensor, each: int) -> Tensor:
    return on.new_empty(0)


@register_flop_formula(torch.ops.hardgate.multiplied, get_raw=True)
def _(on: Tensor, each: int, **_: Any) -> int:
    return 2 * each * int(on.count_nonzero())


def report_multiplications(on: Tensor, each: int) -> None:
    """Report to an active FlopCounterMode `each` multiplications per entry of `on` that is not 0.

    A multiplication and its addition are two operations, as everywhere in torch.
    """
    if torch_state.dispatch_modes():
        _multiplied(on, each)

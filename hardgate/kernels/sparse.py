"""The conditional layer by kernels that skip what is off."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardgate.kernels.compiled.layout import at_once, length, of_index, of_values
from hardgate.kernels.compiler import run, threads
from hardgate.kernels.flops import tell
from hardgate.kernels.problem import Gradients, Problem, Wanted
from hardgate.kernels.update import Step, changed, descended

_ENOUGH = 2**15  # gates that are looked at to know how many are on
_UNITS = 128  # of a chunk: few enough to stay in the cache, enough to make it worth while


class Saved(NamedTuple):
    """What the forward pass leaves to the backward pass: the index, and g, H and S by entry."""

    ints: Tensor
    floats: Tensor
    slots: int
    C: int
    T: int


def density(gates: Tensor) -> float:
    """The part of the gates that is on; of many, as many examples are looked at as tell it."""
    return count(gates.contiguous().data_ptr(), gates.dtype, *gates.shape)


def count(gates: int, dtype: torch.dtype, B: int, G: int) -> float:
    """The same for the gates `[B, G]` at this address."""
    every = min(B, -(-B * G // _ENOUGH)) if B * G > _ENOUGH else 1
    on: int = run("count", dtype, gates, B, G, every)
    return on / max(1, -(-B // every) * G)


def chunks(G: int, K: int) -> tuple[int, int, int]:
    """How many gates make a chunk, how many chunks that gives, for how many shares."""
    T = threads()
    C = min(max(8, _UNITS // K), max(8, -(-G // (8 * T))))
    C = -(-C // 8) * 8  # the index takes eight at a time
    return C, -(-G // C), T


def forward(
    problem: Problem, keep: bool = True, output: bool = True
) -> tuple[Tensor, Saved | None]:
    """As `reference.forward`; with `keep`, what the backward pass can use, or that alone."""
    p, (B, n, G, K, n_out) = problem, _sizes(problem)
    x, gates, w_in = p.x.contiguous(), p.gates.contiguous(), p.w_in.contiguous()
    w_out, b_in, b_out = _contiguous(p.w_out), _contiguous(p.b_in), _contiguous(p.b_out)
    (C, slots, T), saved = chunks(G, K), None
    if keep:
        n_list = length(slots, C, B)
        ints = torch.empty(of_index(slots, C, B, n_list), dtype=torch.int32)
        saved = Saved(ints, x.new_empty(of_values(K, n_list)), slots, C, T)
        places = (ints.data_ptr(), saved.floats.data_ptr(), slots)
    else:  # a second pass needs the index of all chunks
        places = (0, 0, T if at_once(K, B, n_out) else slots)
    y = x.new_empty(B if output else 0, n_out if w_out is not None else G * K)
    tensors = (at(y), at(x), at(gates), at(w_in), at(b_in), at(w_out), at(b_out))
    run("forward", w_in.dtype, *tensors, *places, B, G, K, n, n_out, p.relu, C, T)
    tell(gates, K * (n + n_out))
    return y, saved


def backward(
    problem: Problem, dy: Tensor, wanted: Wanted, saved: Saved | None, step: Step | None = None
) -> Gradients:
    """As `reference.backward`; with `step`, the weights that are wanted change in place."""
    if step is not None and not _in_rows(problem):  # a step needs the memory of the weights
        return descended(problem, backward(problem, dy, wanted, saved), step)
    if saved is None:
        _, saved = forward(problem._replace(w_out=None, b_out=None), output=False)
        assert saved is not None
    p, (B, n, G, K, n_out) = problem, _sizes(problem)
    x, w_in = p.x.contiguous(), p.w_in.contiguous()
    w_out, dy = _contiguous(p.w_out), dy.contiguous()
    g = Gradients(
        x=x.new_empty(B, n) if wanted.x else None,
        gates=x.new_empty(B, G) if wanted.gates else None,
        w_in=_target(p.w_in, wanted.w_in, step),
        b_in=_target(p.b_in, wanted.b_in, step),
        w_out=_target(p.w_out, wanted.w_out, step),
        b_out=_target(p.b_out, wanted.b_out, step),
    )
    probed = g.gates is not None and p.probe is not None
    if g.gates is not None and p.probe is not None:  # before a step changes the weights
        _probe(p, dy, p.probe, g.gates)
    ints, floats, slots, C, T = saved
    tensors = (at(dy), at(x), at(w_in), at(w_out), ints.data_ptr(), floats.data_ptr())
    targets = (at(g.x), at(g.gates), at(g.w_in), at(g.b_in), at(g.w_out), at(g.b_out))
    lr, most = (-1.0, 0.0) if step is None else (float(step.lr), float(step.most))
    sizes = (slots, B, G, K, n, n_out)
    flags = (not probed, False, p.relu)
    run("backward", x.dtype, *tensors, *targets, *sizes, *flags, lr, most, C, T)
    inner, outer = wanted.x + wanted.w_in, 1 + wanted.w_out
    tell(p.gates, K * (inner * n + outer * n_out))
    if step is None:
        return g
    changed(g.w_in, g.b_in, g.w_out, g.b_out)
    return Gradients(x=g.x, gates=g.gates)


def _probe(problem: Problem, dy: Tensor, probe: Tensor, out: Tensor) -> None:
    """out = the gradient of gates that are off but probed: weight·dS·H, evaluated here only."""
    weights = probe.masked_fill(problem.gates != 0, 0)
    probed = problem._replace(gates=weights, probe=None)
    p, (B, n, G, K, n_out) = probed, _sizes(probed)
    _, saved = forward(probed._replace(w_out=None, b_out=None), output=False)
    assert saved is not None
    ints, floats, slots, C, T = saved
    w_in, w_out = p.w_in.contiguous(), _contiguous(p.w_out)
    tensors = (at(dy), 0, at(w_in), at(w_out), ints.data_ptr(), floats.data_ptr())
    targets, sizes = (0, at(out), 0, 0, 0, 0), (slots, B, G, K, n, n_out)
    run("backward", out.dtype, *tensors, *targets, *sizes, True, True, p.relu, -1.0, 0.0, C, T)
    tell(weights, K * n_out)


def _target(w: Tensor | None, wanted: bool, step: Step | None) -> Tensor | None:
    """Where a weight's gradient goes: into a tensor of its own or, with a step, onto itself."""
    if w is None or not wanted:
        return None
    if step is not None:
        return w.detach()
    return torch.empty_like(w, memory_format=torch.contiguous_format)


def _in_rows(problem: Problem) -> bool:
    changed = (problem.w_in, problem.b_in, problem.w_out, problem.b_out)
    return all(t is None or t.is_contiguous() for t in changed)


def _sizes(problem: Problem) -> tuple[int, int, int, int, int]:
    """B, in, gates, units in a block, out."""
    (B, n), G = problem.x.shape, problem.gates.shape[1]
    out = 0 if problem.w_out is None else problem.w_out.shape[1]
    return B, n, G, problem.w_in.shape[0] // G, out


def _contiguous(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def at(t: Tensor | None) -> int:
    """The address of the tensor's numbers; 0 for None."""
    return 0 if t is None else t.data_ptr()

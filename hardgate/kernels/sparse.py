"""The conditional layer by kernels that skip what is off."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardgate.kernels.compiler import run, threads
from hardgate.kernels.problem import Gradients, Problem, Wanted
from hardgate.kernels.update import Step, descended


class Found(NamedTuple):
    """How many entries of a matrix are not zero, counted by row and column, for T threads."""

    offsets: Tensor
    N: int
    T: int


class Saved(NamedTuple):
    """What the forward pass leaves to the backward pass: the index, and g, H and S by entry."""

    found: Found
    entries: Tensor
    floats: Tensor


def find(gates: Tensor) -> Found:
    """Count the entries that are not zero; torch's own count takes as long as the layer."""
    gates, T, (B, G) = gates.contiguous(), threads(), gates.shape
    offsets = torch.empty(G + 2 + B * T, dtype=torch.int32)
    return Found(offsets, run("count", gates.dtype, at(gates), B, G, at(offsets), T), T)


def forward(
    problem: Problem, keep: bool = True, found: Found | None = None
) -> tuple[Tensor, Saved | None]:
    """As `reference.forward`; with `keep`, what the backward pass can use."""
    p, (B, n, G, K, n_out) = problem, _sizes(problem)
    x, gates, w_in = p.x.contiguous(), p.gates.contiguous(), p.w_in.contiguous()
    w_out, b_in, b_out = map(_contiguous, (p.w_out, p.b_in, p.b_out))
    tensors = (at(x), at(gates), at(w_in), at(b_in), at(w_out), at(b_out))
    if B == 1 and not keep and w_out is not None:
        y = x.new_empty(1, n_out)
        run("single", x.dtype, at(y), *tensors, G, K, n, n_out, p.relu, threads())
        return y, None
    found = find(gates) if found is None else found
    offsets, N, T = found
    y = x.new_empty(B, n_out) if w_out is not None else x.new_zeros(B, G * K)
    saved = Saved(found, offsets.new_empty(3 * N), x.new_empty((2 * K + 1) * N))
    places = (at(offsets), at(saved.entries), at(saved.floats))
    run("forward", x.dtype, at(y), *tensors, *places, B, G, K, n, n_out, N, p.relu, T)
    return y, saved


def backward(
    problem: Problem, dy: Tensor, wanted: Wanted, saved: Saved | None, step: Step | None = None
) -> Gradients:
    """As `reference.backward`; with `step`, the weights that are wanted change in place."""
    if step is not None and not _in_rows(problem):  # a step needs the memory of the weights
        return descended(problem, backward(problem, dy, wanted, saved), step)
    if saved is None:
        _, saved = forward(problem)
        assert saved is not None
    p, (B, n, G, K, n_out) = problem, _sizes(problem)
    x, w_in = p.x.contiguous(), p.w_in.contiguous()
    w_out, dy = _contiguous(p.w_out), dy.contiguous()
    gradients = Gradients(
        x=x.new_empty(B, n) if wanted.x else None,
        gates=x.new_empty(B, G) if wanted.gates else None,
        w_in=_target(p.w_in, wanted.w_in, step),
        b_in=x.new_empty(G * K) if wanted.b_in else None,
        w_out=_target(p.w_out, wanted.w_out, step),
        b_out=dy.sum(0) if wanted.b_out else None,
    )
    probed = None  # found before a step changes the weights
    if wanted.gates and p.probe is not None:
        probed = _probed(p, dy, p.probe)
    g, (offsets, N, T) = gradients, saved.found
    places = (at(offsets), at(saved.entries), at(saved.floats))
    targets = (at(g.x), at(g.gates), at(g.w_in), at(g.b_in), at(g.w_out))
    lr, most = (-1.0, 0.0) if step is None else (float(step.lr), float(step.most))
    tensors, sizes = (at(dy), at(x), at(w_in), at(w_out)), (B, G, K, n, n_out, N)
    run("backward", x.dtype, *tensors, *places, *targets, *sizes, p.relu, lr, most, T)
    if g.gates is not None and probed is not None:
        g.gates += probed
    if step is not None:
        g.w_in = g.w_out = None
    return gradients


def _probed(problem: Problem, dy: Tensor, probe: Tensor) -> Tensor:
    """The gradient of gates that are off but probed: weight·dS·H, evaluated here only."""
    p, (B, n, G, K, n_out) = problem, _sizes(problem)
    out = p.x.new_zeros(B, G)
    weights = probe.masked_fill(p.gates != 0, 0).contiguous()
    x, w_in = p.x.contiguous(), p.w_in.contiguous()
    b_in, w_out = map(_contiguous, (p.b_in, p.w_out))
    offsets, N, T = find(weights)
    entries, floats = offsets.new_empty(3 * N), x.new_empty((2 * K + 1) * N)
    tensors = (at(out), at(dy), at(x), at(weights), at(w_in), at(b_in), at(w_out))
    places = (at(offsets), at(entries), at(floats))
    run("probe", p.x.dtype, *tensors, *places, B, G, K, n, n_out, N, p.relu, T)
    return out


def _target(w: Tensor | None, wanted: bool, step: Step | None) -> Tensor | None:
    """Where a weight's gradient goes: into a tensor of its own or, with a step, onto itself."""
    if w is None or not wanted:
        return None
    if step is not None:
        return w.detach()
    return torch.empty_like(w, memory_format=torch.contiguous_format)


def _in_rows(problem: Problem) -> bool:
    w_in, w_out = problem.w_in, problem.w_out
    return w_in.is_contiguous() and (w_out is None or w_out.is_contiguous())


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

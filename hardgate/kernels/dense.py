"""The conditional layer as masked matrix products: every expert is computed, then gated.

Fast for dense gates. A product with an off gate is 0·H, which is NaN where H is not finite. So
where some gates are off and the result is not finite, the reference computes it again: there, units
that are off do not exist. It takes a few examples at a time, since it copies the weights of every
unit that is on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate.kernels import reference
from hardgate.kernels.problem import Gradients, Problem, Wanted
from hardgate.kernels.update import Step, descended

_COPIED = 2**22  # numbers that the reference may copy at once


def forward(problem: Problem, keep: bool = True) -> tuple[Tensor, Tensor | None]:
    """As `reference.forward`; with `keep`, saves H."""
    x, (w_in, _, w_out, b_out) = problem.x, problem.weights
    if w_in.dtype is not x.dtype:  # bf16 weights, which are multiplied in fp32
        w_in, w_out = w_in.to(x.dtype), None if w_out is None else w_out.to(x.dtype)
        problem = problem._replace(weights=problem.weights._replace(w_in=w_in, w_out=w_out))
    H = _experts(problem)
    gates = _gates_of_units(problem)
    s = H * gates if keep else H.mul_(gates)
    y = s if w_out is None else linear(s, w_out.t(), b_out)
    if not _trusted(problem, y):
        y = torch.cat([reference.forward(part)[0] for part, _ in _parts(problem)])
    return y, H if keep else None


def backward(
    problem: Problem,
    dy: Tensor,
    wanted: Wanted,
    saved: Tensor | None,
    step: Step | None = None,
) -> Gradients:
    """As `reference.backward`; with `step`, the weights that are wanted change in place."""
    gradients = _gradients(problem, dy, wanted, saved)
    return gradients if step is None else descended(problem.weights, gradients, step)


def _gradients(problem: Problem, dy: Tensor, wanted: Wanted, saved: Tensor | None) -> Gradients:
    p, (w_in, _, w_out, _) = problem, problem.weights
    H, g = _experts(p) if saved is None else saved, _gates_of_units(p)
    ds = dy if w_out is None else dy @ w_out.t()
    dg = ds * H
    # Whatever is not finite in x, dy or the weights shows in dg. Or it was -∞ before a ReLU: then
    # it shows in x, or in its gradient.
    if not _trusted(p, dg, *([p.x] if p.relu else [])):
        return _exact_gradients(p, dy, wanted)
    dH = (ds * g).masked_fill(H <= 0, 0) if p.relu else ds * g
    gradients = Gradients()
    if wanted.x:
        gradients.x = dH @ w_in
        if p.relu and not _trusted(p, gradients.x):
            return _exact_gradients(p, dy, wanted)
    if wanted.w_in:
        gradients.w_in = dH.T @ p.x
    if wanted.b_in:
        gradients.b_in = dH.sum(0)
    if wanted.w_out and w_out is not None:
        gradients.w_out = (g * H).T @ dy
    if wanted.b_out:
        gradients.b_out = dy.sum(0)
    if wanted.gates:
        per_gate = dg if p.block == 1 else dg.unflatten(1, (-1, p.block)).sum(-1)
        on = p.gates != 0
        gradients.gates = per_gate * (on if p.probe is None else p.probe.masked_fill(on, 1.0))
    return gradients


def _experts(problem: Problem) -> Tensor:
    H = linear(problem.x, *problem.weights[:2])
    return H.relu_() if problem.relu else H


def _gates_of_units(problem: Problem) -> Tensor:
    block = problem.block
    return problem.gates if block == 1 else problem.gates.repeat_interleave(block, dim=1)


def _trusted(problem: Problem, *results: Tensor) -> bool:
    """Whether no unit that is off can have made them NaN: all are finite, or all units are on."""
    return all(map(_all_finite, results)) or bool((problem.gates != 0).all())


def _all_finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite: either would make the sum so."""
    return x.is_meta or math.isfinite(x.sum().item())


def _exact_gradients(problem: Problem, dy: Tensor, wanted: Wanted) -> Gradients:
    """The gradients of the reference."""
    total, xs, gates = Gradients(), list[Tensor | None](), list[Tensor | None]()
    for part, rows in _parts(problem):
        found = reference.backward(part, dy[rows], wanted)
        for name in ("w_in", "b_in", "w_out", "b_out"):
            before, gradient = getattr(total, name), getattr(found, name)
            setattr(total, name, gradient if before is None else before.add_(gradient))
        xs.append(found.x)
        gates.append(found.gates)
    total.x, total.gates = _concatenated(xs), _concatenated(gates)
    return total


def _concatenated(parts: list[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _parts(problem: Problem) -> Iterator[tuple[Problem, slice]]:
    """The problem, a few examples at a time."""
    p, w_out = problem, problem.weights.w_out
    widest = max(1, p.x.shape[1], 1 if w_out is None else w_out.shape[1])
    few = max(1, _COPIED // (p.hidden * widest))
    for first in range(0, len(p.x), few):
        rows = slice(first, first + few)
        probe = None if p.probe is None else p.probe[rows]
        yield p._replace(x=p.x[rows], gates=p.gates[rows], probe=probe), rows

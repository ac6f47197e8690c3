"""The conditional layer as masked matrix products: every expert is computed, then gated.

Fast for dense gates. A product with an off gate is 0·H, which is NaN where H is not finite, so a
result that is not finite, where some gates are off, is computed again by the reference, where
units that are off do not exist: a few examples at a time, since it copies the weights of every
unit that is on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate.kernels import reference
from hardgate.kernels.compiler import run
from hardgate.kernels.problem import Gradients, Problem, Wanted
from hardgate.kernels.update import Step, descended

_ROOM = 2**22  # numbers that the reference may copy at once


def forward(problem: Problem, keep: bool = True) -> tuple[Tensor, Tensor]:
    """As `reference.forward`; saves H."""
    problem = problem.widened()
    H = _experts(problem)
    s = H * _spread(problem, problem.gates)
    y = s if problem.w_out is None else linear(s, problem.w_out.T, problem.b_out)
    return (y if _trusted(problem, y) else _again(problem)), H


def infer(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor,
    b_out: Tensor | None,
    relu: bool,
) -> Tensor:
    """y alone, for matrices in memory's order on the CPU, where the kernels are; nothing copied."""
    H = linear(x, w_in, b_in)
    H = H.relu_() if relu else H
    if H.shape == gates.shape:
        H.mul_(gates)
    else:
        H.view(*gates.shape, -1).mul_(gates.unsqueeze(-1))
    y = linear(H, w_out, b_out)
    if run("finite", y.dtype, y.data_ptr(), y.numel()):
        return y
    problem = Problem.of(x, gates, w_in, b_in, w_out, b_out, None, relu)
    return y if _trusted(problem, y) else _again(problem)


def backward(
    problem: Problem,
    dy: Tensor,
    wanted: Wanted,
    saved: Tensor | None,
    step: Step | None = None,
) -> Gradients:
    """As `reference.backward`; with `step`, the weights that are wanted change in place."""
    gradients = _gradients(problem, dy, wanted, saved)
    return gradients if step is None else descended(problem, gradients, step)


def _gradients(problem: Problem, dy: Tensor, wanted: Wanted, saved: Tensor | None) -> Gradients:
    p = problem
    H, g = _experts(p) if saved is None else saved, _spread(p, p.gates)
    ds = dy if p.w_out is None else dy @ p.w_out.T
    dg = ds * H
    # Whatever is not finite in x, dy or the weights shows in dg, or was -∞ before a ReLU: then it
    # shows in x, or in its gradient.
    if not _trusted(p, dg, *([p.x] if p.relu else [])):
        return _back_again(p, dy, wanted)
    dH = (ds * g).masked_fill(H <= 0, 0) if p.relu else ds * g
    gradients = Gradients()
    if wanted.x:
        gradients.x = dH @ p.w_in
        if p.relu and not _trusted(p, gradients.x):
            return _back_again(p, dy, wanted)
    if wanted.w_in:
        gradients.w_in = dH.T @ p.x
    if wanted.b_in:
        gradients.b_in = dH.sum(0)
    if wanted.w_out and p.w_out is not None:
        gradients.w_out = (g * H).T @ dy
    if wanted.b_out:
        gradients.b_out = dy.sum(0)
    if wanted.gates:
        per_gate = dg if p.block == 1 else dg.unflatten(1, (-1, p.block)).sum(-1)
        on = p.gates != 0
        gradients.gates = per_gate * (on if p.probe is None else p.probe.masked_fill(on, 1.0))
    return gradients


def _experts(problem: Problem) -> Tensor:
    H = _affine(problem.x, problem.w_in.T, problem.b_in)
    return torch.relu(H) if problem.relu else H


def _affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    return x @ w if b is None else torch.addmm(b, x, w)


def _spread(problem: Problem, gates: Tensor) -> Tensor:
    return gates if problem.block == 1 else gates.repeat_interleave(problem.block, dim=1)


def _trusted(problem: Problem, *results: Tensor) -> bool:
    """Whether no unit that is off can have spoilt them: all are finite, or all units are on."""
    return all(map(_finite, results)) or bool((problem.gates != 0).all())


def _again(problem: Problem) -> Tensor:
    return torch.cat([reference.forward(part)[0] for part, _ in _parts(problem)])


def _back_again(problem: Problem, dy: Tensor, wanted: Wanted) -> Gradients:
    total, xs, gates = Gradients(), list[Tensor | None](), list[Tensor | None]()
    for part, rows in _parts(problem):
        found = reference.backward(part, dy[rows], wanted)
        for name in ("w_in", "b_in", "w_out", "b_out"):
            before, gradient = getattr(total, name), getattr(found, name)
            setattr(total, name, gradient if before is None else before.add_(gradient))
        xs.append(found.x)
        gates.append(found.gates)
    total.x, total.gates = _together(xs), _together(gates)
    return total


def _together(parts: list[Tensor | None]) -> Tensor | None:
    found = [part for part in parts if part is not None]
    return torch.cat(found) if found else None


def _parts(problem: Problem) -> Iterator[tuple[Problem, slice]]:
    """The problem, a few examples at a time."""
    p, out = problem, 1 if problem.w_out is None else problem.w_out.shape[1]
    few = max(1, _ROOM // (p.hidden * max(1, p.x.shape[1], out)))
    for first in range(0, len(p.x), few):
        rows = slice(first, first + few)
        probe = None if p.probe is None else p.probe[rows]
        yield p._replace(x=p.x[rows], gates=p.gates[rows], probe=probe), rows


def _finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one sum, which either would spoil."""
    return x.is_meta or math.isfinite(x.sum().item())

"""The conditional layer as masked matrix products: every expert is computed, then gated.

Fast for dense gates. A product with an off gate is 0·H, which is NaN where H is not finite, so a
result that is not finite is computed again by the reference, where units that are off do not
exist.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate.kernels import reference
from hardgate.kernels.compiler import run
from hardgate.kernels.problem import Gradients, Problem, Wanted
from hardgate.kernels.room import NARROW
from hardgate.kernels.update import Step, descended


def forward(problem: Problem, keep: bool = True) -> tuple[Tensor, Tensor]:
    """As `reference.forward`; saves H."""
    H = _experts(problem)
    s = H * _spread(problem, problem.gates)
    y = s if problem.w_out is None else _outputs(s, problem.w_out.T, problem.b_out)
    return (y if _finite(y) else reference.forward(problem)[0]), H


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
    y = _outputs(H, w_out, b_out)
    if run("finite", y.dtype, y.data_ptr(), y.numel()):
        return y
    return reference.forward(Problem.of(x, gates, w_in, b_in, w_out, b_out, None, relu))[0]


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
    if not _finite(dg) or (p.relu and not _finite(p.x)):
        return reference.backward(problem, dy, wanted)
    dH = (ds * g).masked_fill(H <= 0, 0) if p.relu else ds * g
    gradients = Gradients()
    if wanted.x:
        gradients.x = dH @ p.w_in
        if p.relu and not _finite(gradients.x):
            return reference.backward(problem, dy, wanted)
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


def _outputs(s: Tensor, w_out: Tensor, b_out: Tensor | None) -> Tensor:
    """Of unit-major weights: a product with few outputs gains more than their copy takes."""
    return linear(s, w_out.contiguous() if len(w_out) <= NARROW else w_out, b_out)


def _spread(problem: Problem, gates: Tensor) -> Tensor:
    return gates if problem.block == 1 else gates.repeat_interleave(problem.block, dim=1)


def _finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite: one sum, which either would spoil."""
    return x.is_meta or math.isfinite(x.sum().item())

"""What the conditional layer means, in plain torch: only (example, gate) pairs that are on exist.

Slow and exact. Every other implementation returns what this one returns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.kernels.problem import Gradients, Problem, Wanted


def forward(problem: Problem, keep: bool = True) -> tuple[Tensor, None]:
    """y = Σ over the units that are on of g·H·w_out, H = w_in·x + b_in. Saves nothing."""
    (_, _, w_out, b_out), B = problem.weights, len(problem.x)
    b, u = _units(problem, problem.gates != 0)
    s = _gate(problem, b, u) * _expert(problem, b, u)
    if w_out is None:
        return s.new_zeros(B, problem.hidden).index_put((b, u), s), None
    y = s.new_zeros(B, w_out.shape[1]).index_add(0, b, s.unsqueeze(-1) * w_out[u])
    return (y if b_out is None else y + b_out), None


def backward(problem: Problem, dy: Tensor, wanted: Wanted, saved: None = None) -> Gradients:
    """The gradients of all that is wanted; that of the gates where they are on or probed."""
    p, x = problem, problem.x
    w_in, _, w_out, _ = p.weights
    b, u = _units(p, p.gates != 0)
    H, g = _expert(p, b, u), _gate(p, b, u)
    ds = _output_gradient(p, dy, b, u)
    dH = (ds * g).masked_fill(H <= 0, 0) if p.relu else ds * g
    gradients = Gradients()
    if wanted.x:
        gradients.x = torch.zeros_like(x).index_add(0, b, dH.unsqueeze(-1) * w_in[u])
    if wanted.w_in:
        gradients.w_in = torch.zeros_like(w_in).index_add(0, u, dH.unsqueeze(-1) * x[b])
    if wanted.b_in:
        gradients.b_in = x.new_zeros(p.hidden).index_add(0, u, dH)
    if wanted.w_out and w_out is not None:
        rows = (g * H).unsqueeze(-1) * dy[b]
        gradients.w_out = torch.zeros_like(w_out).index_add(0, u, rows)
    if wanted.b_out:
        gradients.b_out = dy.sum(0)
    if wanted.gates:
        weight = torch.zeros_like(p.gates) if p.probe is None else p.probe
        weight = weight.masked_fill(p.gates != 0, 1)
        b, u = _units(p, weight != 0)
        part = _output_gradient(p, dy, b, u) * _expert(p, b, u)
        dg = torch.zeros_like(p.gates).index_put((b, u // p.block), part, accumulate=True)
        gradients.gates = weight * dg
    return gradients


def _units(problem: Problem, on: Tensor) -> tuple[Tensor, Tensor]:
    """The (example, hidden unit) pairs of the gates in the mask `on`."""
    b, u = on.repeat_interleave(problem.block, dim=1).nonzero(as_tuple=True)
    return b, u


def _gate(problem: Problem, b: Tensor, u: Tensor) -> Tensor:
    return problem.gates[b, u // problem.block]


def _expert(problem: Problem, b: Tensor, u: Tensor) -> Tensor:
    w_in, b_in, _, _ = problem.weights
    H = (problem.x[b] * w_in[u]).sum(-1)
    H = H if b_in is None else H + b_in[u]
    return torch.relu(H) if problem.relu else H


def _output_gradient(problem: Problem, dy: Tensor, b: Tensor, u: Tensor) -> Tensor:
    w_out = problem.weights.w_out
    return dy[b, u] if w_out is None else (dy[b] * w_out[u]).sum(-1)

"""The conditional layer by kernels that skip what is off."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardgate.kernels.compiler import in_the_open, kernels, threads
from hardgate.kernels.problem import Gradients, Problem, Wanted
from hardgate.kernels.update import Step


class Saved(NamedTuple):
    """What the forward pass leaves to the backward pass: the index and H of every entry."""

    entries: tuple[Any, ...]
    H: Any


def nonzero(gates: Tensor) -> int:
    """How many entries are not zero; torch's own count takes as long as the layer."""
    count: int = kernels().count(_array(gates))
    return count


def forward(problem: Problem, keep: bool = True) -> tuple[Tensor, Saved | None]:
    """As `reference.forward`; with `keep`, what the backward pass can use."""
    with in_the_open(("forward", problem.x.dtype, problem.w_out is None, keep)):
        return _forward(problem, keep)


def _forward(problem: Problem, keep: bool) -> tuple[Tensor, Saved | None]:
    cpu, T, p = kernels(), threads(), problem
    x, gates, w_in, b_in = _array(p.x), _array(p.gates), _array(p.w_in), _bias(p)
    if p.w_out is None:
        y = p.x.new_zeros(len(p.x), p.hidden)
        index = cpu.index(gates, T)
        *_, gate_off, example, value = index
        H = cpu.up(x, w_in, b_in, gate_off, example, p.relu, T)
        cpu.write_blocks(y.numpy(), cpu.times(value, H), gate_off, example)
        return y, Saved(index, H)
    y = p.x.new_zeros(len(p.x), p.w_out.shape[1])
    if p.b_out is not None:
        y += p.b_out
    if len(p.x) == 1 and not keep:
        cpu.single(y.numpy()[0], x[0], gates[0], w_in, b_in, _array(p.w_out), p.relu, T)
        return y, None
    found = cpu.forward(y.numpy(), x, gates, w_in, b_in, _array(p.w_out), p.relu, T)
    return y, Saved(*found)


def backward(
    problem: Problem, dy: Tensor, wanted: Wanted, saved: Saved | None, step: Step | None = None
) -> Gradients:
    """As `reference.backward`; with `step`, the weights that are wanted change in place."""
    with in_the_open(("backward", problem.x.dtype, wanted, problem.probe is None, step is None)):
        return _backward(problem, dy, wanted, saved, step)


def _backward(
    problem: Problem, dy: Tensor, wanted: Wanted, saved: Saved | None, step: Step | None
) -> Gradients:
    cpu, T, p = kernels(), threads(), problem
    if saved is None:
        _, saved = forward(problem)
        assert saved is not None
    (start, end, row_gate, place, gate_off, example, value), H = saved
    x, w_in, dout = _array(p.x), _array(p.w_in), _array(dy)
    dS = _output_gradient(p, dy, gate_off, example)
    dH, dg = cpu.back_values(dS, H, value, p.relu)
    gradients = Gradients()
    if wanted.x:
        gradients.x = torch.zeros_like(p.x, memory_format=torch.contiguous_format)
        cpu.down(gradients.x.numpy(), dH, w_in, start, end, row_gate, place, T)
    if wanted.b_in:
        gradients.b_in = p.x.new_empty(p.hidden)
        cpu.back_sums(gradients.b_in.numpy(), dH, gate_off)
    if wanted.b_out:
        gradients.b_out = dy.sum(0)
    if wanted.gates:
        gradients.gates = torch.zeros_like(p.gates, memory_format=torch.contiguous_format)
        cpu.scatter(gradients.gates.numpy(), dg, start, end, row_gate, place)
        if p.probe is not None:
            _add_probed(p, dy, gradients.gates)
    # The weights last: a step changes them, and all that is above reads them.
    if wanted.w_in:
        gradients.w_in = weight(p.w_in, dH, x, gate_off, example, step)
    if wanted.w_out and p.w_out is not None:
        free = None if step is None else Step(step.lr, 0.0)  # its rows are outgoing weights
        S = cpu.times(value, H)
        gradients.w_out = weight(p.w_out, S, dout, gate_off, example, free)
    return gradients


def weight(
    w: Tensor, c: Any, rows: Any, gate_off: Any, example: Any, step: Step | None
) -> Tensor | None:
    """The gradient of w, rows Σ c·row; or None, and w one step further."""
    cpu, T = kernels(), threads()
    if step is None:
        gradient = torch.empty_like(w, memory_format=torch.contiguous_format)
        cpu.back_rows(gradient.numpy(), c, rows, gate_off, example, False, 0.0, T)
        return gradient
    c = c * c.dtype.type(-step.lr)
    cpu.back_rows(w.detach().numpy(), c, rows, gate_off, example, True, step.most, T)
    return None


def _add_probed(problem: Problem, dy: Tensor, out: Tensor) -> None:
    """The gradient of gates that are off but probed: weight·dS·H, evaluated here only."""
    cpu, T, p = kernels(), threads(), problem
    assert p.probe is not None
    weights = p.probe.masked_fill(p.gates != 0, 0)
    start, end, row_gate, place, gate_off, example, value = cpu.index(_array(weights), T)
    H = cpu.up(_array(p.x), _array(p.w_in), _bias(p), gate_off, example, p.relu, T)
    _, dg = cpu.back_values(_output_gradient(p, dy, gate_off, example), H, value, p.relu)
    dg = cpu.times(value, dg.reshape(1, -1))[0]
    cpu.scatter(out.numpy(), dg, start, end, row_gate, place)


def _output_gradient(problem: Problem, dy: Tensor, gate_off: Any, example: Any) -> Any:
    if problem.w_out is None:
        return kernels().read_blocks(_array(dy), gate_off, example, problem.block)
    w_out = _array(problem.w_out)
    return kernels().back_dots(_array(dy), w_out, gate_off, example, problem.block, threads())


def _bias(problem: Problem) -> Any:
    return _array(problem.x.new_zeros(problem.hidden) if problem.b_in is None else problem.b_in)


def _array(t: Tensor) -> Any:
    """The tensor's memory, with contiguous rows."""
    return t.detach().contiguous().numpy()

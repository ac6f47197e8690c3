"""Where the time of a training step goes: its parts, timed on the tensors of one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hardgate import UNITS, ConditionalMLP, FusedSGD
from hardgate.kernels import sparse
from hardgate.kernels.compiler import kernels, unavailable
from hardgate.kernels.gate_linear import _skip
from hardgate.kernels.problem import Problem, Wanted
from hardgate.kernels.update import Step
from hardgate.lab import bench_steps
from hardgate.lab.bench import Timing
from hardgate.lab.bench_progress import Progress
from hardgate.lab.timing import Run, interleave


def breakdown(seconds: float, progress: Progress) -> Iterator[Timing]:
    """The step of `FusedSGD` with the default unit; the parts take turns with the whole."""
    if (why := unavailable()) is not None:
        return progress.remark(f"the breakdown of a step is left out: {why}")
    x, y = bench_steps.examples()
    for bottleneck in bench_steps.BOTTLENECKS:
        case = f"{bench_steps.DEFAULT}, bottleneck {bottleneck}"
        progress.case(case)
        model = bench_steps.network(UNITS[bench_steps.DEFAULT](), bottleneck, x)
        optimiser = FusedSGD(model, bench_steps.LR)
        whole = bench_steps.step(model, optimiser, x, y)
        whole()  # leaves gradients behind for the optimiser
        parts = Parts(model, x[: bench_steps.BATCH], y[: bench_steps.BATCH]).runs()
        times = interleave({**parts, "optimiser": optimiser.step, "whole step": whole}, seconds)
        times, density = _differences(times), model.telemetry().density
        yield Timing("breakdown", case, bench_steps.BATCH, density, times)


def _differences(times: dict[str, float]) -> dict[str, float]:
    """`down` without `up`, and what no part accounts for; in the order of a step."""
    down, whole = times.pop("down"), times.pop("whole step")
    down = max(0.0, down - times["up"])  # narrow outputs are added up within `up`
    parts = list(times.items())
    parts.insert(1 + list(times).index("up"), ("down", down))
    rest = whole - sum(ms for _, ms in parts)
    return dict([*parts, ("autograd, Python", rest), ("whole step", whole)])


class Parts:
    """One step of a network, cut into the calls that autograd would make."""

    def __init__(self, model: ConditionalMLP, x: Tensor, y: Tensor) -> None:
        self.model, self.x, self.y = model, x, y
        with torch.no_grad():
            self.z = torch.tanh(model.gater.hidden(x))
            self.a = model.gater.pre_activation(x)
            self.gates = model.gater.unit(self.a)
        w_in, b_in = (w.detach() for w in model.experts.parameters())
        w_out, b_out = model.out.weight.detach().t(), model.out.bias.detach()
        self.problem = Problem(x, self.gates, w_in, b_in, w_out, b_out, None, False)
        logits, saved = sparse.forward(self.problem)
        assert saved is not None
        self.saved, self.logits = saved, logits.requires_grad_()
        self.dy = self.loss()
        self.dh = sparse.backward(self.problem, self.dy, Wanted(), saved).gates

    def runs(self) -> dict[str, Run]:
        """`down` goes on from `up`, and contains it; apart, so neither finds the other's cache."""
        passes = kernels()
        (fill, up), alone, poured = self._arrays(), self._end(0), self._end(16)
        return {
            "gater": torch.no_grad()(lambda: self.model.gater.pre_activation(self.x)),
            "noise, unit": torch.no_grad()(lambda: self.model.gater.unit(self.a)),
            "index": lambda: (sparse.find(self.gates), passes._fill(*fill)),
            "up": lambda: passes._up(*up, *alone),
            "loss": self.loss,
            "layer backward": self.layer_backward,
            "gater backward": torch.no_grad()(self.gater_backward),
            "down": lambda: passes._up(*up, *poured),
        }

    def loss(self) -> Tensor:
        """The loss and its gradient at the network's output."""
        return torch.autograd.grad(cross_entropy(self.logits, self.y), self.logits)[0]

    def layer_backward(self) -> None:
        """Gradients of gates and biases; the experts' weights are changed at once."""
        step = Step(bench_steps.LR, 0.0)
        sparse.backward(self.problem, self.dy, Wanted(x=False), self.saved, step)

    def gater_backward(self) -> None:
        """Back through the rectifier, the gates' weights (changed at once), tanh and the first."""
        assert self.dh is not None
        da = torch.ops.aten.threshold_backward(self.dh, self.gates, 0)
        weight, step = self.model.gater.output.weight, Step(bench_steps.LR, 0.0)
        dz, _, _ = _skip(self.z, weight, da, sparse.find(da), (True, True, True), step)
        d = torch.ops.aten.tanh_backward(dz, self.z)
        _ = d.T @ self.x, d.sum(0)

    def _arrays(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """What the kernels' passes take: to fill the index, and to project up."""
        p, (offsets, N, T) = self.problem, self.saved.found
        lists, floats = self.saved.entries.view(3, N).numpy(), self.saved.floats.view(3, N).numpy()
        cut, (example, unit, place) = p.gates.shape[1] + 1, lists
        gate_off, row_off = offsets[:cut].numpy(), offsets[cut:].numpy()
        fill = (p.gates.numpy(), gate_off, row_off, example, floats[0], unit, place)
        tensors = [t.numpy() for t in (p.x, p.w_in, p.b_in, p.w_out) if t is not None]
        up = (*tensors, gate_off, example, floats[0], floats[1:2], floats[2:])
        return (*fill, T, np.float32(0)), up

    def _end(self, width: int) -> tuple[Any, ...]:
        """The last arguments of a projection up; with a width, of one that goes on down."""
        T = self.saved.found.T
        return np.zeros((T, len(self.x), width), np.float32), False, T, np.float32(0)

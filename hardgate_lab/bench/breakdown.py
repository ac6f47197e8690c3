"""Where the time of a training step goes: its parts, timed on the tensors of one step."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hardgate import UNITS, ConditionalMLP, FusedSGD, noise
from hardgate.kernels import sparse
from hardgate.kernels.compiler import run, unavailable
from hardgate.kernels.op import gate_gradients
from hardgate.kernels.problem import Problem, Wanted, Weights
from hardgate.kernels.update import Step
from hardgate_lab.bench import bench_steps
from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.rig.progress import Teller
from hardgate_lab.rig.timing import Call, interleave


def breakdown(seconds: float, tell: Teller) -> Iterator[Timing]:
    """The step of `FusedSGD` with the default unit; the parts take turns with the whole."""
    if (why := unavailable()) is not None:
        return tell.say(f"the breakdown of a step is left out: {why}")
    x, y = bench_steps.examples()
    for bottleneck in bench_steps.BOTTLENECKS:
        case = f"{bench_steps.DEFAULT}, bottleneck {bottleneck}"
        tell.now(case)
        model = bench_steps.network(UNITS[bench_steps.DEFAULT](), bottleneck, x)
        optimiser = FusedSGD(model, bench_steps.LR)
        whole = bench_steps.step(model, optimiser, x, y)
        whole()  # leaves gradients behind for the optimiser
        parts = Parts(model, x[: bench_steps.BATCH], y[: bench_steps.BATCH]).runs()
        times = interleave({**parts, "optimiser": optimiser.step, "whole step": whole}, seconds)
        times, density = _differences(times), model.telemetry().density
        yield Timing("breakdown", case, bench_steps.BATCH, density, times)


def _differences(times: dict[str, float]) -> dict[str, float]:
    """`up` without the index, `down` without `up`, and what no part accounts for."""
    whole = times.pop("whole step")
    index, up, down = times["index"], times["up"], times["down"]
    times |= {"up": max(0.0, up - index), "down": max(0.0, down - max(up, index))}
    return {**times, "autograd, Python": whole - sum(times.values()), "whole step": whole}


class Parts:
    """One step of a network, cut into the calls that autograd would make."""

    def __init__(self, model: ConditionalMLP, x: Tensor, y: Tensor) -> None:
        self.model, self.x, self.y = model, x, y
        with torch.no_grad():
            self.z = torch.tanh(model.gater.hidden(x))
            self.a = model.gater.pre_activation(x)
            self.gates = model.gater.unit(self.a)
        layers = [model.experts, model.out]
        weights = Weights(*(w.detach() for layer in layers for w in layer.parameters()))
        self.problem = Problem(x, self.gates, weights)
        logits, saved = sparse.forward(self.problem)
        assert saved is not None
        self.saved, self.output = saved, torch.empty_like(logits)
        self.logits = logits.requires_grad_()
        self.dy = self.loss()
        self.dh = sparse.backward(self.problem, self.dy, Wanted(), self.saved).gates

    def runs(self) -> dict[str, Call]:
        """`down` contains `up`, which contains the index: a chunk is done with in one go."""
        n, _, out = bench_steps.SIZES
        return {
            "gater": torch.no_grad()(lambda: self.model.gater.pre_activation(self.x)),
            "noise, unit": torch.no_grad()(self.noise),
            "index": self.index,
            "up": lambda: self.forward(n, 0),
            "down": lambda: self.forward(n, out),
            "loss": self.loss,
            "layer backward": self.layer_backward,
            "gater backward": torch.no_grad()(self.gater_backward),
        }

    def index(self) -> None:
        """How many gates are on, and which."""
        sparse.density(self.gates)
        self.forward(0, 0)

    def forward(self, n: int, out: int) -> None:
        """The kernel of the forward pass with so many inputs and outputs: 0 leaves a part out."""
        p, (ints, floats, slots, C, T) = self.problem, self.saved
        tensors = [sparse.address(t) for t in (self.output, p.x, p.gates, *p.weights)]
        sizes = (*p.gates.shape, p.block, n, out)
        places = (ints.data_ptr(), floats.data_ptr(), slots)
        run("forward", p.x.dtype, *tensors, *places, *sizes, False, C, T)

    def noise(self) -> Tensor:
        """As the gater draws in eager mode."""
        unit = self.model.gater.unit
        h: Tensor = unit(self.a, unit.sample_noise(self.a, noise.kernel_generator(self.a)))
        return h

    def loss(self) -> Tensor:
        """The loss and its gradient at the network's output."""
        return torch.autograd.grad(cross_entropy(self.logits, self.y), self.logits)[0]

    def layer_backward(self) -> None:
        """The gates' gradient; weights and biases are changed at once."""
        step = Step(bench_steps.LR, 0.0)
        sparse.backward(self.problem, self.dy, Wanted(x=False), self.saved, step)

    def gater_backward(self) -> None:
        """Back through the rectifier, the gates' weights, changed at once, tanh and the first."""
        assert self.dh is not None
        gater, step = self.model.gater, Step(bench_steps.LR, 0.0)
        da = self.dh * (self.gates > 0)
        weights = gater.output.weight, gater.output.bias
        dz, *_ = gate_gradients(self.z, *weights, da, (True,) * 3, step)
        assert dz is not None
        ds = dz * (1 - self.z.square())
        torch.mm(ds.T, self.x)
        ds.sum(0)

"""The whole training step of the paper's network, on the clock, against what it has to beat."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hardgate
from hardgate import UNITS, ConditionalMLP, FusedSGD, Unit
from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.rig.progress import Teller
from hardgate_lab.rig.timing import Call, rounds

DEFAULT = 'NoisyRectifier("gaussian")'
SIZES = (784, 2000, 10)
BATCH, EXAMPLES = 32, 2048
BOTTLENECKS = (400, 100)
COMPILE: dict[str, Any] = {"options": {"fallback_random": True}}  # its own noise takes 2 ms more
Data: TypeAlias = tuple[Tensor, Tensor]  # inputs, classes
Loss: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]
LR = 1e-6  # the weights, and with them the density, stay where they are


class Ungated(nn.Sequential):
    """A ReLU network: what the gates have to beat, at the same width or in the same time."""

    def __init__(self, hidden: int = SIZES[1]) -> None:
        super().__init__(nn.Linear(SIZES[0], hidden), nn.ReLU(), nn.Linear(hidden, SIZES[2]))


class Plain(nn.Module):
    """The gated network as anyone would write it in torch: every expert computed, then masked."""

    def __init__(self, unit: Unit, bottleneck: int) -> None:
        super().__init__()
        n, hidden, out = SIZES
        self.hidden, self.gates = nn.Linear(n, bottleneck), nn.Linear(bottleneck, hidden)
        self.experts, self.out = nn.Linear(n, hidden), nn.Linear(hidden, out)
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the ten classes."""
        h = self.unit(self.gates(torch.tanh(self.hidden(x))))
        y: Tensor = self.out(self.experts(x) * h)
        return y


def steps(units: list[str], seconds: float, tell: Teller) -> Iterator[Timing]:
    """Gater, noise, loss, backward, optimiser: in all, and the ungated width of equal time."""
    data = examples()
    why = None if DEFAULT not in units else compilation()
    if why is not None:
        tell.say(f"the compiled dense step is left out: {why}")
    for name in units:
        for bottleneck in BOTTLENECKS:
            case = f"{name}, bottleneck {bottleneck}"
            tell.now(case)
            layer = network(UNITS[name](), bottleneck, data[0])
            fused = network(UNITS[name](), bottleneck, data[0])
            runs: dict[str, Call] = {"dense": plain(name, bottleneck, data)}
            if name == DEFAULT and why is None:
                tell.now(f"{case}: compiling the dense step")
                runs |= compiled(name, bottleneck, data, tell)
            runs["SGD"] = step(layer, sgd(layer), *data)
            runs["FusedSGD"] = step(fused, FusedSGD(fused, LR), *data)
            runs["ungated"] = ungated(SIZES[1], data)
            times = rounds(runs, seconds)
            density = layer.telemetry().density
            yield Timing("training step", case, BATCH, density, *times)
            tell.now(f"{case}: the ungated network of equal time")
            units_, pair = equal_time(runs["FusedSGD"], times.steady, data, seconds / 2)
            yield Timing("equal time", case, BATCH, density, pair, units=units_)


def equal_time(
    fused: Call, times: dict[str, float], data: Data, seconds: float
) -> tuple[int, dict[str, float]]:
    """How wide an ungated network is whose step takes as long, and what both then take.

    The width is scaled by the ratio of the times, twice: a step is not quite linear in it.
    """
    hidden, pair = SIZES[1], times
    for _ in range(2):
        hidden = max(1, round(hidden * pair["FusedSGD"] / pair["ungated"]))
        pair = rounds({"FusedSGD": fused, "ungated": ungated(hidden, data)}, seconds).steady
    return hidden, pair


def compilation() -> str | None:
    """Why torch.compile cannot work here, or None."""
    names = ("g++", "c++", "clang++")
    if any(map(shutil.which, names)):
        return None
    return f"no C++ compiler was found ({', '.join(names)})"


def examples() -> Data:
    """Inputs and classes to take batches from."""
    torch.manual_seed(0)
    return torch.rand(EXAMPLES, SIZES[0]), torch.randint(SIZES[2], (EXAMPLES,))


def network(unit: Unit, bottleneck: int, x: Tensor) -> ConditionalMLP:
    """The paper's network, a tenth of its gates on."""
    torch.manual_seed(0)
    n, hidden, out = SIZES
    model = ConditionalMLP(n, hidden, out, bottleneck=bottleneck, unit=unit)
    hardgate.start_gates_(model, x[:500])
    return model


def ungated(hidden: int, data: Data) -> Call:
    """A step of the ReLU network of this width."""
    model = Ungated(hidden)
    return step(model, sgd(model), *data)


def plain(name: str, bottleneck: int, data: Data, loss: Loss | None = None) -> Call:
    """A step of the dense network, by this way to compute the loss."""
    torch.manual_seed(0)
    model = Plain(UNITS[name](), bottleneck)
    return step(model, sgd(model), *data, loss=loss)


def compiled(name: str, bottleneck: int, data: Data, tell: Teller) -> dict[str, Call]:
    """The same step, forward pass, loss and backward pass compiled; nothing if that fails."""
    run = plain(name, bottleneck, data, torch.compile(mean_loss, **COMPILE))
    try:
        for _ in range(3):
            run()
    except RuntimeError as error:  # a compiler that does not work: no headers, no OpenMP
        reason = str(error).strip().partition("\n")[0]
        tell.say(f"the compiled dense step is left out: {reason}")
        return {}
    return {"compiled": run}


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Torch's fastest."""
    return torch.optim.SGD(model.parameters(), LR, fused=True)


def mean_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What a step descends, without a unit that learns from the loss."""
    return cross_entropy(model(x), y)


def full_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What a step descends, with one."""
    losses = cross_entropy(model(x), y, reduction="none")
    return losses.mean() + hardgate.score_loss(model, losses)


def step(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    loss: Loss | None = None,
) -> Callable[[], None]:
    """One training step after the other, over the examples."""
    scored = any(isinstance(m, Unit) and m.needs_loss for m in model.modules())
    position, loss_of = 0, loss or (full_loss if scored else mean_loss)

    def run() -> None:
        nonlocal position
        position = (position + BATCH) % (EXAMPLES - BATCH)
        batch = slice(position, position + BATCH)
        optimiser.zero_grad()
        loss_of(model, x[batch], y[batch]).backward()
        optimiser.step()

    return run

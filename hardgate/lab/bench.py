"""`hardgate bench`: the conditional layer against dense torch, on the clock."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import hardgate
from hardgate import UNITS, ConditionalMLP, FusedSGD, Unit, functional
from hardgate.lab.timing import Run, interleave

LAYERS = [(1024, 4096, 1024, 1), (784, 2000, 10, 1), (1024, 4096, 1024, 16)]
BATCHES = (1, 32, 256)
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
WIDTHS = (1024, 4096, 16384, 65536)
ACTIVE = 200  # units on per example, at every width


@dataclass(frozen=True)
class Timing:
    """One comparison: milliseconds of the rivals, the dense one first."""

    table: str
    case: str
    batch: int
    density: float
    milliseconds: dict[str, float]

    def ratio(self, name: str) -> float:
        """How many times faster than the first rival."""
        return next(iter(self.milliseconds.values())) / self.milliseconds[name]


@dataclass
class Layer:
    """Weights, inputs and gates of one layer, and the ways to compute it."""

    x: Tensor
    gates: Tensor
    w_in: Tensor
    b_in: Tensor
    rows: Tensor  # unit-major, [hidden, out]
    b_out: Tensor
    block: int

    @staticmethod
    def random(sizes: tuple[int, int, int, int], batch: int, density: float) -> Layer:
        """Random weights, and random gates at this density."""
        n, hidden, out, block = sizes
        gates = torch.rand(batch, hidden // block)
        gates = gates * (torch.rand(batch, hidden // block) < density)
        return Layer(
            torch.randn(batch, n),
            gates,
            torch.randn(hidden, n) / n**0.5,
            torch.randn(hidden),
            torch.randn(hidden, out) / hidden**0.5,
            torch.randn(out),
            block,
        )

    def dense(self) -> Tensor:
        """Masked matrix products in plain torch."""
        gates = self.gates if self.block == 1 else self.gates.repeat_interleave(self.block, 1)
        return linear(linear(self.x, self.w_in, self.b_in) * gates, self._plain, self.b_out)

    def conditional(self, backend: str) -> Tensor:
        """`functional.conditional_mlp`."""
        arguments = (self.x, self.gates, self.w_in, self.b_in, self.rows.T, self.b_out)
        return functional.conditional_mlp(*arguments, backend=backend)  # type: ignore[arg-type]

    def sampled(self) -> Tensor:
        """What torch.sparse has for it: sampled_addmm, then a sparse product."""
        pattern = (self.gates != 0).float().to_sparse_csr()
        H = torch.sparse.sampled_addmm(pattern, self.x, self.w_in.T, beta=0.0)
        index, crow = H.col_indices(), H.crow_indices()
        example = torch.repeat_interleave(torch.arange(len(self.x)), crow.diff())
        values = (H.values() + self.b_in[index]) * self.gates[example, index]
        s = torch.sparse_csr_tensor(crow, index, values, H.shape)
        y: Tensor = torch.sparse.mm(s, self.rows) + self.b_out
        return y

    def __post_init__(self) -> None:
        self._plain = self.rows.T.contiguous()

    def leaves(self) -> list[Tensor]:
        """What a training step differentiates."""
        return [self.x, self.gates, self.w_in, self.b_in, self.rows, self._plain, self.b_out]

    def backward(self, forward: Callable[[], Tensor]) -> Callable[[], None]:
        """Forward and backward, every gradient computed."""
        dy = torch.randn(len(self.x), self.rows.shape[1])
        for leaf in self.leaves():
            leaf.requires_grad_()

        def run() -> None:
            for leaf in self.leaves():
                leaf.grad = None
            forward().backward(dy)

        return run


def layers(seconds: float) -> Iterator[Timing]:
    """Forward, and forward with backward, at 10 % density, random gates, index included."""
    for sizes in LAYERS:
        for batch in BATCHES:
            layer = Layer.random(sizes, batch, 0.1)
            _assert_equal(layer)
            name = "-".join(map(str, sizes[:3])) + (f" blocks of {sizes[3]}" * (sizes[3] > 1))
            with torch.no_grad():
                runs: dict[str, Run] = {
                    "dense": layer.dense,
                    "sparse": partial(layer.conditional, "sparse"),
                }
                if layer.block == 1:
                    warnings.filterwarnings("ignore", message="Sparse")  # torch: beta state
                    runs["torch.sparse"] = layer.sampled
                yield Timing("forward", name, batch, 0.1, interleave(runs, seconds))
            rivals: dict[str, Run] = {
                "dense": layer.backward(layer.dense),
                "sparse": layer.backward(partial(layer.conditional, "sparse")),
            }
            yield Timing("forward + backward", name, batch, 0.1, interleave(rivals, seconds))


def densities(seconds: float) -> Iterator[Timing]:
    """Forward time against density, B = 32."""
    for sizes in LAYERS[:2]:
        for density in DENSITIES:
            layer = Layer.random(sizes, 32, density)
            _assert_equal(layer)
            with torch.no_grad():
                runs: dict[str, Run] = {"dense": layer.dense}
                for backend in ("sparse", "auto"):
                    runs[backend] = partial(layer.conditional, backend)
                name = "-".join(map(str, sizes[:3]))
                yield Timing("density", name, 32, density, interleave(runs, seconds))


def widths(seconds: float) -> Iterator[Timing]:
    """Forward time against the number of experts, 200 of them on."""
    for hidden in WIDTHS:
        for batch in (1, 32):
            layer = Layer.random((784, hidden, 10, 1), batch, ACTIVE / hidden)
            with torch.no_grad():
                runs: dict[str, Run] = {
                    "dense": layer.dense,
                    "sparse": partial(layer.conditional, "sparse"),
                }
                times = interleave(runs, seconds)
                yield Timing("width", str(hidden), batch, ACTIVE / hidden, times)


class Ungated(nn.Sequential):
    """A ReLU network of the same width: what the gates have to beat."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(784, 2000), nn.ReLU(), nn.Linear(2000, 10))


class Plain(nn.Module):
    """The gated network as anyone would write it in torch: every expert computed, then masked."""

    def __init__(self, unit: Unit, bottleneck: int) -> None:
        super().__init__()
        self.hidden, self.gates = nn.Linear(784, bottleneck), nn.Linear(bottleneck, 2000)
        self.experts, self.out = nn.Linear(784, 2000), nn.Linear(2000, 10)
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the ten classes."""
        h = self.unit(self.gates(torch.tanh(self.hidden(x))))
        y: Tensor = self.out(self.experts(x) * h)
        return y


def steps(units: list[str], seconds: float) -> Iterator[Timing]:
    """The whole training step of the paper's network: gater, noise, loss, backward, optimiser."""
    x, y = torch.rand(2048, 784), torch.randint(10, (2048,))
    for name in units:
        for bottleneck in (400, 100):
            torch.manual_seed(0)
            models: dict[str, nn.Module] = {
                "dense": Plain(UNITS[name](), bottleneck),
                "SGD": _network(UNITS[name](), bottleneck, x),
                "FusedSGD": _network(UNITS[name](), bottleneck, x),
                "ungated": Ungated(),
            }
            runs: dict[str, Run] = {}
            for rival, model in models.items():
                lr = 1e-6  # the weights, and with them the density, stay where they are
                optimiser = (
                    FusedSGD(model, lr)
                    if rival == "FusedSGD"
                    else torch.optim.SGD(model.parameters(), lr, fused=True)
                )
                runs[rival] = _step(model, optimiser, x, y)
            times = interleave(runs, seconds)
            layer = models["SGD"]
            assert isinstance(layer, ConditionalMLP)
            density = layer.telemetry().density
            yield Timing("training step", f"{name}, bottleneck {bottleneck}", 32, density, times)


def _network(unit: Unit, bottleneck: int, x: Tensor) -> ConditionalMLP:
    torch.manual_seed(0)
    model = ConditionalMLP(784, 2000, 10, bottleneck=bottleneck, unit=unit)
    hardgate.start_gates_(model, x[:500])
    return model


def _step(
    model: nn.Module, optimiser: torch.optim.Optimizer, x: Tensor, y: Tensor
) -> Callable[[], None]:
    position = 0

    def run() -> None:
        nonlocal position
        position = (position + 32) % 2016
        batch = slice(position, position + 32)
        optimiser.zero_grad()
        losses = cross_entropy(model(x[batch]), y[batch], reduction="none")
        (losses.mean() + hardgate.score_loss(model, losses)).backward()
        optimiser.step()

    return run


def _assert_equal(layer: Layer) -> None:
    """A benchmark of something else is none: equality with the dense layer first."""
    with torch.no_grad():
        expected = layer.dense()
        for backend in ("sparse", "auto"):
            error = (layer.conditional(backend) - expected).norm() / expected.norm()
            if not error < 3e-5:
                raise AssertionError(f"{backend} differs from dense by {error:.1e}")


def machine() -> dict[str, object]:
    """Where the figures were taken."""
    return {
        "hardgate": hardgate.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }


def record(timings: list[Timing]) -> dict[str, object]:
    """What `--json` writes."""
    return {**machine(), "timings": [asdict(timing) for timing in timings]}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()

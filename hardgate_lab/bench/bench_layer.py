"""Time the conditional layer against dense torch: by batch, by density, by width."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate import functional
from hardgate_lab.bench.bench_memory import peaks
from hardgate_lab.rig.machine import machine
from hardgate_lab.rig.progress import Teller
from hardgate_lab.rig.timing import Call, rounds

LAYERS = [(1024, 4096, 1024, 1), (784, 2000, 10, 1), (1024, 4096, 1024, 16)]
BATCHES = (1, 32, 256)
DENSITIES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
WIDTHS = (1024, 4096, 16384, 65536)
ACTIVE = 200  # units on per example, at every width


@dataclass(frozen=True)
class Timing:
    """One comparison: milliseconds of the candidates, the dense one first, in steady calls."""

    table: str
    case: str
    batch: int
    density: float
    milliseconds: dict[str, float]
    cold: dict[str, float] = field(default_factory=dict)  # of the first call after the others' turn
    megabytes: dict[str, float] = field(default_factory=dict)  # at most, where it was measured
    units: int | None = None  # of the ungated network, where its width was looked for

    def ratio(self, name: str) -> float:
        """How many times faster than the first candidate."""
        return next(iter(self.milliseconds.values())) / self.milliseconds[name]


@dataclass
class Layer:
    """Weights, inputs and gates of one layer, and the ways to compute it."""

    x: Tensor
    gates: Tensor
    w_in: Tensor
    b_in: Tensor
    w_out: Tensor  # the transposed view of unit-major memory, as a `ConditionalMLP` holds it
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
            (torch.randn(hidden, out) / hidden**0.5).T,
            torch.randn(out),
            block,
        )

    def dense(self) -> Tensor:
        """Masked matrix products in plain torch."""
        gates = self.gates if self.block == 1 else self.gates.repeat_interleave(self.block, 1)
        return linear(linear(self.x, self.w_in, self.b_in) * gates, self._plain, self.b_out)

    def conditional(self, backend: str) -> Tensor:
        """`functional.conditional_mlp`."""
        arguments = (self.x, self.gates, self.w_in, self.b_in, self.w_out, self.b_out)
        return functional.conditional_mlp(*arguments, backend=backend)  # type: ignore[arg-type]

    def sampled(self) -> Tensor:
        """What torch.sparse has for it: sampled_addmm, then a sparse product."""
        pattern = (self.gates != 0).float().to_sparse_csr()
        H = torch.sparse.sampled_addmm(pattern, self.x, self.w_in.T, beta=0.0)
        index, crow = H.col_indices(), H.crow_indices()
        example = torch.repeat_interleave(torch.arange(len(self.x)), crow.diff())
        values = (H.values() + self.b_in[index]) * self.gates[example, index]
        s = torch.sparse_csr_tensor(crow, index, values, H.shape)
        y: Tensor = torch.sparse.mm(s, self.w_out.T) + self.b_out
        return y

    def __post_init__(self) -> None:
        self._plain = self.w_out.contiguous()

    def leaves(self) -> list[Tensor]:
        """What a training step differentiates."""
        return [self.x, self.gates, self.w_in, self.b_in, self.w_out, self._plain, self.b_out]

    def backward(self, forward: Callable[[], Tensor]) -> Callable[[], None]:
        """Forward and backward, every gradient computed."""
        dy = torch.randn(len(self.x), len(self.w_out))
        for leaf in self.leaves():
            leaf.requires_grad_()

        def run() -> None:
            for leaf in self.leaves():
                leaf.grad = None
            forward().backward(dy)

        return run


def layers(seconds: float, tell: Teller) -> Iterator[Timing]:
    """Forward, and forward with backward, at 10 % density, random gates, index included."""
    for sizes in LAYERS:
        for batch in BATCHES:
            name = "-".join(map(str, sizes[:3])) + (f" blocks of {sizes[3]}" * (sizes[3] > 1))
            tell.now(f"{name}, B = {batch}")
            layer = Layer.random(sizes, batch, 0.1)
            _assert_equal(layer)
            with torch.no_grad():
                runs: dict[str, Call] = {
                    "dense": layer.dense,
                    "sparse": partial(layer.conditional, "sparse"),
                }
                if layer.block == 1:
                    warnings.filterwarnings("ignore", message="Sparse")  # torch: beta state
                    runs["torch.sparse"] = layer.sampled
                yield Timing("forward", name, batch, 0.1, *rounds(runs, seconds))
            candidates: dict[str, Call] = {
                "dense": layer.backward(layer.dense),
                "sparse": layer.backward(partial(layer.conditional, "sparse")),
            }
            yield Timing("forward + backward", name, batch, 0.1, *rounds(candidates, seconds))


def densities(seconds: float, tell: Teller) -> Iterator[Timing]:
    """Forward time against density, B = 32."""
    for sizes in LAYERS[:2]:
        name = "-".join(map(str, sizes[:3]))
        for density in DENSITIES:
            tell.now(f"{name}, density {density}")
            layer = Layer.random(sizes, 32, density)
            _assert_equal(layer)
            with torch.no_grad():
                runs: dict[str, Call] = {"dense": layer.dense}
                for backend in ("sparse", "auto"):
                    runs[backend] = partial(layer.conditional, backend)
                yield Timing("density", name, 32, density, *rounds(runs, seconds))


def widths(seconds: float, tell: Teller) -> Iterator[Timing]:
    """Forward time and memory against the number of experts, 200 of them on."""
    for hidden in WIDTHS:
        for batch in (1, 32):
            tell.now(f"{hidden} experts, B = {batch}")
            density = ACTIVE / hidden
            layer = Layer.random((784, hidden, 10, 1), batch, density)
            _assert_equal(layer)
            with torch.no_grad():
                runs: dict[str, Call] = {
                    "dense": layer.dense,
                    "sparse": partial(layer.conditional, "sparse"),
                }
                memory = peaks(runs)
                times = rounds(runs, seconds)
                yield Timing("width", str(hidden), batch, density, *times, memory)


def _assert_equal(layer: Layer) -> None:
    """Check that the layer equals the dense one, or its time would mean nothing."""
    with torch.no_grad():
        expected = layer.dense()
        for backend in ("sparse", "auto"):
            error = (layer.conditional(backend) - expected).norm() / expected.norm()
            if not error < 3e-5:
                raise AssertionError(f"{backend} differs from dense by {error:.1e}")


def record(timings: list[Timing]) -> dict[str, Any]:
    """What `--json` writes."""
    return {**machine(), "timings": [asdict(timing) for timing in timings]}

"""What a unit costs: forward + backward at [32, 2000] against sigmoid + bernoulli + backward.

Interleaved in one process, medians, ratios; the bound is 2. Run on an idle machine:

    python benchmarks/units.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from hardgate import UNITS, Unit, score_loss

SHAPE = (32, 2000)
ROUNDS, BOUND = 300, 2.0


def reference() -> Callable[[], None]:
    """torch.sigmoid, torch.bernoulli of it, and the backward pass through the sigmoid."""
    a, ones = torch.randn(SHAPE, requires_grad=True), torch.ones(SHAPE)

    def run() -> None:
        a.grad = None
        p = torch.sigmoid(a)
        torch.bernoulli(p.detach())
        p.backward(ones)

    return run


def forward_backward(unit: Unit) -> Callable[[], None]:
    """The unit with its noise; where it needs the loss, with `score_loss` and its baseline."""
    a, ones = torch.randn(SHAPE, requires_grad=True), torch.ones(SHAPE)
    losses = torch.randn(SHAPE[0])

    def run() -> None:
        a.grad = None
        h = unit(a)
        if unit.needs_loss:
            score_loss(unit, losses).backward()
        else:
            h.backward(ones)

    return run


def main() -> None:
    """Print the table of ratios."""
    runs = {"reference": reference()}
    runs |= {name: forward_backward(make()) for name, make in UNITS.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for round_ in range(ROUNDS + 20):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if round_ >= 20:  # the first rounds warm up
                times[name].append(time.perf_counter() - start)
    base = statistics.median(times["reference"])
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {SHAPE}, fp32")
    print(f"{'':42}{'µs':>8}{'ratio':>8}")
    for name, samples in times.items():
        ratio = statistics.median(t / r for t, r in zip(samples, times["reference"], strict=True))
        note = "" if ratio <= BOUND else f"  above the bound of {BOUND:g}"
        print(f"{name:42}{1e6 * statistics.median(samples):8.0f}{ratio:8.2f}{note}")
    print(f"reference median {1e6 * base:.0f} µs over {ROUNDS} interleaved rounds")


if __name__ == "__main__":
    main()

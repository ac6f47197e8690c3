"""The groups of measurements of `hardgate bench`, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeAlias

from rich.console import Console

from hardgate_lab.bench import bench_layer, bench_steps
from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.bench.bench_steps import steps
from hardgate_lab.bench.breakdown import breakdown
from hardgate_lab.rig import memory
from hardgate_lab.rig.progress import Bar, Teller

Group: TypeAlias = Callable[[float, Teller], Iterable[Timing]]


def measure(units: list[str], seconds: float, console: Console) -> list[Timing]:
    """Time everything.

    Widths come first, as their memory is measured: from then on the allocator keeps freed memory,
    for all candidates alike, as it would in a long training.

    Args:
        units: names of the units whose training step is timed.
        seconds: for one comparison.
        console: to show the progress on.

    Returns:
        the timings, in the order of the groups.
    """
    layers, bottlenecks = len(bench_layer.LAYERS), len(bench_steps.BOTTLENECKS)
    # What measures a group, how many timings it yields, and how many seconds one takes.
    groups: dict[str, tuple[Group, int, float]] = {
        "widths": (bench_layer.widths, 2 * len(bench_layer.WIDTHS), seconds),
        "layers": (bench_layer.layers, 2 * layers * len(bench_layer.BATCHES), seconds),
        "densities": (bench_layer.densities, 2 * len(bench_layer.DENSITIES), seconds / 2),
        "training steps": (partial(steps, units), 2 * len(units) * bottlenecks, 2 * seconds),
        "parts of a step": (breakdown, bottlenecks, 2 * seconds),
    }
    timings: list[Timing] = []
    with Bar(console, "timing", sum(count * each for _, count, each in groups.values())) as bar:
        for name, (group, _, each) in groups.items():
            for timing in group(each, bar):
                timings.append(timing)
                bar.advance(each)
            bar.say(f"timed {name}")
            if name == "widths":
                memory.reuse_memory()
    return timings

"""The groups of `hardgate bench`, one after the other."""

from __future__ import annotations

from rich.console import Console

from hardgate_lab.bench import bench_layer
from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.bench.bench_progress import Spoken
from hardgate_lab.bench.bench_steps import steps
from hardgate_lab.bench.breakdown import breakdown
from hardgate_lab.rig import memory


def measure(units: list[str], seconds: float, console: Console) -> list[Timing]:
    """Time everything.

    Widths come first: from then on freed memory is kept by the allocator, for all rivals alike,
    which a long training would do as well, and which hides how much memory a pass needs.

    Args:
        units: names of the units whose training step is timed.
        seconds: for one comparison.
        console: where the progress goes.

    Returns:
        the timings, in the order of the groups.
    """
    progress = Spoken(console)
    timings: list[Timing] = []
    with progress.group("widths"):
        timings += list(bench_layer.widths(seconds, progress))
    memory.reuse_memory()
    with progress.group("layers"):
        timings += list(bench_layer.layers(seconds, progress))
    with progress.group("densities"):
        timings += list(bench_layer.densities(seconds / 2, progress))
    with progress.group("training steps"):
        timings += list(steps(units, 2 * seconds, progress))
    with progress.group("parts of a step"):
        timings += list(breakdown(2 * seconds, progress))
    return timings

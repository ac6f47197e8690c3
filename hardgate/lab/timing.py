"""Timing by ratio: rivals interleaved in one process, medians, equality first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

Run = Callable[[], object]


def interleave(runs: dict[str, Run], seconds: float, least: int = 5) -> dict[str, float]:
    """The median time of each run in milliseconds, taking turns for about `seconds` in all."""
    for run in runs.values():  # warm: compile, fill caches
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(next(iter(times.values()))) < least:
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(samples) for name, samples in times.items()}

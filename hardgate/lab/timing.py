"""Timing by ratio: rivals interleaved in one process, medians, equality first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

Run = Callable[[], object]
STREAK = 6  # calls of one rival in a row


class Rounds(NamedTuple):
    """Median milliseconds of each rival: called again and again, and after the others' calls."""

    steady: dict[str, float]
    cold: dict[str, float]


def rounds(runs: dict[str, Run], seconds: float, least: int = 3) -> Rounds:
    """Time `STREAK` calls of each run in a row, taking turns for about `seconds` in all.

    The first call of a streak finds the caches as the others left them, the rest as a loop would.
    """
    for run in runs.values():
        run()
    first: dict[str, list[float]] = {name: [] for name in runs}
    later: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(next(iter(first.values()))) < least:
        for name, run in runs.items():
            first[name].append(_clock(run))
            later[name] += [_clock(run) for _ in range(STREAK - 1)]
    return Rounds(_medians(later), _medians(first))


def interleave(runs: dict[str, Run], seconds: float, least: int = 5) -> dict[str, float]:
    """The median time of each run in milliseconds, taking turns for about `seconds` in all."""
    for run in runs.values():  # warm: compile, fill caches
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(next(iter(times.values()))) < least:
        for name, run in runs.items():
            times[name].append(_clock(run))
    return _medians(times)


def _clock(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _medians(times: dict[str, list[float]]) -> dict[str, float]:
    """In milliseconds."""
    return {name: 1e3 * statistics.median(samples) for name, samples in times.items()}

"""Timing by ratio: candidates interleaved in one process, medians, equality first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

Call = Callable[[], object]
STREAK = 6  # calls of one candidate in a row


class Rounds(NamedTuple):
    """Median milliseconds of each candidate.

    - `steady`: called again and again;
    - `cold`: the first call after the others had their turn.
    """

    steady: dict[str, float]
    cold: dict[str, float]


def rounds(runs: dict[str, Call], seconds: float, least: int = 3) -> Rounds:
    """Time `STREAK` calls of each run in a row, taking turns for about `seconds` in all.

    The first call of a streak finds the caches as the others left them, the rest as a loop would.
    """
    turns = _turns(runs, seconds, least, STREAK)
    steady = {name: _median([t for turn in of for t in turn[1:]]) for name, of in turns.items()}
    return Rounds(steady, {name: _median([turn[0] for turn in of]) for name, of in turns.items()})


def interleave(runs: dict[str, Call], seconds: float, least: int = 5) -> dict[str, float]:
    """The median time of each run in milliseconds, taking turns for about `seconds` in all."""
    turns = _turns(runs, seconds, least, 1)
    return {name: _median([turn[0] for turn in of]) for name, of in turns.items()}


def _turns(
    runs: dict[str, Call], seconds: float, least: int, streak: int
) -> dict[str, list[list[float]]]:
    """The seconds of each call, by run and turn of so many calls; at least so many turns."""
    for run in runs.values():  # warm: compile, fill caches
        run()
    turns: dict[str, list[list[float]]] = {name: [] for name in runs}
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop or len(next(iter(turns.values()))) < least:
        for name, run in runs.items():
            turns[name].append([_clock(run) for _ in range(streak)])
    return turns


def _clock(run: Call) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _median(times: list[float]) -> float:
    """In milliseconds."""
    return 1e3 * statistics.median(times)

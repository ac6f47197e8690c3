"""Numbers over the seeds of a row, as the tables write them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from hardgate_lab.reproduce.report.runs import Result, over_seeds

NONE = "–"  # where no record has the number
_PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


def mean(results: Sequence[Result], name: str) -> float | None:
    """Over the seeds that have it."""
    values = over_seeds(results, name)
    return statistics.fmean(values) if values else None


def spread(results: Sequence[Result], name: str, style: Callable[[float], str]) -> str:
    """Mean ± standard deviation over seeds; a dash where no record has it."""
    values = over_seeds(results, name)
    if not values:
        return NONE
    centre = style(statistics.fmean(values))
    if len(values) == 1:
        return centre
    deviation = statistics.stdev(values)
    return f"{centre}{_PLUS_MINUS}{style(deviation) if deviation else 0}"


def span(results: Sequence[Result], name: str, between: str = "–") -> str:
    """From the least to the most; nothing where no record has it."""
    values = over_seeds(results, name)
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g}{between}{high:g}"


def two(value: float) -> str:
    """Two digits after the point."""
    return f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share in percent, with one digit; a dash for None."""
    return NONE if value is None else f"{100 * value:.1f}"

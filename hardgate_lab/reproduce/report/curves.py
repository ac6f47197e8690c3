"""Curves by epoch: a line for each row, and a faint one for each of its seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hardgate_lab.reproduce.report.runs import Result
from hardgate_lab.reproduce.report.style import FAINT, LOOKS, OTHER, Panel, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOLERANCE = 0.01  # of the density: ± 1 %
_MARKED = 10  # epochs up to which each is marked
# The ticks in each decade of a logarithmic axis, by the decades that it may span.
_LOG_STEPS = {
    0.6: (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 4, 5, 6, 8),
    1.0: (1, 1.5, 2, 3, 5, 7),
    2.0: (1, 2, 5),
    math.inf: (1,),
}


def curve(
    rows: Mapping[str, Sequence[Result]],
    name: str,
    title: str,
    unit: str,
    scale: float = 1.0,
    targets: Sequence[float] | None = None,
) -> Panel | None:
    """A panel of one of the curves of the records.

    Args:
        rows: the results, by row.
        name: of the curve.
        title: of the panel.
        unit: of the axis.
        scale: to that unit.
        targets: drawn as grey bands; without any, the axis is logarithmic.

    Returns:
        the panel, or None where no record has that curve.
    """
    lines = {
        row: [[scale * value for value in r.curves[name]] for r in results if name in r.curves]
        for row, results in rows.items()
    }
    lines = {row: seeds for row, seeds in lines.items() if seeds}

    def draw(axes: Axes) -> None:
        for target in targets or ():
            low, high = (scale * (target + d) for d in (-TOLERANCE, TOLERANCE))
            axes.axhspan(low, high, color=FAINT, alpha=0.45, lw=0)
            axes.axhline(scale * target, color=FAINT)
        for row, seeds in lines.items():
            _draw_row(axes, rows[row][0], seeds)
        values = [v for seeds in lines.values() for seed in seeds for v in seed if math.isfinite(v)]
        _scale(axes, values, logarithmic=targets is None)
        axes.set(xlabel="epoch", ylabel=unit)

    return Panel(title, draw) if lines else None


def _draw_row(axes: Axes, result: Result, seeds: list[list[float]]) -> None:
    look = LOOKS.get(result.row, OTHER)
    longest = max(map(len, seeds))
    if len(seeds) > 1:
        for seed in seeds:
            axes.plot(range(1, len(seed) + 1), seed, color=look.colour, alpha=0.3, linewidth=0.6)
    axes.plot(
        range(1, longest + 1),
        [mean([seed[k] for seed in seeds if k < len(seed)]) for k in range(longest)],
        color=look.colour,
        linestyle=look.dashes,
        linewidth=look.width,
        marker="o" if longest <= _MARKED else None,
        markersize=3,
        label=plain(result.label),
    )


def mean(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN if there is none."""
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan


def _scale(axes: Axes, values: Sequence[float], logarithmic: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if logarithmic and min(values) > 0:
        axes.set_yscale("log")
        decades = math.log10(max(values)) - math.log10(min(values))
        steps = next(steps for most, steps in _LOG_STEPS.items() if decades < most)
        axes.yaxis.set_major_locator(LogLocator(subs=steps))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())

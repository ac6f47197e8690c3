"""One number of each row, as bars."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from hardgate_lab.reproduce.report.runs import Experiment, over_seeds
from hardgate_lab.reproduce.report.style import FAINT, LOOKS, OTHER, Panel, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def bars(
    experiment: Experiment,
    title: str,
    name: str,
    style: str,
    scale: float = 1.0,
    behind: str | None = None,
) -> Panel | None:
    """A panel with one bar for each row that has the number, the mean over its seeds.

    Args:
        experiment: the results.
        title: of the panel.
        name: of the number.
        style: the format of the number at the end of the bar.
        scale: a factor, for the unit.
        behind: another number, drawn in grey behind it.

    Returns:
        the panel, or None where no record has that number.
    """
    rows = {row: results for row, results in experiment.rows.items() if over_seeds(results, name)}

    def draw(axes: Axes) -> None:
        ends = []
        for place, (row, results) in enumerate(rows.items()):
            value = scale * statistics.fmean(over_seeds(results, name))
            grey = over_seeds(results, behind) if behind else []
            full = scale * statistics.fmean(grey) if grey else 0.0
            axes.barh(place, full, color=FAINT)
            axes.barh(place, value, height=0.5, color=LOOKS.get(row, OTHER).colour)
            ends.append(max(full, value))
            axes.annotate(
                f"{value:{style}} of {full:{style}}" if grey else f"{value:{style}}",
                (ends[-1], place),
                (3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
            )
        room = 1.5 if behind else 1.18  # for what is written at the bars
        names = [plain(results[0].label) for results in rows.values()]
        axes.set(yticks=range(len(rows)), yticklabels=names, xlim=(0, room * max(ends) or 1))
        axes.tick_params("y", length=0)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")

    return Panel(title, draw, 0.9 + 0.24 * len(rows)) if rows else None

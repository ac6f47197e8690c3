"""The gates of one row: how often they are on, and for which class."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hardgate_lab.reproduce.report.curves import mean
from hardgate_lab.reproduce.report.numbers import span
from hardgate_lab.reproduce.report.runs import Result
from hardgate_lab.reproduce.report.style import LOOKS, OTHER, Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def firing(results: Sequence[Result]) -> Panel:
    """The histogram of the firing rates, its bins averaged over seeds."""
    return Panel(results[0].label, partial(_firing, results), 2.2)


def heat(result: Result) -> Panel:
    """Classes by gates: how often each is on."""
    return Panel(result.label, partial(_heat, result), 2.4)


def _firing(results: Sequence[Result], axes: Axes) -> None:
    from matplotlib.ticker import NullLocator

    bins = len(results[0].firing_rates)
    seeds = [r.firing_rates for r in results if len(r.firing_rates) == bins]
    counts = [mean([seed[k] for seed in seeds]) for k in range(bins)]
    edges = [k / bins for k in range(bins)]
    colour = LOOKS.get(results[0].row, OTHER).colour
    axes.bar(edges, counts, 1 / bins, align="edge", color=colour, linewidth=0)
    ends = [
        f"{many} {words}"
        for name, words in (("dead", "dead"), ("always_on", "always on"))
        if (many := span(results, name))
    ]
    axes.text(0.98, 0.95, "\n".join(ends), transform=axes.transAxes, ha="right", va="top")
    axes.set(xlim=(0, 1), xlabel="firing rate", ylabel="gates", yscale="log", ylim=(0.7, None))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _heat(result: Result, axes: Axes) -> None:
    # Cividis looks the same to all, and is readable on white and on black.
    image = axes.imshow(
        result.class_use, cmap="cividis", vmin=0, vmax=1, aspect="auto", interpolation="none"
    )
    axes.grid(visible=False)
    axes.set(yticks=range(len(result.class_use)), ylabel="class", xlabel="gates")
    axes.tick_params("y", labelsize=8)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, ticks=[0, 0.5, 1])
    bar.outline.set_visible(False)
    bar.ax.set_yticklabels(["0", "50", "100 %"])

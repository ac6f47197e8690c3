"""How figures look, and how they become SVG in the page and PNG beside it.

A `Picture` is some `Panel`s. In the page each panel is an SVG of its own: side by side on a wide
screen, one below the other on a phone. The PNG shows them all in a grid. People with red-green
blindness can tell the colours apart, and dashes mark the paper's baselines.
"""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hardgate_lab.reproduce.report.html import Html

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 4.0  # inches of a panel; text is drawn for a phone, which shows it about as wide
_DPI = 120
_LONGEST = 30  # characters of a label

INK, FAINT = "#1c1c1c", "#c9c9c9"
# Light → dark. In the page each colour is a variable, which follows the reader's settings.
DARK = {
    INK: "#e6e6e6",
    FAINT: "#4a4a4a",
    "#0072b2": "#4ba3e3",
    "#d55e00": "#ff8a3d",
    "#009e73": "#2fcf9f",
    "#b5478b": "#e58bc3",
    "#3a93cf": "#8fd0ff",
    "#b87a00": "#f0b93a",
    "#7a1f4f": "#c76a9c",
    "#7a7a7a": "#a0a0a0",
}


@dataclass(frozen=True)
class Look:
    """How a row is drawn, the same in every figure."""

    colour: str
    dashes: str = "-"
    width: float = 1.5


# The paper's stochastic gaters are solid, its baselines dashed, ours in ink and grey.
LOOKS = {
    "noisy_rectifier": Look("#0072b2"),
    "straight_through": Look("#d55e00"),
    "stochastic_times_smooth": Look("#009e73"),
    "stochastic_binary": Look("#b5478b"),
    "rectifier": Look("#3a93cf", "--"),
    "sigmoid_noise": Look("#b87a00", "--"),
    "sigmoid": Look("#7a1f4f", ":"),
    "best": Look(INK, "-", 2.2),
    "dense": Look("#7a7a7a", "-."),
}
OTHER = Look("#7a7a7a", ":")


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    draw: Callable[[Axes], None]
    height: float = 2.9  # inches


@dataclass(frozen=True)
class Picture:
    """Panels that belong together."""

    name: str  # of the PNG
    title: str
    what: str  # what you are looking at, in one line
    caption: str  # what else there is to know
    panels: tuple[Panel, ...]
    columns: int = 2  # of the PNG


def svg(panel: Panel, prefix: str) -> Html:
    """The panel as an element of a page, in the page's font and colours, without its title.

    Args:
        panel: what to draw.
        prefix: of the ids inside, so that no two panels share one.
    """
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        figure = _figure((panel,), 1, legend_columns=2, titled=False)
        file = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", drawn)
    for colour in DARK:
        drawn = drawn.replace(colour, f"var({variable(colour)})")
    label = html.escape(panel.title)
    return Html(drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip())


def png(picture: Picture, source: str) -> bytes:
    """The picture as a file.

    Args:
        picture: what to draw.
        source: a digest of the records, which goes into the file's metadata.
    """
    import matplotlib

    columns = min(picture.columns, len(picture.panels))
    with matplotlib.rc_context(_STYLE):
        figure = _figure(picture.panels, columns, legend_columns=2 * columns, titled=True)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=_DPI, metadata={"Software": None, "Source": source})
    return file.getvalue()


def plain(label: str) -> str:
    """A label that matplotlib shows as it is: no formula, and not hidden from the legend."""
    label = label if len(label) <= _LONGEST else f"{label[:_LONGEST]}…"
    label = label.replace("$", r"\$")
    return f" {label}" if label.startswith("_") else label


def variable(colour: str) -> str:
    """The page's name for a colour."""
    return f"--c{colour[1:]}"


def _figure(panels: tuple[Panel, ...], columns: int, legend_columns: int, titled: bool) -> Figure:
    from matplotlib.figure import Figure

    rows = math.ceil(len(panels) / columns)
    size = (columns * WIDTH, rows * max(panel.height for panel in panels))
    figure = Figure(figsize=size, layout="constrained")
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    named: dict[str, Artist] = {}
    for axes, panel in zip(grid, panels, strict=False):
        panel.draw(axes)
        if titled:
            axes.set_title(plain(panel.title))
        named |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    if named:
        figure.legend(
            list(named.values()),
            list(named),
            loc="outside lower center",
            ncols=legend_columns,
            frameon=False,
        )
        lines = math.ceil(len(named) / legend_columns)
        figure.set_figheight(size[1] + 0.18 * lines)  # below the axes, not at their cost
    return figure


_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.7,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.7,
    "legend.fontsize": 8.5,
    "legend.labelcolor": INK,
    "legend.handlelength": 2.2,
    "legend.labelspacing": 0.3,
    "legend.columnspacing": 1.2,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # the page's font; searchable, and small
    "svg.hashsalt": "hardgate",  # the same ids every time
}

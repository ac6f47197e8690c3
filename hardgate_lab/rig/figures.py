"""How the rooms draw: figures without a window, lines that can be told apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches. matplotlib is imported here, when it is needed."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path) -> Path:
    """Write the figure; its folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return path


def line_style(number: int) -> dict[str, str]:
    """Colour and dashes of the so many-th line: 30 of them differ."""
    return {"color": f"C{number % 10}", "linestyle": _DASHES[number // 10 % 3]}

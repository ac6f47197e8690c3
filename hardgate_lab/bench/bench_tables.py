"""The tables of `hardgate bench`, on the terminal and in Markdown."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from hardgate_lab.bench.bench_grids import Grid, grids
from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.rig.markers import embed


def tables(timings: list[Timing]) -> list[Table]:
    """For the terminal."""
    return [_table(grid) for grid in grids(timings)]


def _table(grid: Grid) -> Table:
    table = Table(title=f"{grid.title} ({grid.unit})", box=SIMPLE, padding=0)
    table.title_justify = "left"
    table.add_column("case", overflow="fold")
    for k, name in enumerate(grid.labels + grid.columns):  # the case is broken, figures are not
        width = max(len((labels[1:] + cells)[k]) for labels, cells in grid.rows)
        table.add_column(name, justify="right", overflow="fold", min_width=width)
    for labels, cells in grid.rows:
        table.add_row(*labels, *cells)
    return table


def write(page: str, record: dict[str, Any]) -> str:
    """`page` with what `--json` recorded written anew as tables."""
    return embed(page, "bench", markdown(record))


def markdown(record: dict[str, Any]) -> str:
    """The recorded timings as Markdown."""
    timings = [Timing(**row) for row in record["timings"]]
    where = ", ".join(f"{key} {value}" for key, value in record.items() if key != "timings")
    first = f"Taken on: {where}. Milliseconds, and in brackets times faster than dense."
    return "\n\n".join([first, *map(_markdown, grids(timings))])


def _markdown(grid: Grid) -> str:
    lines = [_line([grid.title, *grid.labels, *grid.columns])]
    lines.append("|" + "---|" * (1 + len(grid.labels) + len(grid.columns)))
    for labels, cells in grid.rows:
        bracketed = [cell.replace(" ", " (") + ")" * (" " in cell) for cell in cells]
        lines.append(_line([label.replace("|", "/") for label in labels] + bracketed))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"

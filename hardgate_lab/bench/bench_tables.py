"""The tables of `hardgate bench`, on the terminal and in Markdown."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from hardgate_lab.bench.bench_grids import Grid, grids
from hardgate_lab.bench.bench_layer import Timing
from hardgate_lab.rig.markers import embed
from hardgate_lab.rig.text_tables import markdown_table, terminal_table


def tables(timings: list[Timing]) -> list[Table]:
    """For the terminal."""
    return [_table(grid) for grid in grids(timings)]


def _table(grid: Grid) -> Table:
    columns = ["case", *grid.labels, *grid.columns]
    rows = [labels + cells for labels, cells in grid.rows]
    return terminal_table(columns, rows, title=f"{grid.title} ({grid.unit})")


def write_tables(page: str, record: dict[str, Any]) -> str:
    """`page` with what `--json` recorded written anew as tables."""
    return embed(page, "bench", markdown(record))


def markdown(record: dict[str, Any]) -> str:
    """The recorded timings as Markdown."""
    timings = [Timing(**row) for row in record["timings"]]
    where = ", ".join(f"{key} {value}" for key, value in record.items() if key != "timings")
    first = f"Taken on: {where}. Milliseconds, and in brackets times faster than dense."
    return "\n\n".join([first, *map(_markdown, grids(timings))])


def _markdown(grid: Grid) -> str:
    rows = [
        [label.replace("|", "/") for label in labels]
        + [cell.replace(" ", " (") + ")" * (" " in cell) for cell in cells]
        for labels, cells in grid.rows
    ]
    return markdown_table([grid.title, *grid.labels, *grid.columns], rows)

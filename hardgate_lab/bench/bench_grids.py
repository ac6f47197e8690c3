"""The measurements of `hardgate bench` as rows and columns, before they are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from hardgate_lab.bench.bench_layer import Timing

_COLD = ("dense", "sparse")  # those whose calls after the others' are shown
_KINDS = ("forward", "forward + backward", "training step")


@dataclass(frozen=True)
class Grid:
    """A table: what its rows are called, its columns, and for each row labels and figures.

    A figure is milliseconds, or milliseconds, a space and how many times faster.
    """

    title: str
    unit: str
    labels: list[str]
    columns: list[str]
    rows: list[tuple[list[str], list[str]]]


def grids(timings: list[Timing]) -> list[Grid]:
    """A table for each kind of measurement that there is; densities are a figure only."""
    by_kind: dict[str, list[Timing]] = {}
    for t in timings:
        by_kind.setdefault(t.table, []).append(t)
    out = [_comparable(kind, by_kind[kind]) for kind in _KINDS if kind in by_kind]
    if "equal time" in by_kind:
        out.append(_equal_time(by_kind["equal time"]))
    if "breakdown" in by_kind:
        out.append(_breakdown(by_kind["breakdown"]))
    measured = [t for t in by_kind.get("width", []) if t.megabytes]
    if measured:
        out.append(_widths(measured))
    return out


def _comparable(kind: str, rows: list[Timing]) -> Grid:
    candidates = list(dict.fromkeys(name for t in rows for name in t.milliseconds))
    cold = [name for name in _COLD if kind != "training step" and name in rows[0].cold]
    cells = [
        (
            [t.case, str(t.batch)],
            [_cell(t.milliseconds, r) for r in candidates] + [_cell(t.cold, r) for r in cold],
        )
        for t in rows
    ]
    columns = candidates + [f"{name}, cold" for name in cold]
    return Grid(kind, "ms, and × faster than dense", ["B"], columns, cells)


def _cell(milliseconds: dict[str, float], name: str) -> str:
    if name not in milliseconds:
        return ""
    dense, ms = next(iter(milliseconds.values())), milliseconds[name]
    return f"{ms:.2f}" if name == next(iter(milliseconds)) else f"{ms:.2f} {dense / ms:.1f}×"


def _equal_time(rows: list[Timing]) -> Grid:
    """How wide an ungated network the time of a step buys."""
    candidates = list(rows[0].milliseconds)
    cells = [
        ([t.case, str(t.batch)], [str(t.units), *(f"{t.milliseconds[r]:.2f}" for r in candidates)])
        for t in rows
    ]
    columns = ["ungated units", *(f"{candidate}, ms" for candidate in candidates)]
    return Grid("ungated network of equal time", "a training step", ["B"], columns, cells)


def _breakdown(rows: list[Timing]) -> Grid:
    """Parts of a step down, networks across: there are more parts."""
    cells = [
        ([part], [f"{t.milliseconds[part]:.2f}" for t in rows]) for part in rows[0].milliseconds
    ]
    columns = [f"{t.case}, B = {t.batch}" for t in rows]
    return Grid("parts of a training step", "ms, FusedSGD", [], columns, cells)


def _widths(rows: list[Timing]) -> Grid:
    """Time and memory of a forward pass."""
    candidates = list(rows[0].milliseconds)
    cells = [
        (
            [t.case, str(t.batch)],
            [_cell(t.milliseconds, r) for r in candidates]
            + [f"{t.megabytes[r]:.1f}" for r in candidates],
        )
        for t in rows
    ]
    columns = candidates + [f"{candidate}, MB" for candidate in candidates]
    return Grid("experts, 200 on", "ms, and × faster than dense; peak MB", ["B"], columns, cells)

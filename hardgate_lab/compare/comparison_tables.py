"""The tables of `hardgate compare`: on the terminal, as JSON, and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from rich.table import Table

from hardgate_lab.compare.comparison import Comparison, Row
from hardgate_lab.compare.recommend import recommend
from hardgate_lab.rig import markers
from hardgate_lab.rig.machine import machine
from hardgate_lab.rig.text_tables import markdown_table, terminal_table

COLUMNS = ("bias", "z", "cosine", "variance", "evals", "µs", "× evals", "× µs", "error")

CAPTION = (
    "Sorted by variance × evals, unbiased ones (green) first: averaging n estimates divides the "
    "variance by n and takes n times the evaluations, so this is the variance at equal "
    "evaluations; variance × µs is that at equal seconds. bias: ‖mean − truth‖/‖truth‖, less "
    "sampling error. z: the largest z-score of a unit. cosine: of one draw to the truth. evals: of "
    "f per gradient; a backward pass through f is not counted, but is in µs, the time of one "
    "gradient in batches of 100. error: √(bias² + variance/n)/‖truth‖ within {budget} evaluations."
)


def table(comparison: Comparison, budget: int) -> Table:
    """One problem's comparison, for the terminal."""
    rows = ordered(comparison.rows)
    groups = [_group(row) for row in rows]
    return terminal_table(
        ("estimator", *COLUMNS),
        [(_name(row), *_cells(row, budget, comparison.scale)) for row in rows],
        title=f"{comparison.problem}: {comparison.about}. Truth: {comparison.truth}.",
        styles=["bold red" if row.contradicts else "green" if row.unbiased else "" for row in rows],
        sections=[k for k in range(1, len(rows)) if groups[k] != groups[k - 1]],
    )


def _name(row: Row) -> str:
    return row.estimator + " °" * row.own_objective


def ordered(rows: Iterable[Row]) -> list[Row]:
    """By variance at equal evaluations: unbiased, biased, then units with their own objective."""
    return sorted(rows, key=lambda r: (*_group(r), r.per_evaluation))


def _group(row: Row) -> tuple[bool, bool]:
    return (row.own_objective, row.own_objective or not row.unbiased)


def _cells(row: Row, budget: int, scale: float) -> tuple[str, ...]:
    m = row.measured
    own = row.own_objective  # the truth, and so its norm, is another
    return (
        _percent(m.bias),
        "∞" if m.z > 1e5 else _short(m.z),
        f"{m.cosine:.2f}",
        f"{m.variance:.3g}",
        str(m.evals),
        _short(row.microseconds),
        f"{row.per_evaluation:.3g}",
        f"{row.per_microsecond:.3g}",
        "" if own else _percent(row.error(budget, scale)),
    )


def _percent(part: float) -> str:
    """A dash where there is no whole: the gradient is zero."""
    return "–" if math.isnan(part) else _short(100 * part) + " %"


def _short(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def record(comparisons: Sequence[Comparison], options: dict[str, Any]) -> dict[str, Any]:
    """What `--json` writes: the comparisons, what was recommended, and where they were measured.

    Args:
        comparisons: one per problem.
        options: of the command, those that decide what was measured.
    """
    return {
        **machine(),
        **options,
        "rounds": [{**r.as_dict(), "recommendation": recommend(r)} for r in comparisons],
    }


def comparisons_of(record: dict[str, Any]) -> list[Comparison]:
    """The comparisons of a record that was read from JSON."""
    return [
        Comparison.from_dict({k: v for k, v in each.items() if k != "recommendation"})
        for each in record["rounds"]
    ]


def write(page: str, record: dict[str, Any]) -> str:
    """`page` with the blocks that it has markers for written anew from the record."""
    return markers.write(page, {name: partial(block, record) for name, block in BLOCKS.items()})


def rankings(record: dict[str, Any]) -> str:
    """Both rankings over all problems, in Markdown."""
    comparisons = comparisons_of(record)
    keys = (*machine(), "samples", "seed")
    return "\n\n".join(
        [
            f"Taken on: {', '.join(f'{key} {record[key]}' for key in keys)}.",
            "**Variance at equal evaluations**: variance × evaluations of f; in brackets the bias "
            "of those that are biased.",
            _ranking(comparisons, "per_evaluation"),
            "**Variance at equal seconds**: variance × µs per gradient.",
            _ranking(comparisons, "per_microsecond"),
        ]
    )


def advice(record: dict[str, Any]) -> str:
    """What is recommended on each problem, in Markdown."""
    return "\n".join(
        f"- *{each.problem}* ({each.about}, {each.units} units): {recommend(each)}"
        for each in comparisons_of(record)
    )


# What a page may hold, by the name of its markers.
BLOCKS = {"compare": rankings, "recommended": advice}


def _ranking(comparisons: Sequence[Comparison], figure: str) -> str:
    """Estimators down, problems across; `figure` is a property of the rows."""
    found = {
        (row.estimator, row.problem): row
        for comparison in comparisons
        for row in comparison.rows
        if not row.own_objective
    }
    names = list(dict.fromkeys(name for name, _ in found))
    problems = [comparison.problem for comparison in comparisons]
    place = {name: _place(name, comparisons, figure) for name in names}
    rows = [
        (f"`{name}`", *(_cell(found.get((name, problem)), figure) for problem in problems))
        for name in sorted(names, key=place.__getitem__)
    ]
    return markdown_table(("estimator", *problems), rows)


def _place(name: str, comparisons: Sequence[Comparison], figure: str) -> float:
    """The mean logarithm of the figure against the best of each problem."""
    logs = []
    for comparison in comparisons:
        figures = {r.estimator: getattr(r, figure) for r in comparison.rows if not r.own_objective}
        positive = [x for x in figures.values() if x > 0]
        if name in figures and positive:
            least = min(positive)
            logs.append(math.log(max(figures[name] / least, 0.1)))
    return round(sum(logs) / max(1, len(logs)), 9)  # estimators without variance are equal


def _cell(row: Row | None, figure: str) -> str:
    if row is None:
        return "–"
    bias = "" if row.unbiased else f" ({_short(100 * row.measured.bias)} %)"
    return f"{getattr(row, figure):.3g}{bias}"

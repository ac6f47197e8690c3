"""The tables of `hardgate compare`: on the terminal, as JSON, and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from hardgate_lab.compare.comparison import Round, Row
from hardgate_lab.compare.recommend import recommend
from hardgate_lab.rig import markers as pages
from hardgate_lab.rig.machine import processor, versions

COLUMNS = ("bias", "z", "cosine", "variance", "evals", "µs", "× evals", "× µs", "error")

CAPTION = (
    "Sorted by variance × evals, unbiased ones (green) first: averaging n estimates divides the "
    "variance by n and takes n times the evaluations, so this is the variance at equal "
    "evaluations; variance × µs is that at equal seconds. bias: ‖mean − truth‖/‖truth‖, less "
    "sampling error. z: the largest z-score of a unit. cosine: of one draw to the truth. evals: of "
    "f per gradient; a backward pass through f is not counted, but is in µs, the time of one "
    "gradient in batches of 100. error: √(bias² + variance/n)/‖truth‖ within {budget} evaluations."
)


def table(played: Round, budget: int) -> Table:
    """One problem's contest, for the terminal."""
    title = f"{played.problem}: {played.about}. Truth: {played.truth}."
    title = escape(title)  # a user's docstring may hold brackets
    out = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, padding=0)
    out.add_column("estimator", overflow="fold", min_width=12)
    rows = ordered(played.rows)
    cells = [_cells(row, budget, played.scale) for row in rows]
    for name, column in zip(COLUMNS, zip(*cells, strict=True), strict=True):
        width = max(map(len, column))  # names are broken, figures are not
        out.add_column(name, justify="right", min_width=width, overflow="fold")
    for k, (row, texts) in enumerate(zip(rows, cells, strict=True)):
        if k and _group(row) != _group(rows[k - 1]):
            out.add_section()
        style = "bold red" if row.contradicts else "green" if row.unbiased else ""
        out.add_row(escape(row.estimator) + " °" * row.own_objective, *texts, style=style)
    return out


def ordered(rows: Iterable[Row]) -> list[Row]:
    """By variance at equal evaluations: the unbiased, the biased, then those of another law."""
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


def record(rounds: Sequence[Round], options: dict[str, Any]) -> dict[str, Any]:
    """What `--json` writes: the rounds, what was recommended, and where they were measured.

    Args:
        rounds: one per problem.
        options: of the command, those that decide what was measured.
    """
    return {
        **versions(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        **options,
        "rounds": [{**r.as_dict(), "recommendation": recommend(r)} for r in rounds],
    }


def rounds_of(record: dict[str, Any]) -> list[Round]:
    """The rounds of a record that was read from JSON."""
    return [
        Round.from_dict({k: v for k, v in each.items() if k != "recommendation"})
        for each in record["rounds"]
    ]


def write(page: str, record: dict[str, Any]) -> str:
    """`page` with the blocks that it has markers for written anew from the record."""
    return pages.write(page, {name: partial(block, record) for name, block in BLOCKS.items()})


def rankings(record: dict[str, Any]) -> str:
    """Both rankings over all problems, in Markdown."""
    rounds = rounds_of(record)
    keys = (*versions(), "processor", "threads", "samples", "seed")
    return "\n\n".join(
        [
            f"Taken on: {', '.join(f'{key} {record[key]}' for key in keys)}.",
            "**Variance at equal evaluations**: variance × evaluations of f; in brackets the bias "
            "of those that are biased.",
            _ranking(rounds, "per_evaluation"),
            "**Variance at equal seconds**: variance × µs per gradient.",
            _ranking(rounds, "per_microsecond"),
        ]
    )


def advice(record: dict[str, Any]) -> str:
    """What is recommended on each problem, in Markdown."""
    return "\n".join(
        f"- *{played.problem}* ({played.about}, {played.units} units): {recommend(played)}"
        for played in rounds_of(record)
    )


# What a page may hold, by the name of its markers.
BLOCKS = {"compare": rankings, "recommended": advice}


def _ranking(rounds: Sequence[Round], figure: str) -> str:
    """Estimators down, problems across; `figure` is a property of the rows."""
    found = {
        (row.estimator, row.problem): row
        for played in rounds
        for row in played.rows
        if not row.own_objective
    }
    names = list(dict.fromkeys(name for name, _ in found))
    problems = [played.problem for played in rounds]
    place = {name: _place(name, rounds, figure) for name in names}
    lines = ["| estimator | " + " | ".join(problems) + " |", "|" + "---|" * (1 + len(problems))]
    for name in sorted(names, key=place.__getitem__):
        cells = [_cell(found.get((name, problem)), figure) for problem in problems]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _place(name: str, rounds: Sequence[Round], figure: str) -> float:
    """The mean logarithm of the figure against the best of each problem."""
    logs = []
    for played in rounds:
        figures = {r.estimator: getattr(r, figure) for r in played.rows if not r.own_objective}
        positive = [x for x in figures.values() if x > 0]
        if name in figures and positive:
            least = min(positive)
            logs.append(torch.tensor(max(figures[name], least / 10) / least).log().item())
    return sum(logs) / max(1, len(logs))


def _cell(row: Row | None, figure: str) -> str:
    if row is None:
        return "–"
    bias = "" if row.unbiased else f" ({_short(100 * row.measured.bias)} %)"
    return f"{getattr(row, figure):.3g}{bias}"

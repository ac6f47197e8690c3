"""The variance of every estimator on the models of one trajectory, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hardgate_lab.rig.text_tables import markdown_table

Row = dict[str, Any]


def lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """A head, then the cells: one line for each estimator, the least at equal evaluations first."""
    steps = sorted({row["step"] for row in rows})
    found = {(row["estimator"], row["step"]): row for row in rows}
    last = {row["estimator"]: row for row in rows if row["step"] == steps[-1]}
    order = sorted(last.values(), key=_per_evaluation)
    head = ("estimator", "evals", *(f"step {step}" for step in steps), "× evals")
    return [head] + [
        (
            f"`{row['estimator']}`" + ("*" if row["unbiased"] else ""),
            str(row["n_evals"]),
            *(f"{found[row['estimator'], step]['variance']:.3g}" for step in steps),
            f"{_per_evaluation(row):.3g}",
        )
        for row in order
    ]


def markdown(rows: Sequence[Row]) -> str:
    """For a page."""
    if not rows:
        return ""
    head, *body = lines(rows)
    error = max(row["error"] / row["variance"] for row in rows if row["variance"] > 0)
    table = markdown_table(head, body, align_right=True)
    return (
        f"{table}\n\nΣ Var(g_i) per image at steps of the trajectory; × evals: at the last one, "
        f"at equal evaluations. Standard errors: at most {100 * error:.0f} %. *: unbiased.\n"
    )


def _per_evaluation(row: Row) -> float:
    return float(row["variance"] * row["n_evals"])

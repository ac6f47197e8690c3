"""The runs side by side: at equal steps, at equal evaluations, at equal seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from hardgate_lab.rig.text_tables import markdown_table, terminal_table
from hardgate_lab.vae.vae_record import name_of

Record = dict[str, Any]
COLUMNS = ("estimator", "evals", "ms", "variance", "steps", "evaluations", "seconds", "train")


@dataclass(frozen=True)
class Common:
    """What every run has had: steps, evaluations of f per image of the batch, seconds."""

    steps: int
    evaluations: int
    seconds: float

    @classmethod
    def of(cls, records: Sequence[Record]) -> Common:
        """The least of all runs."""
        return cls(
            min(record["steps"] for record in records),
            min(record["steps"] * record["n_evals"] for record in records),
            min(seconds(record) for record in records),
        )


def seconds(record: Record) -> float:
    """Of all its steps."""
    return float(record["steps"] * record["milliseconds"] / 1e3)


def at(record: Record, curve: str, steps: float) -> float:
    """A curve of the run after so many steps; linear between its points."""
    return float(np.interp(steps, record["curve"]["step"], record["curve"][curve]))


def lines(records: Sequence[Record], variance: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The cells, the best at equal seconds first."""
    common = Common.of(records)
    last = max((row["step"] for row in variance), default=0)
    spread = {row["estimator"]: row for row in variance if row["step"] == last}
    order = sorted(records, key=lambda r: -at(r, "test", _budgets(r, common)[-1]))
    return [_line(record, common, spread.get(name_of(record))) for record in order]


def caption(records: Sequence[Record], variance: Sequence[dict[str, Any]]) -> str:
    """What the columns mean, with the budgets that the runs have in common."""
    common = Common.of(records)
    last = max((row["step"] for row in variance), default=0)
    error = max(max(record["curve"]["test_error"]) for record in records)
    first = records[0]["settings"]
    return (
        f"{records[0]['dataset']}; batch {first['batch']}, Adam {first['lr']:g}, seed "
        f"{first['seed']}. ms: milliseconds of a step, one thread, interleaved. variance: of the "
        f"gradient at the encoder's logits, at step {last} of the trajectory. Test ELBO in nats at "
        f"equal steps ({common.steps}), equal evaluations ({common.evaluations} a batch) and equal "
        f"seconds ({common.seconds:.0f}: steps times ms); train: ELBO on training images at equal "
        f"seconds. Standard error of the draws: at most {error:.2f}. *: unbiased."
    )


def rich_table(records: Sequence[Record], variance: Sequence[dict[str, Any]]) -> Table:
    """For a terminal."""
    return terminal_table(COLUMNS, lines(records, variance), caption=caption(records, variance))


def markdown(records: Sequence[Record], variance: Sequence[dict[str, Any]]) -> str:
    """For a page."""
    table = markdown_table(COLUMNS, lines(records, variance), align_right=True)
    return f"{table}\n\n{caption(records, variance)}\n"


def _line(record: Record, common: Common, spread: dict[str, Any] | None) -> tuple[str, ...]:
    steps = _budgets(record, common)
    return (
        f"`{name_of(record)}`" + ("*" if record["unbiased"] else ""),
        str(record["n_evals"]),
        f"{record['milliseconds']:.1f}",
        "–" if spread is None else f"{spread['variance']:.3g}",
        *(f"{at(record, 'test', each):.2f}" for each in steps),
        f"{at(record, 'train', steps[-1]):.2f}",
    )


def _budgets(record: Record, common: Common) -> tuple[float, float, float]:
    """The steps that each of the common budgets allows this run."""
    by_seconds = 1e3 * common.seconds / record["milliseconds"]
    return common.steps, common.evaluations / record["n_evals"], by_seconds

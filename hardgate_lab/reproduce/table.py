"""The paper's table beside ours, from records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from hardgate_lab.reproduce.settings import ROWS
from hardgate_lab.rig.text_tables import markdown_table, terminal_table

Record = dict[str, Any]


@dataclass(frozen=True)
class Paper:
    """A row of the paper's table: cross-entropy, and errors in percent."""

    train: float
    valid: float
    test: float


PAPER = {
    "noisy_rectifier": Paper(6.7e-4, 1.52, 1.87),
    "straight_through": Paper(3.3e-3, 1.42, 1.39),
    "stochastic_times_smooth": Paper(4.4e-3, 1.86, 1.96),
    "stochastic_binary": Paper(9.9e-3, 1.78, 1.89),
    "rectifier": Paper(6.3e-5, 1.66, 1.60),
    "sigmoid_noise": Paper(1.8e-3, 1.88, 1.87),
    "sigmoid": Paper(3.2e-3, 1.97, 1.92),
}

LABELS = {
    "noisy_rectifier": "Noisy rectifier",
    "straight_through": "Straight-through",
    "stochastic_times_smooth": "Smooth times stochastic",
    "stochastic_binary": "Stochastic binary neuron",
    "rectifier": "Baseline rectifier",
    "sigmoid_noise": "Baseline sigmoid + noise",
    "sigmoid": "Baseline sigmoid",
    "best": "Best of this library",
    "dense": "Dense ReLU, no gates",
}

COLUMNS = ("gater", "train", "paper", "valid", "paper", "test", "paper", "on", "s")
CAPTION = (
    "train: mean cross-entropy in training; valid, test: error in %; on: gates on in training / "
    "at test in %; s: seconds of training. Of several seeds: mean±standard deviation."
)


def lines(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """The table's cells: one line per row, mean ± standard deviation over seeds."""
    return [_line(row, ours) for row, ours in _by_row(records).items()]


def rich_table(records: Sequence[Record]) -> Table:
    """The table for a terminal; green where our test error is at or below the paper's."""
    by_row = _by_row(records)
    table = terminal_table(
        COLUMNS,
        lines(records),
        title="; ".join(sorted({_title(record) for record in records})),
        caption=CAPTION,
        styles=["green" if _reached(row, ours) else None for row, ours in by_row.items()],
    )
    for column in table.columns:
        column.style = "dim" if column.header == "paper" else ""
    return table


def markdown(records: Iterable[Record]) -> str:
    """The table for a page."""
    return markdown_table(COLUMNS, lines(records), align_right=True) + "\n"


def _by_row(records: Iterable[Record]) -> dict[str, list[Record]]:
    """In the order of the table."""
    by_row: dict[str, list[Record]] = {row: [] for row in ROWS}
    for record in records:
        by_row[record["row"]].append(record)
    return {row: ours for row, ours in by_row.items() if ours}


def _line(row: str, records: list[Record]) -> tuple[str, ...]:
    paper = PAPER.get(row)
    theirs = (short(paper.train), f"{paper.valid:.2f}", f"{paper.test:.2f}") if paper else "–––"
    ours = (
        short(statistics.mean(record["train_loss"] for record in records)),
        _over_seeds(records, "valid_error"),
        _over_seeds(records, "test_error"),
    )
    on = [_percent(records, key) for key in ("density_train", "density_test")]
    seconds = statistics.mean(record["seconds"] for record in records)
    pairs = (cell for pair in zip(ours, theirs, strict=True) for cell in pair)
    return LABELS[row], *pairs, "all" if on == ["100.0"] * 2 else "/".join(on), f"{seconds:.0f}"


def _title(record: Record) -> str:
    own = "" if record["canonical"] or record["dataset"] != "mnist" else " (not the real files)"
    return f"{record['dataset']}{own}, {record['preset']} preset"


def _over_seeds(records: list[Record], key: str) -> str:
    values = [record[key] for record in records]
    spread = f"±{statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def _percent(records: list[Record], key: str) -> str:
    return f"{100 * statistics.mean(record[key] for record in records):.1f}"


def short(value: float) -> str:
    """3.3e-3, not 3.3e-03."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def _reached(row: str, records: list[Record]) -> bool:
    """Whether our mean test error is at or below the paper's; only MNIST's own files count."""
    mean = statistics.mean(record["test_error"] for record in records)
    return row in PAPER and all(r["canonical"] for r in records) and mean <= PAPER[row].test

"""The paper's table beside ours, from records."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from hardgate_lab.reproduce.recorded import recorded
from hardgate_lab.reproduce.settings import ROWS
from hardgate_lab.rig.text_tables import markdown_table

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

DATASETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}

COLUMNS = ("gater", "train", "paper", "valid", "paper", "test", "paper", "on", "s")  # of the docs


def rich_table(records: Sequence[Record]) -> Group:
    """The table for a terminal of 80 columns: test errors, gates and time, and what they mean."""
    beside = comparable(records)
    table = Table(box=None, padding=(0, 2, 0, 0))
    errors = ("this run", "recorded", "paper") if beside else ("test error",)
    for number, name in enumerate(("gater", *errors, "gates on", "time")):
        style = "dim" if name in ("recorded", "paper") else None
        justify: JustifyMethod = "right" if number else "left"
        # Where the terminal is narrow, the names wrap, not the figures.
        table.add_column(name, justify=justify, no_wrap=bool(number), style=style)
    for row, ours in by_row(records).items():
        others = _beside(row) if beside else ()
        seconds = statistics.fmean(record["seconds"] for record in ours)
        on = "all" if _all_on(ours) else _percent(ours, "density_test")
        table.add_row(LABELS[row], _over_seeds(ours, "test_error"), *others, on, duration(seconds))
    caption = Text(_CAPTION_BESIDE if beside else _CAPTION, style="dim")
    return Group(Text(_title(records), style="bold"), table, caption)


_CAPTION = (
    "test error: in % of the test images; mean±standard deviation where there are several seeds. "
    "gates on: the share of gates that a test image opens, in %. time: training of one seed."
)
_CAPTION_BESIDE = (
    "this run, recorded, paper: test error in %. recorded: the full-length runs that come with "
    "hardgate, mean±standard deviation over seeds. gates on: the share of gates that a test image "
    "opens in this run, in %. time: training of one seed."
)


def comparable(records: Iterable[Record]) -> bool:
    """Whether these are runs of the paper's experiment: on MNIST, and its real files."""
    return all(record["dataset"] == "mnist" and record["canonical"] for record in records)


def by_row(records: Iterable[Record]) -> dict[str, list[Record]]:
    """The records of each row, in the order of the paper's table."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["row"], []).append(record)
    return {row: found[row] for row in ROWS if row in found}


def duration(seconds: float) -> str:
    """In words: seconds below ten minutes, else minutes.

    Example:
        >>> duration(7.4), duration(94), duration(1224), duration(5817)
        ('7 s', '1 min 34 s', '20 min', '1 h 37 min')
    """
    if seconds < 600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def lines(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """The cells of the docs' table: one line per row, mean ± standard deviation over seeds."""
    return [_line(row, ours) for row, ours in by_row(records).items()]


def markdown(records: Iterable[Record]) -> str:
    """The table for README and docs."""
    return markdown_table(COLUMNS, lines(records), align_right=True) + "\n"


def _line(row: str, records: list[Record]) -> tuple[str, ...]:
    paper = PAPER.get(row)
    theirs = (short(paper.train), f"{paper.valid:.2f}", f"{paper.test:.2f}") if paper else "–––"
    ours = (
        short(statistics.mean(record["train_loss"] for record in records)),
        _over_seeds(records, "valid_error"),
        _over_seeds(records, "test_error"),
    )
    on = "/".join(_percent(records, key) for key in ("density_train", "density_test"))
    seconds = statistics.fmean(record["seconds"] for record in records)
    pairs = (cell for pair in zip(ours, theirs, strict=True) for cell in pair)
    return LABELS[row], *pairs, "all" if _all_on(records) else on, f"{seconds:.0f}"


def _beside(row: str) -> tuple[str, str]:
    """The test error of the recorded full-length runs, and the paper's."""
    ours = by_row(recorded()).get(row)
    return (
        _over_seeds(ours, "test_error") if ours else "–",
        f"{PAPER[row].test:.2f}" if row in PAPER else "–",
    )


def _title(records: Sequence[Record]) -> str:
    first = records[0]
    name = DATASETS.get(first["dataset"], first["dataset"])
    own = " (not the real files)" if name == "MNIST" and not first["canonical"] else ""
    epochs = sorted({record["epochs"] for record in records})
    many = f"{epochs[0]} to {epochs[-1]}" if len(epochs) > 1 else f"{epochs[0]}"
    return f"{name}{own}, {first['preset']} preset, {many} epochs"


def _all_on(records: list[Record]) -> bool:
    return all(_percent(records, key) == "100.0" for key in ("density_train", "density_test"))


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

"""Reads finished runs from a folder or a file; records may lack fields."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardgate_lab.reproduce.settings import ROWS
from hardgate_lab.reproduce.table import LABELS

RECORD = "record.json"  # what `hardgate reproduce` calls it, in a folder per row and seed
_CHECKPOINT = re.compile(r"epoch-\d+\.json")
_LONGEST = 80  # characters of a name

# The figures of a record that stand alone, and those inside `multiplications`.
_NUMBERS = (
    *("train_loss", "train_loss_deterministic", "valid_error", "test_error"),
    *("density_train", "density_test", "epochs", "best_epoch", "seconds"),
    *("dead", "always_on", "decisiveness"),
)
_MULTIPLICATIONS = ("needed", "dense")


class RunsError(ValueError):
    """There are no runs, or a file is damaged; the message says what to type."""


@dataclass(frozen=True)
class Result:
    """A record as the report reads it: what is missing or of another kind is left out."""

    dataset: str
    preset: str
    canonical: bool  # whether the data are known to be the real ones
    row: str
    seed: int | None
    numbers: Mapping[str, float]
    curves: Mapping[str, list[float]]  # NaN where there is no number
    settings: Mapping[str, Any]
    firing_rates: list[float]  # gates in each of equal bins from 0 to 1
    class_use: list[list[float]]  # [classes, gates]: how often each was on; may be empty
    made: Mapping[str, str]  # machine, threads and versions

    @property
    def label(self) -> str:
        """The row as the table names it."""
        return LABELS.get(self.row, self.row)

    @property
    def sparse(self) -> bool:
        """Whether a penalty holds its gates to a target."""
        return bool(self.settings.get("sparsity", "none") != "none")

    @property
    def selective(self) -> bool:
        """Whether it has gates, and some gate is sometimes off."""
        gates = sum(self.firing_rates)
        return gates > 0 and self.numbers.get("always_on") != gates


@dataclass(frozen=True)
class Experiment:
    """The runs of one table: on the same data, with the same preset."""

    dataset: str
    preset: str
    canonical: bool
    rows: Mapping[str, Sequence[Result]]  # by name, in the order of the table; one result per seed

    @property
    def comparable(self) -> bool:
        """Whether it is the paper's experiment: on MNIST, and its real files."""
        return self.dataset == "mnist" and self.canonical

    @property
    def results(self) -> list[Result]:
        """All of them."""
        return [result for results in self.rows.values() for result in results]


@dataclass(frozen=True)
class Runs:
    """What a folder or a file holds."""

    experiments: Sequence[Experiment]
    unfinished: Sequence[str]  # folders of runs that have no record yet
    folder: Path | None  # where `hardgate reproduce` worked; None if these are loose records


def over_seeds(results: Sequence[Result], name: str) -> list[float]:
    """The number of that name, of every result that has it."""
    return [result.numbers[name] for result in results if name in result.numbers]


def read(path: Path) -> Runs:
    """The runs of an `--out` folder, of a folder of records, or of a list that `--json` wrote.

    Args:
        path: of any of these; also of one run.

    Raises:
        RunsError: says what was expected, what is there, and what to type.
    """
    if not path.exists():
        raise RunsError(f"{path}: {_EXPECTED}, got nothing of that name. {_TYPE}")
    folders = [path, *sorted(path.glob("*/")), *sorted(path.glob("*/*/"))] if path.is_dir() else []
    files = [folder / RECORD for folder in folders if (folder / RECORD).is_file()]
    unfinished = [
        _text(folder.relative_to(path))
        for folder in folders
        if (folder / "lock").is_file() and not (folder / RECORD).is_file()
    ]
    worked = bool(files)
    if not files:
        files = [path] if path.is_file() else _loose(path)
    results = {f"{file}{place}": result for file in files for place, result in _records(file)}
    if not results:
        missing = f"runs that are not finished: {', '.join(unfinished)}" if unfinished else "none"
        go_on = "The `hardgate reproduce` that began them carries on." if unfinished else _TYPE
        raise RunsError(f"{path}: {_EXPECTED}, got {missing}. {go_on}")
    _check_single(results)
    return Runs(_experiments(list(results.values())), unfinished, path if worked else None)


_EXPECTED = (
    "expected finished runs (the --out folder of `hardgate reproduce`, a folder of records, "
    "or the list that --json wrote)"
)
_TYPE = "Type `hardgate reproduce --out RUNS`, then `hardgate report RUNS`."


def _loose(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*.json")) if not _CHECKPOINT.match(file.name)]


def _records(file: Path) -> Iterator[tuple[str, Result]]:
    """The records of a file, each with its place in it."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunsError(
            f"{file}: expected a record in JSON, got a file that cannot be read ({error}). "
            "Remove it, or train that row again with `hardgate reproduce --fresh`."
        ) from error
    listed = isinstance(content, list)
    for number, record in enumerate(content if listed else [content]):
        place = f"[{number}]" if listed else ""
        if not isinstance(record, dict) or not isinstance(record.get("row"), str):
            keys = ", ".join(map(repr, record)) if isinstance(record, dict) else ""
            got = f"the keys {_text(keys)}" if keys else f"{_text(record)!r}"
            raise RunsError(
                f'{file}{place}: expected a record, an object with a "row", got {got}. Remove it, '
                "or name a folder that holds nothing but records."
            )
        yield place, _result(record)


def _result(record: dict[str, Any]) -> Result:
    multiplications = _mapping(record.get("multiplications"))
    given = {name: record.get(name) for name in _NUMBERS}
    given |= {name: multiplications.get(name) for name in _MULTIPLICATIONS}
    made = {"machine": record.get("machine"), "threads": record.get("threads")}
    made |= _mapping(record.get("versions"))
    curves = _mapping(record.get("curves"))
    numbers = {name: float(value or 0) for name, value in given.items() if _is_number(value)}
    if numbers.get("epochs") and "seconds" in numbers:
        numbers["epoch_seconds"] = numbers["seconds"] / numbers["epochs"]
    seed = record.get("seed")
    return Result(
        dataset=_text(record.get("dataset", "unknown data")),
        preset=_text(record.get("preset", "unknown")),
        canonical=record.get("canonical") is True,
        row=_text(record["row"]),
        seed=seed if type(seed) is int else None,
        numbers=numbers,
        curves={name: _numbers(values) for name, values in curves.items() if _numbers(values)},
        settings={
            _text(name): _text(value) if isinstance(value, str) else value
            for name, value in _mapping(record.get("settings")).items()
        },
        firing_rates=_numbers(record.get("firing_rates")),
        class_use=_matrix(_mapping(record.get("class_use")).get("rates")),
        made={_text(key): _text(value) for key, value in made.items() if value is not None},
    )


def _experiments(results: list[Result]) -> list[Experiment]:
    order = {row: place for place, row in enumerate(ROWS)}
    results.sort(key=lambda r: (order.get(r.row, len(order)), r.row, r.seed or 0))
    kinds = sorted(
        {(r.dataset, r.preset, r.canonical) for r in results},
        key=lambda kind: (kind[0] != "mnist", kind),  # the paper's first
    )
    by_kind: dict[tuple[str, str, bool], dict[str, list[Result]]] = {kind: {} for kind in kinds}
    for result in results:
        rows = by_kind[result.dataset, result.preset, result.canonical]
        rows.setdefault(result.row, []).append(result)
    return [Experiment(*kind, rows) for kind, rows in by_kind.items()]


def _check_single(results: Mapping[str, Result]) -> None:
    """Refuse a seed that is there twice: it would narrow the spread."""
    keys = {w: (r.row, r.seed, r.dataset, r.preset, r.canonical) for w, r in results.items()}
    key, number = Counter(keys.values()).most_common(1)[0]
    if number > 1:
        twice = [where for where, other in keys.items() if other == key]
        raise RunsError(
            f"expected one record of a row and seed, got {number} of {key[0]}, seed {key[1]}: "
            f"{', '.join(twice)}. Name a folder that holds one of them."
        )


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -1e300 < value < 1e300  # type: ignore[operator]


def _numbers(values: object) -> list[float]:
    """A list of numbers, NaN for what is none; empty if nothing is."""
    given = values if isinstance(values, list) else []
    read_ = [float(value) if _is_number(value) else float("nan") for value in given]
    return read_ if any(value == value for value in read_) else []


def _matrix(rows: object) -> list[list[float]]:
    read_ = [_numbers(row) for row in rows] if isinstance(rows, list) else []
    return read_ if len({len(row) for row in read_}) == 1 and read_[0] else []


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    """The value as one short line of printable characters."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(value))
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"

"""The recorded full-length runs, small enough to ship with the package.

`results/reproduce` holds the whole records, and is not part of an installed package. What a quick
run is shown beside is: `recorded.json`, a list of records cut down to a few numbers. `make readme`
writes it, and a test compares it with the records.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hardgate_lab.reproduce.settings import PAPER_ROWS

PATH = Path(__file__).with_name("recorded.json")
COMMAND = "hardgate reproduce --preset paper --out out/paper"  # repeats them, with one seed
CORES = 2  # for which `minutes` is given

_KEYS = (
    *("dataset", "preset", "canonical", "row", "seed", "machine"),
    *("valid_error", "test_error", "density_train", "density_test"),
    *("epochs", "best_epoch", "seconds"),
)


def shorten(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder, cut down to what is shipped."""
    records = (json.loads(path.read_text()) for path in sorted(folder.glob("*.json")))
    return [{key: record[key] for key in _KEYS} for record in records]


def recorded() -> list[dict[str, Any]]:
    """The shipped list."""
    records: list[dict[str, Any]] = json.loads(PATH.read_text())
    return records


def minutes(rows: Iterable[str] = PAPER_ROWS) -> int:
    """How long these rows take at full length with one seed, side by side on `CORES` cores.

    The recorded seconds are those of one core of a shared machine: tens of minutes, rounded up.
    """
    records = recorded()
    seconds = [
        statistics.fmean(record["seconds"] for record in records if record["row"] == row)
        for row in rows
    ]
    return 10 * math.ceil(max(sum(seconds) / CORES, *seconds) / 600)


if __name__ == "__main__":  # python -m hardgate_lab.reproduce.recorded FOLDER, for `make readme`
    lines = ",\n".join(json.dumps(record) for record in shorten(Path(sys.argv[1])))
    PATH.write_text(f"[\n{lines}\n]\n")

"""What `hardgate reproduce` says last: what the table means, and two commands to go on with."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from hardgate_lab.reproduce.recorded import COMMAND, CORES, minutes
from hardgate_lab.reproduce.table import Record, comparable


def next_steps(records: Sequence[Record], out: Path) -> str:
    """Two commands, each with what it does, for a terminal of 80 columns.

    Args:
        records: of the runs that have just ended.
        out: their `--out`.
    """
    quick = records[0]["preset"] == "quick"
    if not comparable(records):
        first = ("hardgate reproduce --out out/mnist", "The paper's experiment, on MNIST.")
    elif quick:
        first = (COMMAND, f"Full length: about {minutes()} minutes on {CORES} cores.")
    else:
        more = f"hardgate reproduce --preset paper --seeds 3 --out {out}"
        first = (more, f"Three seeds: about {3 * minutes()} minutes on {CORES} cores.")
    second = ("hardgate compare", "The gradient of every unit and estimator beside the exact one.")
    steps = [
        f"  {command.replace('hardgate', program(), 1)}\n      {what}"
        for command, what in (first, second)
    ]
    return "\n".join([*([_QUICK] if quick else []), "Next:", *steps])


_QUICK = "A quick run shows the experiment at work, not its final errors."


def program() -> str:
    """What to type for `hardgate` here: `make reproduce` does not put it on the path."""
    called = Path(sys.argv[0])
    if shutil.which("hardgate") is None and called.name == "hardgate":
        return str(called)
    return "hardgate"

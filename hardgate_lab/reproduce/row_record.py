"""The record of a finished row, and what identifies a run."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from hardgate_lab.reproduce.evaluate import DIGITS, evaluate, gate_use, multiplications
from hardgate_lab.reproduce.settings import Settings
from hardgate_lab.rig.checkpoint import json_number
from hardgate_lab.rig.machine import processor, versions
from hardgate_lab.rig.same_run import check_same

if TYPE_CHECKING:
    from hardgate_lab.reproduce.training_state import TrainingState
    from hardgate_lab.rig.mnist import Dataset


def identity(
    row: str, seed: int, settings: Settings, threads: int, processes: int, data: Dataset
) -> dict[str, Any]:
    """What must agree for a run to be continued, or taken as finished."""
    return {
        "dataset": data.name,
        "data": _digest(data),
        "row": row,
        "seed": seed,
        "threads": threads,
        "processes": processes,
        "settings": asdict(settings),
    }


def finished(path: Path, same: dict[str, Any]) -> dict[str, Any] | None:
    """The record of this run if it is finished, with whatever number of threads."""
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError:
        return None  # damaged: train again
    if not isinstance(record, dict) or not isinstance(record.get("settings"), dict):
        return None  # not a record: train again
    check_same_row(record, {**same, "threads": record.get("threads")}, path.parent)
    return record


def check_same_row(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    """Raise `MismatchError` where the folder's run, `old`, is not the one asked for, `new`."""
    # A setting that an earlier version did not record had its default value.
    settings = {**asdict(Settings()), **old.get("settings", {})}
    old, new = {"processes": 1, **old, "settings": settings}, {"processes": 1, **new}
    if max(old["processes"], new["processes"]) > 1:  # equal to rounding, however many there are
        new |= {key: old.get(key) for key in ("threads", "processes")}
    check_same(old, new, folder)


def make_record(
    run: TrainingState, data: Dataset, preset: str, same: dict[str, Any]
) -> dict[str, Any]:
    """Everything the table and the report show. Here, and only here, the test set is read."""
    model, best = run.evaluated(), run.best_epoch() - 1
    model.load_state_dict(run.best)
    fit, valid, test = (evaluate(model, split) for split in (data.train, data.valid, data.test))

    def number(value: float) -> float | None:
        return json_number(value, DIGITS)

    curves = {
        name: [number(value) for value in values]
        for name, values in run.curves.items()
        if name != "valid_loss"
    }
    return {
        **same,
        "preset": preset,
        "canonical": data.canonical,
        "train_loss": number(run.curves["train_loss"][best]),
        "train_loss_deterministic": number(fit.loss),
        "valid_error": round(valid.error, 4),
        "test_error": round(test.error, 4),
        "density_train": number(run.curves["density"][best]),
        "density_test": number(test.density),
        "epochs": run.epoch,
        "best_epoch": best + 1,
        "seconds": round(sum(run.curves["seconds"]), 1),
        "multiplications": multiplications(model),
        **gate_use(model, data.valid),
        "versions": {**versions(), "numpy": numpy.__version__},
        "machine": processor(),
        "curves": curves,
    }


def _digest(data: Dataset) -> str:
    """Of every image and label: another file, or another split, is another experiment."""
    digest = hashlib.sha256()
    for split in (data.train, data.valid, data.test):
        digest.update(split.x.numpy().data)
        digest.update(split.y.numpy().data)
    return digest.hexdigest()[:16]

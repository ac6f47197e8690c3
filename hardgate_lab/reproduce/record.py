"""What is kept of a finished run, and how one run is told from another."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from hardgate_lab.reproduce.evaluate import evaluate, finite, gate_use, multiplications
from hardgate_lab.reproduce.settings import Settings
from hardgate_lab.rig.machine import processor, versions

if TYPE_CHECKING:
    from hardgate_lab.reproduce.training_state import Run
    from hardgate_lab.rig.images import Dataset


class MismatchError(ValueError):
    """A folder holds a run with other settings."""


def identity(
    row: str, seed: int, settings: Settings, threads: int, processes: int, data: Dataset
) -> dict[str, Any]:
    """What must agree for a run to be carried on, or taken as finished."""
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
    """The record of this very run, if it is there; however many threads it had."""
    if not path.exists():
        return None
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
    except ValueError:
        return None  # damaged: train again
    if not isinstance(record, dict) or not isinstance(record.get("settings"), dict):
        return None  # no record: the same
    check_same(record, {**same, "threads": record.get("threads")}, path.parent)
    return record


def check_same(old: dict[str, Any], new: dict[str, Any], folder: Path) -> None:
    """Refuse to carry on what was started in another way, and say what differs."""
    # What an earlier version did not note was what it is by default.
    old, new = {"processes": 1, **old}, {"processes": 1, **new}
    before, after = {**asdict(Settings()), **_flat(old)}, _flat(new)
    if max(old["processes"], new["processes"]) > 1:  # the same to rounding, whatever they are
        after.update({key: before.get(key) for key in ("threads", "processes")})
    different = [
        f"{key} {before.get(key)!r} → {after[key]!r}"
        for key in after
        if before.get(key) != after[key]
    ]
    if different:
        same_jobs = "Give --jobs as before to carry on: it shares the cores out as threads. "
        raise MismatchError(
            f"{folder} holds a run with other settings (there → here): {', '.join(different)}. "
            f"{same_jobs if before.get('threads') != after.get('threads') else ''}"
            "Type --fresh to start it anew, or another --out to keep both."
        )


def make_record(run: Run, data: Dataset, preset: str, same: dict[str, Any]) -> dict[str, Any]:
    """Everything the table and the report show. Here, and only here, the test set is read."""
    model, best = run.evaluated(), run.best_epoch() - 1
    model.load_state_dict(run.best)
    fit, valid, test = (evaluate(model, split) for split in (data.train, data.valid, data.test))
    curves = {
        name: [finite(value) for value in values]
        for name, values in run.curves.items()
        if name != "valid_loss"
    }
    return {
        **same,
        "preset": preset,
        "canonical": data.canonical,
        "train_loss": finite(run.curves["train_loss"][best]),
        "train_loss_deterministic": finite(fit.loss),
        "valid_error": round(valid.error, 4),
        "test_error": round(test.error, 4),
        "density_train": finite(run.curves["density"][best]),
        "density_test": finite(test.density),
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


def _flat(nested: dict[str, Any]) -> dict[str, Any]:
    return {**nested, **nested.get("settings", {}), "settings": None}

"""What is kept of a run, for tables and figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hardgate.estimators import Estimator
from hardgate_lab.rig.machine import processor, versions
from hardgate_lab.vae.elbo import elbo
from hardgate_lab.vae.step_time import CLOCK
from hardgate_lab.vae.take_turns import VARIANCE
from hardgate_lab.vae.vae_candidates import n_evals
from hardgate_lab.vae.vae_run import EVALUATED, VaeRun

RECORD = "record.json"
_DRAWS = 10  # of b for each image, at the end


def make_record(run: VaeRun, milliseconds: float) -> dict[str, Any]:
    """The facts of the estimator, the curve, and the ELBO at the end with more draws.

    Args:
        run: at its end.
        milliseconds: of one of its steps, beside the others' (`cost.milliseconds`).
    """
    final = {
        split: elbo(run.model, getattr(run.data, split)[:EVALUATED], _DRAWS, run.steps)
        for split in ("train", "valid", "test")
    }
    estimator = run.estimator
    return {
        **run.same,
        "dataset": run.data.label,
        "canonical": run.data.canonical,
        "unbiased": estimator.unbiased if isinstance(estimator, Estimator) else False,
        "n_evals": n_evals(estimator),
        "steps": run.steps,
        "milliseconds": round(milliseconds, 3),
        "clock": CLOCK,
        "elbo": {split: round(found.mean, 4) for split, found in final.items()},
        "elbo_error": {split: round(found.error, 4) for split, found in final.items()},
        "versions": versions(),
        "machine": processor(),
        "curve": {name: [round(v, 4) for v in values] for name, values in run.curve.items()},
    }


def name_of(record: dict[str, Any]) -> str:
    """The code that makes its estimator."""
    return str(record["settings"]["estimator"])


def read(folder: Path) -> list[dict[str, Any]]:
    """The records in a folder, by name."""
    paths = sorted(path for path in folder.glob("*.json") if path.name != VARIANCE)
    return [json.loads(path.read_text()) for path in paths]


def read_variance(folder: Path) -> list[dict[str, Any]]:
    """The rows of the folder's `variance.json`; none if there is no such file."""
    path = folder / VARIANCE
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows

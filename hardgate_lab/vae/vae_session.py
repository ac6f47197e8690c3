"""`hardgate vae`: train the rivals, measure their variance on one trajectory, show both."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from hardgate_lab.reproduce.record import MismatchError
from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.candidates import Contestant
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.idx import DataError
from hardgate_lab.rig.lock import LockedError
from hardgate_lab.rig.machine import processor, versions
from hardgate_lab.vae import vae_table
from hardgate_lab.vae.cost import milliseconds
from hardgate_lab.vae.vae_candidates import slug
from hardgate_lab.vae.vae_data import Digits
from hardgate_lab.vae.vae_display import Plain, Watch
from hardgate_lab.vae.vae_figures import figures
from hardgate_lab.vae.vae_record import RECORD, make_record, name_of
from hardgate_lab.vae.vae_run import Settings
from hardgate_lab.vae.vae_train import VARIANCE, Budget, snapshots, train
from hardgate_lab.vae.variance import METHOD, measure

REFUSALS = (SaveError, DataError, LockedError, MismatchError)  # the message says what to do


@dataclass(frozen=True)
class Plan:
    """What to train and measure, how far, and where it goes."""

    measured: dict[str, Contestant]  # their variance; those that are trained are among them
    settings: tuple[Settings, ...]
    budget: Budget
    out: Path
    figures: Path
    records: Path | None


def vae(plan: Plan, data: Digits, console: Console) -> int:
    """Train, measure, show.

    Args:
        plan: what.
        data: the images.
        console: to print on.

    Returns:
        the exit code: 0, 1 if a run failed, 130 after Ctrl-C.
    """
    cost = milliseconds(plan.settings, data)
    limits = {each: plan.budget.steps_of(cost[each.estimator]) for each in plan.settings}
    watch = Watch(console, limits) if console.is_terminal else None
    display = watch or Plain(console, limits)
    display.say(f"data: {data.label}")
    try:
        with watch or nullcontext():
            runs = train(limits, data, plan.out, display)
        records = [make_record(run, cost[name]) for name, run in runs.items()]
        variance = _variance(plan, data, display)
    except KeyboardInterrupt:
        display.say("Stopped. The same command carries on from each run's last checkpoint.")
        return 130
    if records:
        console.print(vae_table.rich_table(records, variance["rows"]))
        written = figures(records, variance["rows"], plan.figures)
        written += _write_records(plan, records, variance)
        display.say(f"→ {', '.join(map(str, [plan.out, *written]))}")
    return int(bool(display.failures))


def _variance(plan: Plan, data: Digits, display: Plain) -> dict[str, Any]:
    """Along the path of the first rival; measured once for the same models and rivals."""
    first = plan.settings[0]
    trajectory, path = plan.out / slug(first.estimator), plan.out / VARIANCE
    same = {
        "trajectory": {**asdict(first), "data": data.digest, "steps": snapshots(trajectory)},
        "estimators": list(plan.measured),
    }
    if path.exists() and (old := _unless_damaged(path)) and same.items() <= old.items():
        return old

    def tell(name: str, step: int) -> None:
        display.say(f"variance of {name} at step {step} of {first.estimator}: measured")

    rows = measure(trajectory, first.units, plan.measured, data, first.seed, tell)
    where = {"versions": versions(), "machine": processor()}
    found = {**same, "method": METHOD, **where, "rows": rows}
    checkpoint.write_json(path, found)
    return found


def _unless_damaged(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return content if isinstance(content, dict) and "rows" in content else {}


def _write_records(
    plan: Plan, records: list[dict[str, Any]], variance: dict[str, Any]
) -> list[Path]:
    """Beside each run's weights; and with `--records`, all in one folder with `variance.json`."""
    for record in records:
        checkpoint.write_json(plan.out / slug(name_of(record)) / RECORD, record)
    if plan.records is None:
        return []
    plan.records.mkdir(parents=True, exist_ok=True)
    for record in records:
        checkpoint.write_json(plan.records / f"{slug(name_of(record))}.json", record)
    checkpoint.write_json(plan.records / VARIANCE, variance)
    return [plan.records]

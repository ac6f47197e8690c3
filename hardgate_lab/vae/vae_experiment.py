"""`hardgate vae`: train with each candidate, measure the variances on one run, show both."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.candidates import Candidate
from hardgate_lab.rig.machine import processor, versions
from hardgate_lab.rig.progress import Bar, say
from hardgate_lab.vae import vae_table
from hardgate_lab.vae.gradient_variance import METHOD, measure
from hardgate_lab.vae.step_time import milliseconds
from hardgate_lab.vae.take_turns import VARIANCE, Budget, snapshots, train
from hardgate_lab.vae.vae_candidates import slug
from hardgate_lab.vae.vae_data import Digits
from hardgate_lab.vae.vae_display import VaeLines, VaeTable
from hardgate_lab.vae.vae_figures import figures
from hardgate_lab.vae.vae_record import RECORD, make_record, name_of
from hardgate_lab.vae.vae_run import VaeSettings


@dataclass(frozen=True)
class VaePlan:
    """What to train and measure, how far, and where it goes."""

    measured: dict[str, Candidate]  # their variance; those that are trained are among them
    settings: tuple[VaeSettings, ...]
    budget: Budget
    out: Path
    figures: Path
    records: Path | None


def vae(plan: VaePlan, data: Digits, console: Console) -> int:
    """Train, measure, show.

    Args:
        plan: what.
        data: the images.
        console: to print on.

    Returns:
        the exit code: 0, 1 if a run failed, 130 after Ctrl-C.
    """
    say(console, f"data: {data.label}")
    with console.status("timing a training step of each estimator"):
        times = milliseconds(plan.settings, data)
    limits = {each: plan.budget.steps_of(times[each.estimator]) for each in plan.settings}
    display = (VaeTable if console.is_terminal else VaeLines)(console, limits, times)
    try:
        with display.shown():
            runs = train(limits, data, plan.out, display)
        records = [make_record(run, times[name]) for name, run in runs.items()]
        variance = _variance(plan, data, console)
    except KeyboardInterrupt:
        say(console, "Stopped. The same command carries on from each run's last checkpoint.")
        return 130
    if records:
        console.print(vae_table.rich_table(records, variance["rows"]))
        written = figures(records, variance["rows"], plan.figures)
        written += _write_records(plan, records, variance)
        say(console, f"→ {', '.join(map(str, [plan.out, *written]))}")
    return int(bool(display.failures))


def _variance(plan: VaePlan, data: Digits, console: Console) -> dict[str, Any]:
    """Along the path of the first candidate; measured once for the same models and trainable."""
    first = plan.settings[0]
    trajectory, path = plan.out / slug(first.estimator), plan.out / VARIANCE
    steps = snapshots(trajectory)
    same = {
        "trajectory": {**asdict(first), "data": data.digest, "steps": steps},
        "estimators": list(plan.measured),
    }
    if path.exists() and (old := _unless_damaged(path)) and same.items() <= old.items():
        return old

    with Bar(console, "measuring variances", len(plan.measured) * len(steps)) as bar:

        def tell(name: str, step: int) -> None:
            bar.now(f"{name} at step {step}")
            bar.advance()
            if step == steps[-1]:
                bar.say(f"measured the variance of {name}")

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
    plan: VaePlan, records: list[dict[str, Any]], variance: dict[str, Any]
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

"""Train with several estimators in one process, taking turns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.lock import locks, remove
from hardgate_lab.vae.vae_candidates import slug
from hardgate_lab.vae.vae_data import Digits
from hardgate_lab.vae.vae_run import DivergedError, VaeRun, VaeSettings

SNAPSHOT = "weights-{:06d}.safetensors"
VARIANCE = "variance.json"


@dataclass(frozen=True)
class Budget:
    """How far each run goes: to this many steps, and to this many seconds."""

    steps: int
    seconds: float = 0.0

    def steps_of(self, milliseconds: float) -> int:
        """The steps of a run, each of which takes so long."""
        return max(self.steps, math.ceil(1e3 * self.seconds / milliseconds))


class Watcher(Protocol):
    """Told what the runs do."""

    def progress(self, run: VaeRun, step: int) -> None:
        """A run is at this step."""

    def point(self, run: VaeRun) -> None:
        """The curve of a run has a new point."""

    def failed(self, run: VaeRun, message: str) -> None:
        """A run is given up."""

    def say(self, message: str) -> None:
        """Something the user should read."""


def train(
    limits: Mapping[VaeSettings, int], data: Digits, out: Path, watcher: Watcher
) -> dict[str, VaeRun]:
    """Train every run to its limit, in turns of `every` steps, with one thread.

    If it is killed at any time, the same call continues and ends with the same bits. With a larger
    limit, it continues where it ended.

    Args:
        limits: the steps of each run, by its settings.
        data: to train and evaluate on.
        out: the folder; each run has one of its own in it.
        watcher: told about all of it.

    Returns:
        the runs that did not diverge, by the estimator's code.
    """
    torch.set_num_threads(1)
    with locks(out / slug(each.estimator) for each in limits):
        runs = {each.estimator: VaeRun(each, data) for each in limits}
        for name, run in runs.items():
            run.resume(out / slug(name), watcher.say)
            watcher.progress(run, run.steps)
        for run in _turns(runs, limits):
            _turn(run, runs, out, watcher)
    return runs


def snapshots(folder: Path) -> list[int]:
    """The steps whose weights a run has kept."""
    return sorted(int(path.stem.partition("-")[2]) for path in folder.glob("weights-*.safetensors"))


def discard(settings: Sequence[VaeSettings], out: Path) -> None:
    """`--fresh`: remove what earlier runs left, and what was measured on their models."""
    remove(out / slug(each.estimator) for each in settings)
    (out / VARIANCE).unlink(missing_ok=True)


def _turns(runs: Mapping[str, VaeRun], limits: Mapping[VaeSettings, int]) -> Iterator[VaeRun]:
    """Always the run that has done the fewest steps, until all are at their limits."""
    while waiting := [run for run in runs.values() if run.steps < limits[run.settings]]:
        yield min(waiting, key=lambda run: run.steps)


def _turn(run: VaeRun, runs: dict[str, VaeRun], out: Path, watcher: Watcher) -> None:
    name = run.settings.estimator
    try:
        run.advance(lambda step: watcher.progress(run, step))
    except DivergedError as error:
        watcher.failed(run, str(error))
        del runs[name]
        return
    _keep(out / slug(name), run)
    watcher.point(run)


def _keep(folder: Path, run: VaeRun) -> None:
    """A checkpoint; and the weights for good whenever the steps have doubled."""
    points = len(run.curve["step"])
    if points & (points - 1) == 0:
        checkpoint.write_tensors(folder / SNAPSHOT.format(run.steps), run.model.state_dict())
    run.save(folder)

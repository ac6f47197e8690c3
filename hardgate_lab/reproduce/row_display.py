"""What a person sees while the rows train: a live table, or one line per epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console, RenderableType

from hardgate_lab.reproduce.train import Job, RowProgress
from hardgate_lab.rig.progress import LiveTable, bar_cell, clock, say, state_cell

_COLUMNS = ("row", "", "epoch", "loss", "valid %", "on %", "left")  # fits 80 columns
_LEGEND = (
    "loss: cross-entropy in training; valid %: error on the validation images; "
    "on %: gates that are open in training (the paper aims at 10)."
)

Cost = Callable[[Job], float]


class RowLines:
    """One line per row and epoch, for logs.

    Args:
        console: to print on.
        jobs: in the order in which they are started.
        width: how many run side by side.
        cost: of a job, in any unit; for the time that waiting jobs will take.
    """

    def __init__(self, console: Console, jobs: Sequence[Job], width: int, cost: Cost) -> None:
        self._console = console
        self._now: dict[Job, RowProgress | None] = dict.fromkeys(jobs)
        self._width, self._cost = width, cost
        self._told: dict[Job, int] = {}
        self.records: dict[Job, dict[str, Any]] = {}
        self.failures: dict[Job, str] = {}

    def shown(self) -> AbstractContextManager[object]:
        """While the jobs run."""
        return nullcontext()

    def progress(self, job: Job, progress: RowProgress) -> None:
        self._now[job] = progress
        done = math.floor(progress.epoch)
        if done > self._told.get(job, 0):
            self._told[job] = done
            loss, valid, density, left = _cells(job, progress)
            self.say(
                job,
                f"epoch {done}/{progress.epochs}, loss {loss}, valid {valid} % (best "
                f"{_number(progress.best_error, '.2f')}), on {density} %, "
                f"λ {_number(progress.weight, '.1e')}, {left} left, "
                f"all rows {clock(self.seconds_left())}",
            )

    def say(self, job: Job, message: str, style: str | None = None) -> None:
        say(self._console, f"{_name(job)}: {message}", style)

    def done(self, job: Job, record: dict[str, Any]) -> None:
        self.records[job] = record
        self.say(job, _summary(record))

    def failed(self, job: Job, message: str) -> None:
        self.failures[job] = message
        self.say(job, f"failed: {message}", style="red")

    def seconds_left(self) -> float:
        """Until the last row ends; NaN while nothing is known.

        The rows that run say how long they will take. Each row that waits takes its cost times
        the pace of the others, and starts where a row ends first.
        """
        still = [job for job in self._now if job not in self.records | self.failures]
        left = {
            job: (now.left, 1 - now.epoch / now.epochs)
            for job in still
            if (now := self._now[job]) is not None and math.isfinite(now.left)
        }
        seconds = sum(s for s, _ in left.values())
        seconds += sum(record["seconds"] for record in self.records.values())
        work = sum(self._cost(job) * part for job, (_, part) in left.items())
        work += sum(map(self._cost, self.records))
        if still and not work:
            return math.nan
        ends = [0.0] * (self._width - len(left)) + [s for s, _ in left.values()]
        for job in still:
            if job not in left:
                first = ends.index(min(ends))
                ends[first] += seconds / work * self._cost(job)
        return max(ends)


class RowTable(RowLines):
    """A live table for a terminal, one row per job; messages scroll above it."""

    def __init__(self, console: Console, jobs: Sequence[Job], width: int, cost: Cost) -> None:
        super().__init__(console, jobs, width, cost)
        self._begun = time.monotonic()
        self.live = LiveTable(console, _COLUMNS, self._rows, self._caption)

    def shown(self) -> AbstractContextManager[object]:
        return self.live

    def progress(self, job: Job, progress: RowProgress) -> None:
        self._now[job] = progress

    def _caption(self) -> str:
        left = self.seconds_left()
        about = f"about {clock(left)}" if math.isfinite(left) else "not known yet"
        so_far = clock(time.monotonic() - self._begun)
        return f"Time left for all rows: {about} ({so_far} so far).\n{_LEGEND}"

    def _rows(self) -> Iterator[Sequence[RenderableType]]:
        for job, progress in self._now.items():
            if job in self.failures:
                yield _name(job), state_cell("failed")
            elif job in self.records:
                yield _name(job), state_cell("done"), *_final(self.records[job])
            elif progress is None:
                yield _name(job), state_cell("waiting")
            else:
                bar = bar_cell(progress.epoch, progress.epochs)
                running = min(math.floor(progress.epoch) + 1, progress.epochs)
                yield _name(job), bar, f"{running}/{progress.epochs}", *_cells(job, progress)


def _name(job: Job) -> str:
    return f"{job.row} (seed {job.seed})" if job.seed else job.row


def _cells(job: Job, progress: RowProgress) -> tuple[str, ...]:
    """Loss, validation error, gates on, time left."""
    gated = job.settings.sparsity != "none"
    return (
        _number(progress.loss, ".4f"),
        _number(progress.valid_error, ".2f"),
        _number(100 * progress.density, ".1f") if gated else "all",
        clock(progress.left),
    )


def _number(value: float, style: str) -> str:
    return "–" if math.isnan(value) else format(value, style)


def _final(record: dict[str, Any]) -> tuple[str, ...]:
    gated = record["settings"]["sparsity"] != "none"
    return (
        f"{record['epochs']}/{record['epochs']}",
        f"{record['train_loss']:.4f}",
        f"{record['valid_error']:.2f}",
        f"{100 * record['density_train']:.1f}" if gated else "all",
    )


def _summary(record: dict[str, Any]) -> str:
    return (
        f"done: valid {record['valid_error']:.2f} %, test {record['test_error']:.2f} % (epoch "
        f"{record['best_epoch']} of {record['epochs']}), {clock(record['seconds'])} of training"
    )

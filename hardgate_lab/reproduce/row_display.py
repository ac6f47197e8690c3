"""What a person sees while the rows train: a live table, or one line per epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console, RenderableType

from hardgate_lab.reproduce.train import Job, RowProgress
from hardgate_lab.rig.progress import LiveTable, bar_cell, clock, say, state_cell

_COLUMNS = ("row", "", "epoch", "loss", "valid %", "best %", "on % (target)", "λ", "left")


class RowLines:
    """One line per row and epoch, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[Job, int] = {}
        self.records: dict[Job, dict[str, Any]] = {}
        self.failures: dict[Job, str] = {}

    def shown(self) -> AbstractContextManager[object]:
        """While the jobs run."""
        return nullcontext()

    def progress(self, job: Job, progress: RowProgress) -> None:
        done = math.floor(progress.epoch)
        if done > self._told.get(job, 0):
            self._told[job] = done
            loss, valid, best, density, weight, left = _cells(job, progress)
            self.say(
                job,
                f"epoch {done}/{progress.epochs}, loss {loss}, valid {valid} % (best {best}), "
                f"on {density}, λ {weight}, {left} left",
            )

    def say(self, job: Job, message: str, style: str | None = None) -> None:
        say(self._console, f"{_name(job)}: {message}", style)

    def done(self, job: Job, record: dict[str, Any]) -> None:
        self.records[job] = record
        self.say(job, _summary(record))

    def failed(self, job: Job, message: str) -> None:
        self.failures[job] = message
        self.say(job, f"failed: {message}", style="red")


class RowTable(RowLines):
    """A live table for a terminal, one row per job; messages scroll above it."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        super().__init__(console)
        self._now: dict[Job, RowProgress | None] = dict.fromkeys(jobs)
        self._begun = time.monotonic()
        self.live = LiveTable(console, _COLUMNS, self._rows, self._caption)

    def shown(self) -> AbstractContextManager[object]:
        return self.live

    def progress(self, job: Job, progress: RowProgress) -> None:
        self._now[job] = progress

    def _caption(self) -> str:
        return f"{clock(time.monotonic() - self._begun)} so far"

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
    gated = job.settings.sparsity != "none"
    density = f"{_number(100 * progress.density, '.1f')} ({100 * job.settings.target:g})"
    return (
        _number(progress.loss, ".4f"),
        _number(progress.valid_error, ".2f"),
        _number(progress.best_error, ".2f"),
        density if gated else "all",
        _number(progress.weight, ".1e") if gated else "–",
        clock(progress.left),
    )


def _number(value: float, style: str) -> str:
    return "–" if math.isnan(value) else format(value, style)


def _final(record: dict[str, Any]) -> tuple[str, ...]:
    gated = record["settings"]["sparsity"] != "none"
    return (
        f"{record['epochs']}/{record['epochs']}",
        f"{record['train_loss']:.4f}",
        f"{record['curves']['valid_error'][-1]:.2f}",
        f"{record['valid_error']:.2f}",
        f"{100 * record['density_train']:.1f}" if gated else "all",
    )


def _summary(record: dict[str, Any]) -> str:
    return (
        f"done in {clock(record['seconds'])}: valid {record['valid_error']:.2f} %, test "
        f"{record['test_error']:.2f} %, both of epoch {record['best_epoch']} of {record['epochs']}"
    )

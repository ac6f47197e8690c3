"""What a person watches while the rows train: a live table, or plain lines."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hardgate_lab.reproduce.train import Job, Progress

_COLUMNS = ("row", "", "epoch", "loss", "valid %", "best %", "on % (target)", "λ", "left")
_BAR = 16  # characters


class Plain:
    """One line per row and epoch, for logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: dict[Job, int] = {}
        self.records: dict[Job, dict[str, Any]] = {}
        self.failures: dict[Job, str] = {}

    def progress(self, job: Job, progress: Progress) -> None:
        done = math.floor(progress.epoch)
        if done > self._told.get(job, 0):
            self._told[job] = done
            loss, valid, best, density, weight, left = _cells(job, progress)
            self._print(
                job,
                f"epoch {done}/{progress.epochs}, loss {loss}, valid {valid} % (best {best}), "
                f"on {density}, λ {weight}, {left} left",
            )

    def say(self, job: Job, message: str) -> None:
        self._print(job, message)

    def done(self, job: Job, record: dict[str, Any]) -> None:
        self.records[job] = record
        self._print(job, _summary(record))

    def failed(self, job: Job, message: str) -> None:
        self.failures[job] = message
        self._print(job, f"failed: {message}", style="red")

    def _print(self, job: Job, message: str, style: str | None = None) -> None:
        self._console.print(
            f"{_name(job)}: {message}", style=style, highlight=False, soft_wrap=True, markup=False
        )


class Watch(Plain):
    """A table that moves, for a terminal. Messages scroll by above it."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        super().__init__(console)
        self._now: dict[Job, Progress | None] = dict.fromkeys(jobs)
        self._begun = time.monotonic()
        self._live = Live(
            console=console, get_renderable=self._table, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Watch:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def progress(self, job: Job, progress: Progress) -> None:
        self._now[job] = progress

    def _table(self) -> Table:
        table = Table(box=None, caption=f"{_clock(time.monotonic() - self._begun)} so far")
        for number, name in enumerate(_COLUMNS):
            table.add_column(name, justify="right" if number > 1 else "left", no_wrap=True)
        for job, progress in self._now.items():
            table.add_row(_name(job), *self._state(job, progress))
        return table

    def _state(self, job: Job, progress: Progress | None) -> Sequence[RenderableType]:
        if job in self.failures:
            return (Text("failed", style="red"),)
        if job in self.records:
            return (Text("done", style="green"), *_final(self.records[job]))
        if progress is None:
            return (Text("waiting".ljust(_BAR), style="dim"),)
        bar = ProgressBar(total=progress.epochs, completed=progress.epoch, width=_BAR)
        running = min(math.floor(progress.epoch) + 1, progress.epochs)
        return (bar, f"{running}/{progress.epochs}", *_cells(job, progress))


def _name(job: Job) -> str:
    return f"{job.row} (seed {job.seed})" if job.seed else job.row


def _cells(job: Job, progress: Progress) -> tuple[str, ...]:
    gated = job.settings.sparsity != "none"
    density = f"{_number(100 * progress.density, '.1f')} ({100 * job.settings.target:g})"
    return (
        _number(progress.loss, ".4f"),
        _number(progress.valid_error, ".2f"),
        _number(progress.best_error, ".2f"),
        density if gated else "all",
        _number(progress.weight, ".1e") if gated else "–",
        _clock(progress.left),
    )


def _number(value: float, style: str) -> str:
    return "–" if math.isnan(value) else format(value, style)


def _final(record: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{record['epochs']}/{record['epochs']}",
        f"{record['train_loss']:.4f}",
        f"{record['curves']['valid_error'][-1]:.2f}",
        f"{record['valid_error']:.2f}",
        "all"
        if record["settings"]["sparsity"] == "none"
        else f"{100 * record['density_train']:.1f}",
    )


def _summary(record: dict[str, Any]) -> str:
    return (
        f"done: valid {record['valid_error']:.2f} %, test {record['test_error']:.2f} %, of epoch "
        f"{record['best_epoch']} of {record['epochs']}; {_clock(record['seconds'])} of training"
    )


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""What a person watches while the rows train: a live table, or plain lines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hardgate_lab.reproduce.train import Job, Progress

_COLUMNS = ("row", "", "epoch", "loss", "valid %", "on %", "left")
_BAR = 12  # characters; the table fits a terminal of 80 columns
_LEGEND = (
    "loss: cross-entropy in training; valid %: error on the validation images; "
    "on %: gates that are open in training (the paper aims at 10)."
)

Cost = Callable[[Job], float]


class Plain:
    """One line per row and epoch, for logs.

    Args:
        console: to print on.
        jobs: in the order in which they are started.
        width: how many run side by side.
        cost: of a job, in any unit; for the time that waiting jobs will take.
    """

    def __init__(self, console: Console, jobs: Sequence[Job], width: int, cost: Cost) -> None:
        self._console = console
        self._now: dict[Job, Progress | None] = dict.fromkeys(jobs)
        self._width, self._cost = width, cost
        self._told: dict[Job, int] = {}
        self.records: dict[Job, dict[str, Any]] = {}
        self.failures: dict[Job, str] = {}

    def progress(self, job: Job, progress: Progress) -> None:
        self._now[job] = progress
        done = math.floor(progress.epoch)
        if done > self._told.get(job, 0):
            self._told[job] = done
            loss, valid, density, left = _cells(job, progress)
            self._print(
                job,
                f"epoch {done}/{progress.epochs}, loss {loss}, valid {valid} % (best "
                f"{_number(progress.best_error, '.2f')}), on {density} %, "
                f"λ {_number(progress.weight, '.1e')}, {left} left, "
                f"all rows {_clock(self.seconds_left())}",
            )

    def say(self, job: Job, message: str) -> None:
        self._print(job, message)

    def done(self, job: Job, record: dict[str, Any]) -> None:
        self.records[job] = record
        self._print(job, _summary(record))

    def failed(self, job: Job, message: str) -> None:
        self.failures[job] = message
        self._print(job, f"failed: {message}", style="red")

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

    def _print(self, job: Job, message: str, style: str | None = None) -> None:
        self._console.print(
            f"{_name(job)}: {message}", style=style, highlight=False, soft_wrap=True, markup=False
        )


class Watch(Plain):
    """A table that moves, for a terminal. Messages scroll by above it."""

    def __init__(self, console: Console, jobs: Sequence[Job], width: int, cost: Cost) -> None:
        super().__init__(console, jobs, width, cost)
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

    def _table(self) -> Group:
        left = self.seconds_left()
        so_far = _clock(time.monotonic() - self._begun)
        about = f"about {_clock(left)}" if math.isfinite(left) else "not known yet"
        table = Table(box=None)
        for number, name in enumerate(_COLUMNS):
            table.add_column(name, justify="right" if number > 1 else "left", no_wrap=number > 0)
        for job, progress in self._now.items():
            table.add_row(_name(job), *self._state(job, progress))
        legend = Text(_LEGEND, style="dim")
        return Group(table, f"Time left for all rows: {about} ({so_far} so far).", legend)

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
    """Loss, validation error, gates on, time left."""
    gated = job.settings.sparsity != "none"
    return (
        _number(progress.loss, ".4f"),
        _number(progress.valid_error, ".2f"),
        _number(100 * progress.density, ".1f") if gated else "all",
        _clock(progress.left),
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
        f"{record['best_epoch']} of {record['epochs']}), {_clock(record['seconds'])} of training"
    )


def _clock(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""What a person sees while a command works: lines, a bar with the time left, a live table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_WIDTH = 16  # characters of a bar in a live table
_BETWEEN_LINES = 2.0  # seconds, where a log gets lines instead of a bar


def say(console: Console, message: str, style: str | None = None) -> None:
    """Print text as it is: no colours guessed, no line broken, no brackets read as markup."""
    console.print(message, style=style, highlight=False, soft_wrap=True, markup=False)


def clock(seconds: float) -> str:
    """A duration as 1:23, or 1:02:03; "?" where it is not known."""
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Pace:
    """Says yes at most once in so many seconds: for reports from a fast loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._last = seconds, time.monotonic()

    def due(self) -> bool:
        """Whether the time has passed since the last yes."""
        if time.monotonic() <= self._last + self._seconds:
            return False
        self._last = time.monotonic()
        return True


class Teller(Protocol):
    """Told by a measurement what it does."""

    def now(self, what: str) -> None:
        """What is being worked on."""

    def say(self, message: str) -> None:
        """A line for the reader of the results."""


class Bar:
    """A bar with the time left on a terminal; elsewhere a line now and then.

    Args:
        console: to draw on.
        task: what is done, in a word or two.
        total: the amount of work, in any unit.
    """

    def __init__(self, console: Console, task: str, total: float) -> None:
        self._console, self._task, self._total = console, task, total
        columns = (TextColumn("{task.description}", markup=False), BarColumn(_WIDTH))
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._row = self._bar.add_task(task, total=total)
        self._pace, self._begun, self._done = Pace(_BETWEEN_LINES), time.monotonic(), 0.0

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def now(self, what: str) -> None:
        """Show what is being worked on."""
        self._bar.update(self._row, description=f"{self._task}: {what}")

    def advance(self, amount: float = 1) -> None:
        """So much more of the work is done."""
        self.reach(self._done + amount)

    def reach(self, done: float) -> None:
        """So much of the work is done."""
        self._done = done
        self._bar.update(self._row, completed=done)
        if not self._console.is_terminal and 0 < done < self._total and self._pace.due():
            left = (time.monotonic() - self._begun) / done * (self._total - done)
            part = f"{100 * done / self._total:.0f} % done"
            say(self._console, f"{self._task}: {part}, {clock(left)} left")

    def say(self, message: str) -> None:
        """Print a line that stays."""
        say(self._console, message)


class LiveTable:
    """A table on the terminal that is drawn again four times a second; messages scroll above it.

    Args:
        console: to draw on.
        columns: their names; the first two, a name and a bar, are on the left.
        rows: called for the cells at each drawing; a short row leaves cells empty.
        caption: called for the line below the table.
    """

    def __init__(
        self,
        console: Console,
        columns: Sequence[str],
        rows: Callable[[], Iterable[Sequence[RenderableType]]],
        caption: Callable[[], str],
    ) -> None:
        self._columns, self._rows, self._caption = columns, rows, caption
        self._live = Live(
            console=console, get_renderable=self.table, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> LiveTable:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def table(self) -> Table:
        """The table as it is now."""
        table = Table(box=None, padding=(0, 1, 0, 0), caption=self._caption())
        for number, name in enumerate(self._columns):
            table.add_column(name, justify="right" if number > 1 else "left", no_wrap=bool(number))
        for cells in self._rows():
            table.add_row(*cells)
        return table


def bar_cell(done: float, total: float) -> ProgressBar:
    """A bar, as a cell of a live table."""
    return ProgressBar(total=total, completed=min(done, total), width=_WIDTH)


def state_cell(state: str) -> Text:
    """Where a bar would be: "waiting", "done" or "failed"."""
    styles = {"waiting": "dim", "done": "green", "failed": "red"}
    return Text(state.ljust(_WIDTH), style=styles[state])

"""What a person watches while the runs take turns: a live table, or plain lines."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hardgate_lab.vae.vae_run import Run, Settings

_BAR = 16  # characters


class Plain:
    """One line for each point of a curve, for logs."""

    def __init__(self, console: Console, limits: Mapping[Settings, int]) -> None:
        self._console, self._limits = console, limits
        self.failures: dict[str, str] = {}

    def progress(self, run: Run, step: int) -> None:
        pass

    def point(self, run: Run) -> None:
        steps, train, valid = _cells(run, run.steps, self._limits[run.settings])
        self.say(f"{_name(run)}: step {steps}, ELBO train {train}, valid {valid}")

    def failed(self, run: Run, message: str) -> None:
        self.failures[_name(run)] = message
        self.say(f"{_name(run)} failed: {message}", style="red")

    def say(self, message: str, style: str | None = None) -> None:
        self._console.print(message, style=style, highlight=False, soft_wrap=True, markup=False)


class Watch(Plain):
    """A table that moves, for a terminal. Messages scroll by above it."""

    def __init__(self, console: Console, limits: Mapping[Settings, int]) -> None:
        super().__init__(console, limits)
        self._rows: dict[str, tuple[Run, int] | None] = {each.estimator: None for each in limits}
        self._live = Live(
            console=console, get_renderable=self._table, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Watch:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def progress(self, run: Run, step: int) -> None:
        self._rows[_name(run)] = (run, step)

    def point(self, run: Run) -> None:
        self._rows[_name(run)] = (run, run.steps)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 1, 0, 0))
        for number, name in enumerate(("estimator", "", "step", "train", "valid")):
            table.add_column(name, justify="right" if number > 1 else "left", no_wrap=bool(number))
        for name, state in self._rows.items():
            if name in self.failures:
                table.add_row(name, Text("failed", style="red"))
            elif state is None:
                table.add_row(name, Text("waiting".ljust(_BAR), style="dim"))
            else:
                run, step = state
                limit = self._limits[run.settings]
                bar = ProgressBar(total=limit, completed=min(step, limit), width=_BAR)
                table.add_row(name, bar, *_cells(run, step, limit))
        return table


def _name(run: Run) -> str:
    return run.settings.estimator


def _cells(run: Run, step: int, limit: int) -> tuple[str, str, str]:
    train, valid = (run.curve[part][-1:] for part in ("train", "valid"))
    shown = [f"{curve[0]:.2f}" if curve else "–" for curve in (train, valid)]
    return f"{step}/{limit}", shown[0], shown[1]

"""What a person sees while the runs take turns: a live table, or a line for each point."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console, RenderableType

from hardgate_lab.rig.progress import LiveTable, bar_cell, clock, say, state_cell
from hardgate_lab.vae.vae_run import VaeRun, VaeSettings

_COLUMNS = ("estimator", "", "step", "train", "valid")


class VaeLines:
    """One line for each point of a curve, for logs.

    Args:
        console: to print on.
        limits: the steps of each run.
        milliseconds: of a step of each, for the time left.
    """

    def __init__(
        self, console: Console, limits: Mapping[VaeSettings, int], milliseconds: Mapping[str, float]
    ) -> None:
        self._console, self._limits, self._milliseconds = console, limits, milliseconds
        self._work = sum(n * milliseconds[each.estimator] for each, n in limits.items())
        self._begun: tuple[float, float] | None = None  # the time, and the work left then
        self._steps: dict[str, int] = {}
        self.failures: dict[str, str] = {}

    def shown(self) -> AbstractContextManager[object]:
        """While the runs take turns."""
        return nullcontext()

    def progress(self, run: VaeRun, step: int) -> None:
        self._steps[_name(run)] = step

    def point(self, run: VaeRun) -> None:
        self.progress(run, run.steps)
        steps, train, valid = _cells(run, run.steps, self._limits[run.settings])
        line = f"{_name(run)}: step {steps}, ELBO train {train}, valid {valid}"
        self.say(f"{line}; {self.left()} left in all")

    def failed(self, run: VaeRun, message: str) -> None:
        self.failures[_name(run)] = message
        self.say(f"{_name(run)} failed: {message}", style="red")

    def say(self, message: str, style: str | None = None) -> None:
        say(self._console, message, style)

    def left(self) -> str:
        """The time that all runs need, from the steps so far."""
        done = sum(
            min(self._steps.get(each.estimator, 0), n) * self._milliseconds[each.estimator]
            for each, n in self._limits.items()
        )
        now, left = time.monotonic(), self._work - done
        if self._begun is None:
            self._begun = now, left
        begun, first = self._begun
        pace = (now - begun) / (first - left) if first > left else 1e-3  # as it was timed
        return clock(pace * left)


class VaeTable(VaeLines):
    """A live table for a terminal, one row per run; messages scroll above it."""

    def __init__(
        self, console: Console, limits: Mapping[VaeSettings, int], milliseconds: Mapping[str, float]
    ) -> None:
        super().__init__(console, limits, milliseconds)
        self._runs: dict[str, VaeRun] = {}
        self.live = LiveTable(console, _COLUMNS, self._rows, lambda: f"{self.left()} left")

    def shown(self) -> AbstractContextManager[object]:
        return self.live

    def progress(self, run: VaeRun, step: int) -> None:
        super().progress(run, step)
        self._runs[_name(run)] = run

    def point(self, run: VaeRun) -> None:
        self.progress(run, run.steps)

    def _rows(self) -> Iterator[Sequence[RenderableType]]:
        for settings, limit in self._limits.items():
            name = settings.estimator
            if name in self.failures:
                yield name, state_cell("failed")
            elif name not in self._runs:
                yield name, state_cell("waiting")
            else:
                step = self._steps[name]
                yield name, bar_cell(step, limit), *_cells(self._runs[name], step, limit)


def _name(run: VaeRun) -> str:
    return run.settings.estimator


def _cells(run: VaeRun, step: int, limit: int) -> tuple[str, str, str]:
    train, valid = (run.curve[part][-1:] for part in ("train", "valid"))
    shown = [f"{curve[0]:.2f}" if curve else "–" for curve in (train, valid)]
    return f"{step}/{limit}", shown[0], shown[1]

"""What `hardgate bench` says while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.status import Status


class Progress(Protocol):
    """Whom the measurements tell what they do."""

    def case(self, name: str) -> None:
        """What is being timed now."""

    def remark(self, text: str) -> None:
        """What the reader of the tables has to know."""


class Spoken:
    """A line that names the case on a terminal; elsewhere a line for each group that is done."""

    def __init__(self, console: Console) -> None:
        self._console, self._start = console, time.perf_counter()
        self._group, self._status = "", Status("", console=console)

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Say what belongs to this group, and when it is done."""
        self._group = name
        self._status = Status(f"timing {name} …", console=self._console)
        with self._status:
            yield
        seconds = time.perf_counter() - self._start
        self._console.print(f"timed {name}, {seconds:.0f} s", highlight=False)

    def case(self, name: str) -> None:
        """Show the case on the terminal's status line."""
        self._status.update(f"timing {self._group}: {name} …")

    def remark(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False)

"""What is shown while a command works."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from hardgate_lab.rig import progress
from hardgate_lab.rig.progress import Bar, Pace, clock


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_on_a_terminal_and_lines_elsewhere(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_BETWEEN_LINES", -1.0)
    out = StringIO()
    with Bar(Console(file=out, force_terminal=terminal, width=80), "timing", 4) as bar:
        bar.now("512 experts [B]")
        bar.say("left out [b]")
        bar.advance(1)
        bar.advance(3)
    assert ("512 experts [B]" in out.getvalue()) == terminal
    assert "left out [b]" in out.getvalue()
    assert ("timing: 25 % done, 0:00 left" in out.getvalue()) != terminal
    assert "100 %" not in out.getvalue()  # the result follows at once


def test_a_pace_says_yes_once_in_so_many_seconds() -> None:
    assert not Pace(60).due()
    always = Pace(-1)
    assert always.due()
    assert always.due()


@pytest.mark.parametrize(
    ("seconds", "shown"), [(5, "0:05"), (83.4, "1:23"), (3723, "1:02:03"), (float("nan"), "?")]
)
def test_durations(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown

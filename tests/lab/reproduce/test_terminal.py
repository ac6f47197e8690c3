"""What `hardgate reproduce` shows on a terminal: progress, the table, and what to do next."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hardgate_lab.reproduce.next_steps import next_steps
from hardgate_lab.reproduce.recorded import minutes, recorded, shorten
from hardgate_lab.reproduce.row_display import RowLines, RowTable
from hardgate_lab.reproduce.settings import PAPER_ROWS, ROWS
from hardgate_lab.reproduce.table import COLUMNS, markdown, rich_table
from hardgate_lab.reproduce.train import Job, RowProgress
from tests.support.paths import ROOT
from tests.support.tiny_runs import job


def row_record(row: str, seed: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "row": row, "seed": seed, "dataset": "mnist", "canonical": True, "preset": "paper",
        "train_loss": 3.3e-3, "valid_error": 1.4, "test_error": 1.5, "epochs": 30,
        "density_train": 0.108, "density_test": 0.1,
        "seconds": 1800.0, "settings": {"sparsity": "kl"}, **changes,
    }  # fmt: skip


def printed(*things: Any, width: int = 79, terminal: bool = False) -> str:
    console = Console(width=width, force_terminal=terminal)
    with console.capture() as capture:
        for thing in things:
            console.print(thing)
    return capture.get()


def cells(text: str, label: str) -> list[str]:
    """The figures of a line of the table."""
    (line,) = [line for line in text.splitlines() if line.startswith(label)]
    return line.removeprefix(label).split()


# The table


def test_the_table_has_this_run_the_recorded_runs_and_the_paper() -> None:
    text = printed(rich_table([row_record(row, preset="quick", epochs=4) for row in ROWS]))
    assert "MNIST, quick preset, 4 epochs" in text
    assert cells(text, "Straight-through") == ["1.50", "1.36±0.09", "1.39", "10.0", "30", "min"]
    assert cells(text, "Baseline sigmoid + noise")[:3] == ["1.50", "1.63", "1.87"]
    assert cells(text, "Best of this library")[:3] == ["1.50", "1.22±0.04", "–"]
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 79
    words = " ".join(text.split())
    assert "recorded: the full-length runs that come with hardgate" in words
    assert "gates on: the share of gates that a test image opens" in words


def test_no_colour_of_alarm_in_the_table() -> None:
    text = printed(rich_table([row_record("sigmoid", test_error=9.9)]), terminal=True)
    assert "9.90" in text
    assert "\x1b[31m" not in text


@pytest.mark.parametrize(
    "changes", [{"canonical": False}, {"dataset": "fashion-mnist", "canonical": True}]
)
def test_other_data_stand_alone_in_the_table(changes: dict[str, Any]) -> None:
    text = printed(rich_table([row_record("sigmoid", epochs=3, **changes)]))
    assert cells(text, "Baseline sigmoid") == ["1.50", "10.0", "30", "min"]
    assert "paper" not in text.replace("paper preset", "")
    assert "recorded" not in text
    assert ("MNIST (not the real files), paper preset, 3 epochs" in text) == (
        "canonical" in changes and "dataset" not in changes
    )


def test_the_table_shows_mean_and_spread_over_seeds() -> None:
    records = [row_record("sigmoid", seed, test_error=1.4 + 0.1 * seed) for seed in range(3)]
    assert "| 1.50±0.10 | 1.92 |" in markdown(records)
    assert markdown(records).startswith(f"| {' | '.join(COLUMNS)} |")
    assert cells(printed(rich_table(records)), "Baseline sigmoid")[0] == "1.50±0.10"


def test_gates_that_are_never_off_are_all_on() -> None:
    record = row_record("dense", density_train=1.0, density_test=1.0)
    assert "all" in cells(printed(rich_table([record])), "Dense ReLU, no gates")
    half = row_record("dense", density_train=0.9, density_test=1.0)
    assert "100.0" in cells(printed(rich_table([half])), "Dense ReLU, no gates")


def test_the_shipped_figures_are_those_of_the_records() -> None:
    """Where this fails, run `make readme`."""
    assert recorded() == shorten(ROOT / "results" / "reproduce")
    assert {record["row"] for record in recorded()} == set(ROWS)


def test_the_time_at_full_length_is_that_of_the_records() -> None:
    mean = {
        row: math.fsum(r["seconds"] for r in recorded() if r["row"] == row)
        / sum(r["row"] == row for r in recorded())
        for row in PAPER_ROWS
    }
    assert minutes() == 10 * math.ceil(sum(mean.values()) / 2 / 600)  # two cores
    assert minutes(["straight_through"]) == 10 * math.ceil(mean["straight_through"] / 600)


# What comes next


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"preset": "quick"}, ["reproduce --preset paper --out out/paper", "about 50 minutes"]),
        ({"preset": "paper"}, ["reproduce --preset paper --seeds 3 --out runs", "about 150 min"]),
        ({"canonical": False}, ["hardgate reproduce --out out/mnist", "on MNIST"]),
    ],
)
def test_two_commands_come_next(changes: dict[str, Any], words: list[str]) -> None:
    text = next_steps([row_record("sigmoid", **changes)], Path("runs"))
    assert all(word in text for word in [*words, "Next:\n", "hardgate compare\n"])
    assert sum(line.startswith("  ") and line[2] != " " for line in text.splitlines()) == 2
    assert max(map(len, text.splitlines())) <= 80
    assert ("at work, not its final errors" in text) == (changes.get("preset") == "quick")


def test_commands_name_the_program_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/hardgate", "reproduce"])
    monkeypatch.setattr("shutil.which", lambda name: None)
    text = next_steps([row_record("sigmoid", preset="quick")], Path("runs"))
    assert "  .venv/bin/hardgate reproduce --preset paper" in text
    assert "  .venv/bin/hardgate compare" in text
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/hardgate")
    text = next_steps([row_record("sigmoid", preset="quick")], Path("runs"))
    assert "  hardgate reproduce --preset paper" in text


# While it runs


NAN = math.nan


def epochs(job: Job) -> float:
    return job.settings.epochs


def progress(epoch: float, left: float, n: int = 3) -> RowProgress:
    return RowProgress(epoch, n, 0.5, 2.5, 2.4, 0.104, 1e-3, left)


def test_the_display_shows_each_row_in_80_columns(tmp_path: Path) -> None:
    jobs = [job(tmp_path, row, target=0.1) for row in PAPER_ROWS]
    console = Console(width=80, force_terminal=True)
    with console.capture() as capture, (watch := RowTable(console, jobs, 2, epochs)).shown():
        assert "Time left for all rows: not known yet" in printed(watch.live.table(), width=80)
        watch.progress(jobs[0], RowProgress(0.5, 3, 0.7, NAN, NAN, NAN, NAN, 62.0))
        watch.progress(jobs[1], progress(1.5, 3723.0))
        watch.failed(jobs[2], "no luck")
        watch.done(jobs[3], row_record(PAPER_ROWS[3], epochs=3, best_epoch=2, test_error=1.25))
        text = printed(watch.live.table(), width=80)
    assert cells(text, "noisy_rectifier ")[-5:] == ["1/3", "0.7000", "–", "–", "1:02"]
    assert cells(text, "straight_through ")[-5:] == ["2/3", "0.5000", "2.50", "10.4", "1:02:03"]
    assert cells(text, "stochastic_times_smooth ") == ["failed"]
    assert cells(text, "stochastic_binary ") == ["done", "3/3", "0.0033", "1.40", "10.8"]
    assert cells(text, "rectifier ") == ["waiting"]
    assert "Time left for all rows: about " in text
    assert "…" not in text
    assert "no luck" in capture.get()
    assert "test 1.25 % (epoch 2 of 3), 30:00 of training" in capture.get()


def test_time_left_is_that_of_the_last_row(tmp_path: Path) -> None:
    """Two at a time, costs as told: those that wait start where a row ends first."""
    rows = ("straight_through", "rectifier", "sigmoid", "dense")
    jobs = [job(tmp_path, row) for row in rows]
    costs = dict(zip(jobs, (4.0, 2.0, 2.0, 1.0), strict=True))
    plain = RowLines(Console(quiet=True), jobs, 2, costs.__getitem__)
    assert math.isnan(plain.seconds_left())
    plain.progress(jobs[0], progress(1.5, 20.0))  # half of its 4 takes 20 seconds: pace 10
    assert plain.seconds_left() == 40.0  # 20 then 10, beside 20 then 20
    plain.progress(jobs[1], progress(2.0, 4.0))  # 2/3 in 4 seconds: both at a pace of 9
    assert plain.seconds_left() == pytest.approx(29.0)  # 20 then 9, beside 4 then 18
    plain.done(jobs[1], row_record("rectifier", best_epoch=1, seconds=10.0))
    plain.failed(jobs[0], "no luck")
    assert plain.seconds_left() == 10.0  # at the pace of the finished row: 10 beside 5
    plain.done(jobs[2], row_record("sigmoid", best_epoch=1))
    plain.done(jobs[3], row_record("dense", best_epoch=1))
    assert plain.seconds_left() == 0.0


def test_plain_lines_come_once_per_epoch(tmp_path: Path) -> None:
    console, one = Console(width=110), job(tmp_path)
    plain = RowLines(console, [one], 1, epochs)
    with console.capture() as capture:
        for epoch in (0.0, 0.4, 1.0, 1.5, 2.0):
            plain.progress(one, progress(epoch, 60.0))
    first, second = capture.get().splitlines()
    assert first == (
        "straight_through: epoch 1/3, loss 0.5000, valid 2.50 % (best 2.40), on 10.4 %, "
        "λ 1.0e-03, 1:00 left, all rows 1:00"
    )
    assert "epoch 2/3" in second

"""`hardgate reproduce` as a user sees it: processes, kills, refusals, the table, the display."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hardgate_lab.cli import app
from hardgate_lab.reproduce import run_rows
from hardgate_lab.reproduce.row_display import RowLines, RowTable
from hardgate_lab.reproduce.settings import ROWS
from hardgate_lab.reproduce.train import Job
from hardgate_lab.reproduce.workers import Source, Watcher
from hardgate_lab.rig import lock as locking
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.lock import LockedError, lock
from tests.support.tiny_runs import command, files, finish, same_ends, start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files(tmp_path_factory.mktemp("data") / "idx")


def read_until(word: str, process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    raise AssertionError(f"the process ended without {word!r}")


def test_the_command_trains_side_by_side_and_prints_the_table(tmp_path: Path, folder: Path) -> None:
    """One row cannot be written: the others go on, and the exit code says so."""
    out, rows = tmp_path / "out", tmp_path / "new" / "records.json"
    (out / "mnist-quick").mkdir(parents=True)
    (out / "mnist-quick" / "sigmoid-1").touch()  # a file where the folder goes
    args = ("--row=rectifier", "--row=sigmoid", "--seeds=2", "--jobs=2", f"--json={rows}")
    code, output = finish(command(*args, data=folder, out=out))
    assert code == 1, output
    for word in ("Baseline", "±", "epoch 3/3", "(seed 1)", str(out / "mnist-quick"), "Next:"):
        assert word in output
    assert "sigmoid, seed 1, failed: cannot write in" in output
    assert "Traceback" not in output
    records = json.loads(rows.read_text())
    found = [(r["row"], r["seed"]) for r in records]
    assert found == [("rectifier", 0), ("rectifier", 1), ("sigmoid", 0)]


def test_killed_at_any_moment_the_command_carries_on(tmp_path: Path, folder: Path) -> None:
    changes, chance = {"epochs": 12, "average": 0.9, "momentum": 0.5}, random.Random(0)

    def line(out: str) -> list[str]:
        args = ("--row=stochastic_binary", "--jobs=2")
        return command(*args, data=folder, out=tmp_path / out, **changes)

    code, output = finish(line("whole"))
    assert code == 0, output
    for _ in range(2):
        with start(line("parts")) as process:
            read_until("epoch", process)
            time.sleep(0.3 * chance.random())
            process.kill()  # its worker notices, and frees the lock
    code, output = finish(line("parts"))
    assert code == 0, output
    name = "mnist-quick/stochastic_binary-0"
    same_ends(tmp_path / "whole" / name, tmp_path / "parts" / name)


def test_ctrl_c_stops_everything_and_says_how_to_go_on(tmp_path: Path, folder: Path) -> None:
    with start(command("--row=dense", data=folder, out=tmp_path, epochs=100000)) as process:
        read_until("epoch", process)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "The same command carries on" in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--row=nope"], ["'nope' is not a row", *ROWS]),
        (["--preset=slow"], ["'slow' is not a preset", "quick, paper"]),
        (["--set=lr"], ["--set expected NAME=VALUE"]),
        (["--set=learning=3"], ["'learning' is not a setting", "sparsity_weight"]),
        (["--set=lr=1", "--set=lr=2"], ["lr expected one value, got 1 and 2"]),
        (["--set=epochs=3", "--epochs=2"], ["epochs expected one value, got 3 and 2"]),
        (["--seeds=0"], ["--seeds", "1"]),
        (["--seeds=1001"], ["--seeds", "1000"]),
        ([f"--seed={2**64}"], ["--seed", f"{2**32 - 1}"]),
        (["--bogus"], ["No such option", "--row", "--preset", "--seeds", "--data"]),
    ],
)
def test_refusals_of_the_command(args: list[str], words: list[str]) -> None:
    result = CliRunner().invoke(app, ["reproduce", *args], env={"COLUMNS": "100"})
    assert result.exit_code == 2
    text = " ".join(result.output.replace("│", " ").split())
    for word in words:
        assert word in text


def test_data_that_are_not_there_are_refused_before_anything_runs(tmp_path: Path) -> None:
    for args in ([f"--data={tmp_path}"], ["--dataset=cifar"]):
        result = CliRunner().invoke(app, ["reproduce", f"--out={tmp_path / 'out'}", *args])
        assert result.exit_code == 1
        assert "expected" in result.output
        assert not (tmp_path / "out").exists()


def test_fresh_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hardgate_lab.reproduce.run_rows import plan

    (job_,) = plan(["sigmoid"], [0], "quick", {}, tmp_path, "mnist", 2)
    job_.folder.mkdir(parents=True)
    (job_.folder / "record.json").write_text("{}")
    locking.remove([job_.folder])
    assert not job_.folder.exists()


def test_fresh_removes_nothing_before_the_data_are_there(tmp_path: Path) -> None:
    record = tmp_path / "out" / "mnist-quick" / "sigmoid-0" / "record.json"
    record.parent.mkdir(parents=True)
    record.touch()
    args = [f"--out={tmp_path / 'out'}", f"--data={tmp_path}", "--row=sigmoid", "--fresh"]
    assert CliRunner().invoke(app, ["reproduce", *args]).exit_code == 1
    assert record.exists()


def test_fresh_removes_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "lock", partial(lock, patience=0.0))
    jobs = run_rows.plan(["sigmoid"], [0, 1], "quick", {}, tmp_path, "mnist", 2)
    for each in jobs:
        each.folder.mkdir(parents=True)
    with lock(jobs[1].folder), pytest.raises(LockedError, match="sigmoid-1 is in use"):
        locking.remove(each.folder for each in jobs)
    assert all(each.folder.exists() for each in jobs)

    def busy(folder: Path) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(shutil, "rmtree", busy)
    with pytest.raises(SaveError, match=r"cannot remove .*sigmoid-0: Device.*--out"):
        locking.remove(each.folder for each in jobs)


# The end of the command


def ended(
    how: Callable[[Job, Watcher], None],
    console: Console,
    data: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    **options: Any,
) -> tuple[str, Watcher]:
    """What `reproduce` prints on a row that ends so, and what was told about it."""
    jobs = run_rows.plan(["sigmoid"], [0], "quick", {}, out, "mnist", 2)
    told: list[Watcher] = []

    def run_jobs(jobs: list[Job], width: int, source: Source, watcher: Watcher) -> None:
        told.append(watcher)
        how(jobs[0], watcher)

    monkeypatch.setattr(run_rows, "run_jobs", run_jobs)
    given = {"json_file": None, **options}
    with console.capture() as capture:
        run_rows.reproduce(jobs, 1, Source("mnist", data), console=console, **given)
    return capture.get(), told[0]


def fail(job: Job, watcher: Watcher) -> None:
    watcher.failed(job, "no luck")


def test_a_list_that_was_not_written_is_not_named(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.json"
    text, _ = ended(fail, Console(), folder, tmp_path, monkeypatch, json_file=rows)
    assert "no luck" in text
    assert "rows.json" not in text


def test_ctrl_c_after_fresh_says_to_leave_it_out(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(job: Job, watcher: Watcher) -> None:
        raise KeyboardInterrupt

    for fresh in (False, True):
        text, _ = ended(stop, Console(), folder, tmp_path, monkeypatch, fresh=fresh)
        assert ("The same command without --fresh carries on" in text) == fresh


@pytest.mark.parametrize(("terminal", "kind"), [("dumb", RowLines), ("xterm", RowTable)])
def test_a_terminal_that_cannot_move_gets_lines(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, terminal: str, kind: type
) -> None:
    console = Console(force_terminal=True, _environ={"TERM": terminal})
    _, watcher = ended(fail, console, folder, tmp_path, monkeypatch)
    assert type(watcher) is kind


def test_the_list_goes_into_links_and_pipes(tmp_path: Path) -> None:
    """They are not replaced by a file, as a device would be."""
    plain, link, pipe = (tmp_path / name for name in ("plain", "link", "pipe"))
    plain.write_text("old")
    link.symlink_to(plain)
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR)
    for path in (link, pipe):
        run_rows._write_list(path, [{"row": "sigmoid"}])
    assert link.is_symlink()
    assert json.loads(plain.read_text()) == json.loads(os.read(handle, 999)) == [{"row": "sigmoid"}]
    os.close(handle)
    run_rows._write_list(plain, [])
    assert json.loads(plain.read_text()) == []

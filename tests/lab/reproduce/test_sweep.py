"""`hardgate sweep`: two workers on one SQLite file, a kill, carrying on, and what it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from typer.testing import CliRunner

from hardgate_lab.cli import app
from hardgate_lab.reproduce.settings import ROWS, change, settings_of
from hardgate_lab.reproduce.sweep.space import command, space, start, suggest
from hardgate_lab.reproduce.sweep.study import Sweep, SweepError, finished, open_study, work
from hardgate_lab.reproduce.sweep.sweep_command import _print
from hardgate_lab.rig import mnist
from tests.support import tiny_runs

FIXED = ("hidden=40", "bottleneck=8", "batch=16", "average=0")


def _options(folder: Path, trials: int, jobs: int = 2) -> list[str]:
    sets = [part for each in FIXED for part in ("--set", each)]
    return [
        *("sweep", "straight_through", f"--trials={trials}", "--epochs=2", f"--jobs={jobs}"),
        *(f"--data={folder / 'data'}", f"--storage=sqlite:///{folder}/sweep.db"),
        *(f"--figure={folder / 'sweep.png'}", *sets),
    ]


def _start(folder: Path, trials: int, jobs: int = 2) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hardgate", *_options(folder, trials, jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        start_new_session=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_runs.files(tmp_path / "data")
    return tmp_path


def _study(folder: Path) -> optuna.Study:
    (name,) = optuna.get_all_study_names(f"sqlite:///{folder}/sweep.db")
    return optuna.load_study(study_name=name, storage=f"sqlite:///{folder}/sweep.db")


def test_two_workers_a_kill_and_carrying_on(folder: Path) -> None:
    with _start(folder, trials=30) as first:
        assert first.stdout is not None
        for line in first.stdout:  # killed in the middle of its work
            if line.startswith("trial"):
                break
        os.killpg(first.pid, signal.SIGKILL)
    before = {t.number: t.value for t in finished(_study(folder))}
    assert before
    assert len(before) < 30

    target = len(before) + 2
    second = subprocess.run(
        [sys.executable, "-m", "hardgate", *_options(folder, target)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )
    assert second.returncode == 0, second.stdout + second.stderr
    study = _study(folder)
    after = {t.number: t.value for t in finished(study)}
    assert before.items() <= after.items()  # nothing lost, nothing run twice
    assert target <= len(after) <= target + 1  # both workers may finish a last one
    best = min(
        t.value for t in study.get_trials(states=(TrialState.COMPLETE,)) if t.value is not None
    )
    assert f"{best:.2f}" in second.stdout
    (line,) = re.findall(r"^hardgate reproduce --preset paper .*$", second.stdout, re.MULTILINE)
    assert "--row straight_through" in line
    assert "--set hidden=40" in line
    for name in space("straight_through", ROWS["straight_through"]):
        assert f"--set {name}=" in line
    again = CliRunner().invoke(app, _options(folder, target))  # the same table at once
    assert again.exit_code == 0, again.output
    assert f"{len(after)} of {target} trials are finished." in again.output
    assert len(finished(_study(folder))) == len(after)


def test_the_printed_settings_are_those_that_ran() -> None:
    settings = settings_of("best", "quick")
    trial = optuna.create_study().ask()
    drawn = suggest(trial, "best", settings)
    printed = command("best", "paper", trial.params, [])
    changes = dict(re.findall(r"--set (\w+)=(\S+)", printed))
    assert change(settings, changes) == drawn != settings


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_a_space_that_holds_its_own_settings(row: str) -> None:
    settings = settings_of(row, "quick")
    ranges, own = space(row, settings), start(row, settings)
    assert own
    for name, value in own.items():
        assert ranges[name].low <= value <= ranges[name].high
    assert ("input_dropout" in ranges) == (row in ("best", "dense"))
    drawn = suggest(optuna.create_study().ask(), row, settings)
    assert {n for n in ranges if getattr(drawn, n) != getattr(settings, n)}


def test_the_test_images_are_never_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = mnist.load("mnist", folder / "data", say=lambda message: None)

    class Forbidden:
        def __getattr__(self, name: str) -> object:
            raise AssertionError("a sweep read the test images")

    object.__setattr__(real, "test", Forbidden())
    monkeypatch.setattr("hardgate_lab.reproduce.sweep.study.load", lambda *args, **kwargs: real)
    changes = tuple(tuple(each.split("=")) for each in FIXED)
    sweep = Sweep(
        "rectifier",
        1,
        1,
        f"sqlite:///{folder}/s.db",
        changes=changes,  # type: ignore[arg-type]
    )
    work(sweep, 0)
    told = finished(open_study(sweep))
    assert [trial.state for trial in told] == [TrialState.COMPLETE]
    assert 0 <= (told[0].value or 0.0) <= 100
    # The first trial is the row's own settings, as far as they are varied.
    assert told[0].params["lr"] == pytest.approx(settings_of("rectifier", "quick").lr)


def test_bad_options(folder: Path) -> None:
    runner = CliRunner()

    def says(*arguments: str) -> str:
        result = runner.invoke(app, ["sweep", *arguments, f"--data={folder / 'data'}"])
        assert result.exit_code == 2
        return re.sub(r"[\s│]+", " ", result.output)

    storage = f"--storage=sqlite:///{folder}/x.db"
    assert "'nonsense' is not a row; expected one of noisy_rectifier" in says("nonsense", storage)
    assert "expected NAME=VALUE" in says("rectifier", storage, "--set=lr")
    assert "'sped' is not a setting" in says("rectifier", storage, "--set=sped=1")
    assert "--storage expected a database" in says("rectifier", "--storage=elsewhere")
    nowhere = "sqlite:////proc/nowhere/x.db"  # a folder that cannot be made
    assert "--storage expected a database" in says("rectifier", f"--storage={nowhere}")
    assert "[Errno" in says("rectifier", f"--storage={nowhere}")


def test_bad_data_leaves_no_study_behind(folder: Path) -> None:
    storage = f"--storage=sqlite:///{folder}/new/x.db"
    result = CliRunner().invoke(app, ["sweep", "rectifier", storage, f"--data={folder / 'none'}"])
    assert result.exit_code == 2, result.output
    assert "none" in re.sub(r"[\s│]+", "", result.output)
    assert not (folder / "new").exists()


def test_help_and_error_name_the_extra_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich takes [sweep] for a style, and swallows it."""
    said = CliRunner().invoke(app, ["sweep", "--help"], env={"COLUMNS": "200"}).output
    assert "pip install 'hardgate[sweep]'" in said
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = CliRunner().invoke(app, ["sweep", "rectifier"], env={"COLUMNS": "200"}).output
    assert "pip install 'hardgate[sweep]'" in said


def test_opening_twice_queues_the_own_settings_once(folder: Path) -> None:
    sweep = Sweep("rectifier", 1, 1, f"sqlite:///{folder}/s.db")
    open_study(sweep)
    waiting = open_study(sweep).get_trials(states=(TrialState.WAITING,))
    assert len(waiting) == 1


def test_a_setting_that_is_given_is_not_varied(folder: Path) -> None:
    changes = (("lr", "0.05"), ("hidden", "40"))
    sweep = Sweep("rectifier", 1, 1, f"sqlite:///{folder}/s.db", changes=changes)
    (first,) = open_study(sweep).get_trials(states=(TrialState.WAITING,))
    assert "lr" not in first.system_attrs["fixed_params"]
    trial = optuna.create_study().ask()
    drawn = suggest(trial, sweep.row, sweep.settings(), dict(changes))
    assert drawn.lr == 0.05
    assert "lr" not in trial.params
    assert "gater_lr" in trial.params
    free = suggest(optuna.create_study().ask(), sweep.row, sweep.settings())
    assert free.lr != 0.05  # negative control


@pytest.mark.parametrize("storage", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_that_workers_cannot_share(storage: str) -> None:
    with pytest.raises(SweepError, match="in the memory of a single process"):
        open_study(Sweep("rectifier", 1, 1, storage))


@pytest.mark.parametrize(
    ("storage", "driver", "package"),
    [
        ("postgresql://me@nowhere/x", "psycopg", "'psycopg[binary]'"),
        ("mysql://me@nowhere/x", "MySQLdb", "mysqlclient"),
    ],
)
def test_a_missing_driver_is_named(
    storage: str, driver: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, driver, None)  # as if it were not installed
    with pytest.raises(SweepError, match=re.escape(f"Type: pip install {package}")):
        open_study(Sweep("rectifier", 1, 1, storage))


def test_the_table_fits_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and numbers in full: rich cuts off what does not fit."""
    sweep = Sweep("best", 1, 7, f"sqlite:///{folder}/s.db")
    study = open_study(sweep)
    for _ in range(3):
        study.add_trial(_finished(optuna.create_study().ask(), sweep))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hardgate_lab.reproduce.sweep.sweep_command.console", Console(width=80))
        _print(study, sweep, folder / "f.png")
    said = capsys.readouterr().out
    assert "…" not in said
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        for name, value in trial.params.items():
            assert re.search(rf"^ *{name} .*{re.escape(f'{value:.3g}')}", said, re.MULTILINE)


def _finished(trial: optuna.Trial, sweep: Sweep) -> FrozenTrial:
    suggest(trial, sweep.row, sweep.settings())
    density = {"density": sweep.settings().rate}
    return optuna.trial.create_trial(
        params=trial.params, distributions=trial.distributions, value=12.34, user_attrs=density
    )

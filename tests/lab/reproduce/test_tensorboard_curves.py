"""`--tensorboard`: the curves in event files, each point once, however often a run was stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from typer.testing import CliRunner

from hardgate_lab.cli import app
from hardgate_lab.reproduce import train
from hardgate_lab.reproduce.tensorboard_curves import Board
from tests.support.tiny_runs import interrupted, job, run


def points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every point, by name."""
    read = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {
        name: [(event.step, event.value) for event in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def test_a_run_leaves_its_curves(tmp_path: Path) -> None:
    done = run(job(tmp_path, tensorboard=True))
    found = points(tmp_path / "tensorboard")
    assert set(found) == {
        *("loss/train", "loss/valid", "error/valid", "error/test"),
        *("gates/density", "gates/weight", "learning rate"),
    }
    curves = {"loss/train": "train_loss", "error/valid": "valid_error", "gates/density": "density"}
    for name, curve in curves.items():
        steps, values = zip(*found[name], strict=True)
        assert steps == (1, 2, 3)
        assert values == pytest.approx(done["curves"][curve], rel=1e-3), name
    ((step, value),) = found["error/test"]
    assert step == done["best_epoch"]
    assert value == pytest.approx(done["test_error"])
    rates = [value for _, value in found["learning rate"]]
    assert rates == pytest.approx([0.1, 0.1, 0.05])


def test_an_interrupted_run_has_every_point_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job(tmp_path / "whole", tensorboard=True))
    parts = job(tmp_path / "parts", tensorboard=True)
    interrupted(parts, 15, monkeypatch)  # an epoch has 13 steps
    assert [step for step, _ in points(tmp_path / "parts" / "tensorboard")["loss/train"]] == [1]
    with monkeypatch.context() as patch:  # killed after the checkpoint, before the point
        patch.setattr(Board, "write", _fail)
        with pytest.raises(KeyError):
            run(parts)
    run(parts)
    assert points(tmp_path / "parts" / "tensorboard") == points(tmp_path / "whole" / "tensorboard")


def _fail(*_: object) -> None:
    raise KeyError


def test_a_finished_run_is_drawn_again_not_twice(tmp_path: Path) -> None:
    run(job(tmp_path))
    assert not (tmp_path / "tensorboard").exists()
    for _ in range(2):
        run(job(tmp_path, tensorboard=True))
        found = points(tmp_path / "tensorboard")
        assert [step for step, _ in found["error/valid"]] == [1, 2, 3]
        assert len(found["error/test"]) == 1
    assert train.BOARD == "tensorboard"


def test_without_tensorboard_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = CliRunner().invoke(app, ["reproduce", "--tensorboard"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "pip install 'hardgate[tensorboard]'" in result.output

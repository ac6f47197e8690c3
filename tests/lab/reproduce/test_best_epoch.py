"""What a record says of its best epoch, the averaged weights, and that test images stay unseen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hardgate_lab.reproduce.evaluate import Evaluation, calibrate, gate_use
from hardgate_lab.reproduce.network import Gated, build
from hardgate_lab.reproduce.row_record import make_record
from hardgate_lab.reproduce.settings import settings_of
from hardgate_lab.reproduce.training_state import TrainingState
from tests.support.tiny_runs import SMALL, dataset, job, run, split

Score = tuple[float, float]  # validation error and loss


def noted(scores: list[Score], row: str = "straight_through", **changes: Any) -> TrainingState:
    """A run whose epochs had these scores; its k-th epoch (from 1) has weights k everywhere."""
    done = TrainingState(settings_of(row, "quick", {**SMALL, **changes}), dataset().train)
    for k, (error, loss) in enumerate(scores, start=1):
        for weight in done.evaluated().parameters():
            weight.data.fill_(float(k))
        done.note(10.0 * k, 0.1 * k, Evaluation(error, loss, 0.0), 1.0)
    return done


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([(3.0, 0.5), (1.0, 0.9), (2.0, 0.1)], 2),  # the error counts first
        ([(1.0, 0.5), (1.0, 0.4), (1.0, 0.6)], 2),  # then the loss
        ([(1.0, 0.6), (2.0, 0.1), (1.0, 0.5)], 3),
        ([(1.0, 0.5), (1.0, 0.5), (1.0, 0.5)], 1),  # then the first
        ([(2.0, 0.3), (1.0, 0.5), (1.0, 0.5)], 2),
    ],
)
def test_the_best_epoch_and_what_is_kept_of_it(scores: list[Score], best: int) -> None:
    done = noted(scores)
    assert done.best_epoch() == best
    assert (done.best["layer.experts.weight"] == best).all()
    record = make_record(done, dataset(), "quick", {})
    assert record["best_epoch"] == best
    assert record["epochs"] == 3
    assert record["train_loss"] == 10.0 * best
    assert record["density_train"] == pytest.approx(0.1 * best)


def test_weights_are_averaged_every_sixteen_steps() -> None:
    """w̄ ← keep·w̄ + (1 - keep)·w with keep = min(average¹⁶, m/(m + 2)) at the m-th move."""
    settings = settings_of("dense", "quick", {**SMALL, "average": 0.99, "max_norm": 0.0})
    moving = TrainingState(settings, dataset().train)
    assert moving.averaged is not None
    weight, average = (next(m.parameters()) for m in (moving.model, moving.averaged))
    average.data.zero_()
    expected = 0.0
    for move in range(1, 16):
        weight.data.fill_(float(move))
        for _ in range(15):
            moving.step()
        torch.testing.assert_close(average.detach(), torch.full_like(average, expected))
        moving.step()
        keep = min(0.99**16, move / (move + 2))  # 1/3, 1/2, 3/5 … up to 0.99¹⁶ = 0.85
        expected = keep * expected + (1 - keep) * move
        torch.testing.assert_close(average.detach(), torch.full_like(average, expected))
    assert keep == 0.99**16


def test_other_test_images_change_nothing_but_their_own_scores(tmp_path: Path) -> None:
    """Neither a weight nor a threshold nor a curve comes from them."""
    data = dataset()
    other = replace(data, test=split(100, 77))
    of_test = {"test_error", "density_test", "multiplications", "data", "seconds"}
    for row in ("straight_through", "noisy_rectifier"):
        records = []
        for name, given in (("one", data), ("other", other)):
            run(job(tmp_path / row / name, row), given)
            record = json.loads((tmp_path / row / name / "record.json").read_text())
            del record["curves"]["seconds"]
            records.append({k: v for k, v in record.items() if k not in of_test})
        assert records[0] == records[1]
        one, two = (load_file(tmp_path / row / n / "weights.safetensors") for n in ("one", "other"))
        assert all(torch.equal(one[k], two[k]) for k in one)
        assert "layer.gater.unit.threshold" in one


def test_thresholds_are_tuned_on_the_images_they_are_given() -> None:
    """Else the test above says nothing: those of the test images are others."""
    data = dataset()
    model = build(settings_of("straight_through", "quick", SMALL), data.train.x, 10)
    assert isinstance(model, Gated)
    calibrate(model, data.train, 0.1)
    first = model.layer.gater.unit.threshold.clone()
    calibrate(model, data.test, 0.1)
    assert not torch.equal(first, model.layer.gater.unit.threshold)


def test_decisiveness_is_of_probabilities() -> None:
    """Var(p) / p̄(1 - p̄) with p = P(gate on | x), where the gates themselves are 0 or 1."""
    data = dataset()
    model = build(settings_of("straight_through", "quick", SMALL), data.train.x, 10)
    assert isinstance(model, Gated)
    gater = model.layer.gater
    use = gate_use(model, data.valid)
    with torch.no_grad():
        p = torch.sigmoid(gater.pre_activation(data.valid.x).double())
    mean = p.mean(0)
    expected = (p - mean).square().mean(0).sum() / (mean * (1 - mean)).sum()
    assert use["decisiveness"] == pytest.approx(expected.item(), rel=1e-3)
    assert 0.02 < use["decisiveness"] < 0.98

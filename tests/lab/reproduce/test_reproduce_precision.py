"""`precision=bfloat16`: the gater's products in bf16, all that counts or adds up in fp32."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hardgate.kernels.op import conditional
from hardgate.kernels.problem import Weights
from hardgate_lab.reproduce.network import Dense, Gated
from hardgate_lab.reproduce.settings import Settings, SettingsError, change
from hardgate_lab.reproduce.training_state import TrainingState
from tests.support.tiny_runs import dataset, job, run

ROWS = ("straight_through", "noisy_rectifier", "stochastic_binary", "dense")


def passes(row: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> dict[str, set[Any]]:
    """The dtypes that meet in a training pass and in an evaluation."""
    seen: dict[str, set[Any]] = {"unit": set(), "kernels": set(), "y": set(), "eval": set()}
    data = dataset()

    def watched(x: Tensor, gates: Tensor, weights: Weights, **options: Any) -> Any:
        seen["kernels"] |= {x.dtype, weights.w_in.dtype}
        return conditional(x, gates, weights, **options)

    monkeypatch.setattr("hardgate.conditional._layer.conditional", watched)
    torch.manual_seed(0)
    model = TrainingState(job(Path(), row, **changes).settings, data.train).model
    if isinstance(model, Gated):
        unit = model.layer.gater.unit
        unit.register_forward_hook(lambda unit, args, h: seen["unit"].add((args[0].dtype, h.dtype)))
    seen["y"].add(model(data.train.x[:20]).dtype)
    seen["eval"].add(model.eval()(data.train.x[:20]).dtype)
    assert isinstance(model, (Gated, Dense))
    return seen


def test_the_gater_computes_in_bf16_and_the_kernels_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    half, full = torch.bfloat16, torch.float32
    seen = passes("straight_through", monkeypatch, precision="bfloat16")
    assert seen["unit"] == {(half, half), (full, full)}  # in training, in evaluation
    assert seen["kernels"] == {full}
    assert seen["y"] == seen["eval"] == {full}
    assert passes("straight_through", monkeypatch)["unit"] == {(full, full)}
    assert passes("dense", monkeypatch, precision="bfloat16")["y"] == {half}


@pytest.mark.parametrize("row", ROWS)
def test_it_trains_as_in_fp32(row: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"epochs": 10, "decay_start": 6}
    half = run(job(tmp_path / "half", row, precision="bfloat16", **changes))
    full = run(job(tmp_path / "full", row, **changes))
    assert all(map(math.isfinite, half["curves"]["train_loss"]))
    # They part ways after some steps, as two seeds do: a gate at the edge opens in one of them.
    ends = [{name: curve[-1] for name, curve in each["curves"].items()} for each in (half, full)]
    assert ends[0]["train_loss"] == pytest.approx(ends[1]["train_loss"], rel=0.3, abs=0.1)
    assert ends[0]["density"] == pytest.approx(ends[1]["density"], abs=0.05)
    assert half["density_test"] == pytest.approx(full["density_test"], abs=0.03)
    assert half["curves"] != full["curves"]  # it did something
    # Two networks on 100 images: the spread of their difference is 100·√(2·¼/100) points.
    assert abs(half["test_error"] - full["test_error"]) <= 4 * 100 * math.sqrt(2 * 0.25 / 100)


def test_other_words_are_refused() -> None:
    with pytest.raises(SettingsError, match="precision expected one of float32, bfloat16, got"):
        change(Settings(), {"precision": "int8"})

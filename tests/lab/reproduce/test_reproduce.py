"""The experiment on a tiny problem: records, resuming bit for bit, what stops a run."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from hardgate_lab.reproduce import row_record
from hardgate_lab.reproduce.evaluate import Evaluation
from hardgate_lab.reproduce.settings import ROWS, settings_of
from hardgate_lab.reproduce.train import DivergedError, train
from hardgate_lab.reproduce.training_state import TrainingState
from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.mnist import Split
from hardgate_lab.rig.same_run import MismatchError
from tests.support.tiny_runs import SMALL, dataset, interrupted, job, run, same_ends

# What exercises every kind of hidden state: baselines, adaptive λ, momentum, averaged weights.
STATES: list[tuple[str, dict[str, Any]]] = [
    ("stochastic_binary", {"momentum": 0.5, "momentum_epochs": 2}),
    ("noisy_rectifier", {"average": 0.9}),
    ("best", {"average": 0.9, "hidden_dropout": 0.1}),
    ("stochastic_times_smooth", {}),
    ("straight_through", {"sparsity": "rate"}),
    ("dense", {"momentum": 0.9}),
    ("straight_through", {"rho": 0.1, "average": 0.9}),
]


# A run and its record


@pytest.mark.parametrize("row", ROWS)
def test_every_row_trains_and_leaves_its_record(tmp_path: Path, row: str) -> None:
    done = run(job(tmp_path, row))
    assert done == json.loads((tmp_path / "record.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {
        "record.json",
        "weights.safetensors",
        "lock",
    }
    assert (done["row"], done["seed"], done["dataset"], done["epochs"]) == (row, 0, "mnist", 3)
    for key in ("preset", "settings", "versions", "threads", "machine", "data", "multiplications"):
        assert done[key]
    for curve in ("train_loss", "valid_error", "density", "weight", "seconds"):
        assert len(done["curves"][curve]) == 3
    assert done["valid_error"] == min(done["curves"]["valid_error"])
    assert done["valid_error"] == done["curves"]["valid_error"][done["best_epoch"] - 1]
    assert done["seconds"] == pytest.approx(sum(done["curves"]["seconds"]), abs=0.1)
    if done["settings"]["sparsity"] != "none":
        assert sum(done["firing_rates"]) == 40
        assert done["density_test"] < 0.2
        assert done["multiplications"]["needed"] < done["multiplications"]["dense"]
    else:
        assert done["density_train"] == done["density_test"] == 1


def test_the_weights_are_those_of_the_best_epoch(tmp_path: Path) -> None:
    done = run(job(tmp_path, "rectifier"))
    from hardgate_lab.reproduce.evaluate import evaluate
    from hardgate_lab.reproduce.network import build

    data = dataset()
    model = build(job(tmp_path, "rectifier").settings, data.train.x, 10)
    model.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert evaluate(model, data.valid).error == done["valid_error"]
    assert evaluate(model, data.test).error == done["test_error"]


@pytest.mark.parametrize("momentum", [0.0, 0.5])  # by FusedSGD, by SGD
@pytest.mark.parametrize("learns", [True, False])
def test_a_bottleneck_that_does_not_learn_stays(
    tmp_path: Path, momentum: float, learns: bool
) -> None:
    from hardgate_lab.reproduce.network import build

    given: dict[str, Any] = {"momentum": momentum, "bottleneck_learns": learns, "average": 0.0}
    drawn = job(tmp_path, "stochastic_binary", **given)
    run(drawn)
    torch.manual_seed(drawn.seed)
    before = build(drawn.settings, dataset().train.x, 10).state_dict()
    after = load_file(tmp_path / "weights.safetensors")
    gater = "layer.gater."
    assert torch.equal(after[f"{gater}hidden.weight"], before[f"{gater}hidden.weight"]) != learns
    assert not torch.equal(after[f"{gater}output.weight"], before[f"{gater}output.weight"])


def test_a_step_takes_the_gradient_of_the_worst_weights_near_by() -> None:
    """w - lr ∇L(w + ρ ∇L(w)/‖∇L(w)‖), the norm over all weights; and w itself is back before."""
    torch.manual_seed(0)
    data, rho, lr = dataset(), 0.5, 0.1
    plain = {"input_dropout": 0.0, "hidden_dropout": 0.0, "max_norm": 0.0}
    run = TrainingState(settings_of("dense", "quick", {**SMALL, **plain, "rho": rho}), data.train)
    weights = list(run.model.parameters())

    def gradients() -> list[Tensor]:
        loss = cross_entropy(run.forward(data.train.x), data.train.y)
        return list(torch.autograd.grad(loss, weights))

    start = [w.detach().clone() for w in weights]
    first = gradients()
    norm = torch.cat([g.flatten() for g in first]).norm()
    with torch.no_grad():
        for w, g in zip(weights, first, strict=True):
            w.add_(rho * g / norm)
    second = gradients()
    with torch.no_grad():
        for w, s in zip(weights, start, strict=True):
            w.copy_(s)
    for then in (run.climb, lambda: run.schedule(0.0)):
        cross_entropy(run.forward(data.train.x), data.train.y).backward()
        then()
    run.step()
    for w, s, g in zip(weights, start, second, strict=True):
        torch.testing.assert_close(w.detach(), s - lr * g)
        assert (s - lr * g - w.detach()).abs().max() < 1e-3 * (lr * g).abs().max()


def test_it_learns(tmp_path: Path) -> None:
    for row in ("straight_through", "rectifier", "sigmoid"):
        done = run(job(tmp_path / row, row, epochs=10, decay_start=8))
        assert done["test_error"] < 40, row  # of 90 by chance


def test_the_test_set_is_read_once_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, order = dataset(), list[str]()
    names = {id(data.train): "train", id(data.valid): "valid", id(data.test): "test"}
    for module in (row_record, train.__globals__):
        place = module if isinstance(module, dict) else module.__dict__
        evaluate = place["evaluate"]

        def counted(model: Any, part: Split, evaluate: Any = evaluate) -> Evaluation:
            order.append(names[id(part)])
            seen: Evaluation = evaluate(model, part)
            return seen

        monkeypatch.setitem(place, "evaluate", counted)
    run(job(tmp_path), data)
    assert order == ["valid"] * 3 + ["train", "valid", "test"]


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(job(tmp_path / name, seed=seed))
    same_ends(tmp_path / "a", tmp_path / "b")
    a, c = (load_file(tmp_path / name / "weights.safetensors") for name in "ac")
    assert not torch.equal(a["layer.experts.weight"], c["layer.experts.weight"])


def test_a_record_of_a_long_run_stays_small(tmp_path: Path) -> None:
    done = run(job(tmp_path, hidden=2000, epochs=1))
    done["curves"] = {name: values * 200 for name, values in done["curves"].items()}
    checkpoint.write_json(tmp_path / "long.json", done)
    assert (tmp_path / "long.json").stat().st_size < 20_000
    assert len(done["class_use"]["rates"][0]) == 100


# Resuming


@pytest.mark.parametrize(("row", "changes"), STATES, ids=[row for row, _ in STATES])
def test_an_interrupted_run_ends_with_the_same_bits(
    tmp_path: Path, row: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job(tmp_path / "whole", row, **changes))
    parts = job(tmp_path / "parts", row, **changes)
    interrupted(parts, 15, monkeypatch)  # an epoch has 13 steps
    torch.manual_seed(12345)  # nothing depends on where the generator stands
    interrupted(parts, 20, monkeypatch)
    run(parts)
    same_ends(tmp_path / "whole", tmp_path / "parts")


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    run(job(tmp_path / "whole"))
    parts = job(tmp_path / "parts")
    interrupted(parts, 30, monkeypatch)
    path = tmp_path / "parts" / "epoch-0002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    run(parts, said=said)
    assert "epoch-0002 is damaged" in said[0]
    same_ends(tmp_path / "whole", tmp_path / "parts")


def test_a_full_disk_stops_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job(tmp_path / "whole"))
    save, calls = checkpoint.write, 0

    def full(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise SaveError("cannot write: No space left on device")
        save(path, content)

    parts = job(tmp_path / "parts")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", full)
        with pytest.raises(SaveError):
            run(parts)
    run(parts)
    same_ends(tmp_path / "whole", tmp_path / "parts")


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    done = run(job(tmp_path))
    started = time.monotonic()
    assert run(job(tmp_path)) == done
    assert time.monotonic() - started < 0.5


@pytest.mark.parametrize("content", ["{", "[]", "null", '{"row": "x", "settings": 3}'])
def test_what_is_no_record_is_trained_again(tmp_path: Path, content: str) -> None:
    (tmp_path / "record.json").write_text(content)
    done = run(job(tmp_path, epochs=1))
    assert done == json.loads((tmp_path / "record.json").read_text())


def test_checkpoints_of_a_finished_run_go(tmp_path: Path) -> None:
    """Killed after the record was written, before they went."""
    done = run(job(tmp_path))
    checkpoint.save(tmp_path, 3, {"weight": torch.zeros(2)}, {})
    assert run(job(tmp_path)) == done
    assert not list(tmp_path.glob("epoch-*"))


def test_other_threads_are_refused_with_the_option_that_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(job(tmp_path), 20, monkeypatch)
    with pytest.raises(MismatchError, match=r"threads 1 → 2\. To continue it, give the same"):
        run(replace(job(tmp_path), threads=2))
    with pytest.raises(MismatchError) as error:
        run(job(tmp_path, lr=0.2))
    assert "--jobs" not in str(error.value)


def test_other_settings_are_not_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(job(tmp_path), 20, monkeypatch)
    words = r"lr 0\.1 → 0\.2.*--fresh.*--out"
    with pytest.raises(MismatchError, match=words):
        run(job(tmp_path, lr=0.2))
    other = dataset()
    other.train.x[0, 0] = 0.5
    with pytest.raises(MismatchError, match=r"data '\w+' → '\w+'"):
        run(job(tmp_path), other)
    run(job(tmp_path))
    with pytest.raises(MismatchError, match=words):
        run(job(tmp_path, lr=0.2))


def test_a_loss_that_is_not_a_number_names_epoch_and_step(tmp_path: Path) -> None:
    data = dataset()
    data.train.x[7] = float("nan")
    with pytest.raises(DivergedError, match=r"loss is nan in epoch 1, step \d+"):
        run(job(tmp_path), data)


def test_a_validation_loss_that_is_no_number_stops_the_run_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only the last step of an epoch broke is not seen in training."""
    monkeypatch.setitem(
        train.__globals__, "evaluate", lambda model, part: Evaluation(90.0, float("inf"), 0.1)
    )
    with pytest.raises(DivergedError, match="validation loss is inf after epoch 1, step 13"):
        run(job(tmp_path))  # of 200 images in batches of 16
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_class_may_be_missing_in_training(tmp_path: Path) -> None:
    data = dataset()
    data.train.y[data.train.y == 9] = 0
    assert 9 in data.valid.y
    run(job(tmp_path), data)

"""The Bernoulli VAE: its bound and variance against enumeration, its data, its command."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from hardgate import exact_expectation
from hardgate.estimators import ESTIMATORS, REINFORCE, RLOO
from hardgate_lab.rig.candidates import UnknownEstimatorError
from hardgate_lab.rig.idx import DataError
from hardgate_lab.vae import vae_data, variance_table
from hardgate_lab.vae.autoencoder import BernoulliVAE
from hardgate_lab.vae.elbo import elbo
from hardgate_lab.vae.gradient_variance import spread
from hardgate_lab.vae.step_time import milliseconds
from hardgate_lab.vae.take_turns import Budget, train
from hardgate_lab.vae.vae_candidates import MOST_EVALS, QUICK, n_evals, trainable
from hardgate_lab.vae.vae_data import PACKED, SEED, TEXT, load
from hardgate_lab.vae.vae_record import make_record
from hardgate_lab.vae.vae_run import VaeRun, VaeSettings
from hardgate_lab.vae.vae_table import Common, at, markdown
from tests.support import tiny_digits, tiny_runs
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z


@pytest.fixture(autouse=True)
def _one_thread(threads: None) -> None:
    """Training goes on with one thread, and these tensors are small; other tests want theirs."""
    torch.set_num_threads(1)


def quiet(_: str) -> None:
    pass


def small(units: int = 6, pixels: int = 12) -> tuple[BernoulliVAE, Tensor]:
    """A model away from its start, and images."""
    torch.manual_seed(0)
    model = BernoulliVAE(torch.rand(pixels), units)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model, torch.bernoulli(torch.full((5, pixels), 0.4))


def log_bernoulli(b: Tensor, a: Tensor) -> Tensor:
    return (b * logsigmoid(a) + (1 - b) * logsigmoid(-a)).sum(-1)


def exact_bound(model: BernoulliVAE, x: Tensor) -> Tensor:
    """E_q[log p(x|b) + log p(b) - log q(b|x)] over all b."""
    a = model.logits(x)
    f = model.reconstruction(x)
    whole = exact_expectation(
        lambda b: log_bernoulli(b, model.prior) - log_bernoulli(b, a) - f(b), a
    )
    return whole


def test_the_bound_is_that_of_enumeration() -> None:
    model, x = small()
    truth = exact_bound(model, x).mean().item()
    found = elbo(model, x, draws=4000, seed=0)
    assert abs(found.mean - truth) < Z_LEVEL * found.error
    assert 0 < found.error < 0.05
    with torch.no_grad():
        model.prior.add_(1.0)  # another model is seen
    assert abs(elbo(model, x, draws=4000, seed=0).mean - truth) > Z_WRONG * found.error


def test_the_divergence_is_that_of_enumeration_and_finite_far_out() -> None:
    model, x = small()
    a = model.logits(x).detach().requires_grad_()
    truth = exact_expectation(lambda b: log_bernoulli(b, a) - log_bernoulli(b, model.prior), a)
    torch.testing.assert_close(model.divergence(a), truth)
    (ours,) = torch.autograd.grad(model.divergence(a).sum(), a)
    (theirs,) = torch.autograd.grad(truth.sum(), a)
    torch.testing.assert_close(ours, theirs)
    far = torch.tensor([[40.0, -40.0, 0.0, 40.0, -40.0, 1.0]])
    assert model.divergence(far).isfinite().all()


def test_the_loss_has_the_bound_as_its_mean_and_its_gradient() -> None:
    model, x = small()
    truth = -exact_bound(model, x)
    (gradient,) = torch.autograd.grad(truth.sum(), model.encoder.bias)
    losses: list[Tensor] = []
    gradients: list[Tensor] = []
    copies = 500
    torch.manual_seed(1)
    for _ in range(100):
        loss = model.loss(x.repeat(copies, 1), RLOO()).view(copies, -1).mean(0)
        losses.append(loss.detach())
        gradients += torch.autograd.grad(loss.sum(), model.encoder.bias)
    assert largest_z(torch.stack(losses), truth.detach()) < Z_LEVEL
    assert largest_z(torch.stack(gradients), gradient) < Z_LEVEL
    assert largest_z(torch.stack(gradients), 0 * gradient) > Z_WRONG


def test_the_variance_is_that_of_enumeration() -> None:
    """REINFORCE: Var g_i = E[f² (b_i - p_i)²] - (E[f (b_i - p_i)])²."""
    model, x = small(units=4)
    model.requires_grad_(False)
    a, f = model.logits(x), model.reconstruction(x)
    p = torch.sigmoid(a)
    truth, square = 0.0, 0.0
    for i in range(4):
        first = exact_expectation(lambda b, i=i: f(b) * (b - p)[..., i], a)  # type: ignore[misc]
        second = exact_expectation(lambda b, i=i: (f(b) * (b - p)[..., i]) ** 2, a)  # type: ignore[misc]
        truth += (second - first**2).mean().item()
        square += (first**2).mean().item()
    torch.manual_seed(0)
    found = spread(REINFORCE(), model, x)
    assert abs(found.variance - truth) < Z_LEVEL * found.error
    assert found.error < 0.1 * truth
    assert abs(found.square - square) < Z_LEVEL * 2 * math.sqrt(square * truth / 100)


# Who takes part


def test_all_means_every_estimator_of_few_evaluations() -> None:
    found = trainable(["all"])
    few = {
        name
        for name, cls in ESTIMATORS.items()
        if isinstance(cls().n_evals, int) and int(cls().n_evals) <= MOST_EVALS
    }
    assert few <= {type(candidate.make()).__name__ for candidate in found.values()}
    assert all(n_evals(candidate.make()) <= MOST_EVALS for candidate in found.values())
    assert "DoubleCV(2, per_unit=True)" in found
    assert set(QUICK) <= set(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Nobody", "got 'Nobody'"),
        ("RLOO(samples=1)", "at least 2"),
        ("LocalExpectation", "do not grow with the 200 units"),
        ("Sigmoid", "samples or relaxes"),
        ("StochasticBinary(None)", "learns from the loss"),
    ],
)
def test_who_cannot_take_part_is_told_why(text: str, words: str) -> None:
    with pytest.raises(UnknownEstimatorError, match=re.escape(words)):
        trainable([text])


# Data


def test_packed_and_text_files_are_the_same_images(tmp_path: Path) -> None:
    said: list[str] = []
    one = load(tiny_digits.packed(tmp_path / "npz"), said.append)
    other = load(tiny_digits.text(tmp_path / "amat"), said.append)
    for part, array in tiny_digits.parts().items():
        assert np.array_equal(getattr(one, part).numpy(), array)
        assert torch.equal(getattr(one, part), getattr(other, part))
    assert one.digest == other.digest
    assert not one.canonical
    assert len(said) == 6
    assert "not the published files" in one.label


def test_published_files_are_known_by_their_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    arrays = {part: np.packbits(a, axis=1).tobytes() for part, a in tiny_digits.parts().items()}
    digests = {part: hashlib.sha256(content).hexdigest() for part, content in arrays.items()}
    monkeypatch.setattr(vae_data, "_LAROCHELLE", digests)
    said: list[str] = []
    assert load(tiny_digits.packed(tmp_path), said.append).canonical
    assert said == []


def test_mnist_is_binarised_with_a_fixed_seed_and_says_so(tmp_path: Path) -> None:
    folder = tiny_runs.files(tmp_path / "idx")
    one, other = load(folder, quiet), load(folder, quiet)
    assert one.digest == other.digest
    assert one.name == f"mnist binarised with seed {SEED}"
    assert "not Larochelle's files" in one.label
    assert set(one.train.unique().tolist()) == {0, 1}
    assert (len(one.train), len(one.valid), len(one.test)) == (200, 40, 60)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_npz_is_refused(tmp_path: Path, seed: int) -> None:
    path = tiny_digits.packed(tmp_path) / PACKED
    content, chance = bytearray(path.read_bytes()), random.Random(seed)
    if seed % 2:
        del content[chance.randrange(len(content)) :]
    else:
        start = chance.randrange(len(content) // 2)
        content[start : start + 200] = bytes(200)
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"{PACKED}: expected .*--data DIR"):
        load(tmp_path, quiet)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": np.zeros((3, 97), np.uint8)}, r"uint8 \[n, 98\], got uint8 \[3, 97\]"),
        ({"valid": np.zeros((3, 98), np.float32)}, r"got float32 \[3, 98\]"),
        ({"test": np.zeros((0, 98), np.uint8)}, "images in test, got none"),
        ({"test": np.array([{}])}, "Object arrays"),
    ],
)
def test_an_npz_of_something_else_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    arrays = {part: np.packbits(a, axis=1) for part, a in tiny_digits.parts().items()}
    np.savez(tmp_path / PACKED, **{**arrays, **changes})
    with pytest.raises(DataError, match=words):
        load(tmp_path, quiet)


@pytest.mark.parametrize(
    ("content", "words"),
    [("", "images, got none"), ("0 1 0\n", "3 characters"), ("2" * 784, "0 or 1 a line")],
)
def test_a_text_file_of_something_else_is_refused(tmp_path: Path, content: str, words: str) -> None:
    (tiny_digits.text(tmp_path) / TEXT.format("valid")).write_text(content)
    with pytest.raises(DataError, match=words):
        load(tmp_path, quiet)


def test_a_missing_text_file_is_named(tmp_path: Path) -> None:
    (tiny_digits.text(tmp_path) / TEXT.format("test")).unlink()
    with pytest.raises(DataError, match=TEXT.format("test")):
        load(tmp_path, quiet)


# Runs


class Silent:
    """Notes who failed."""

    def __init__(self) -> None:
        self.failures: dict[str, str] = {}

    def progress(self, run: VaeRun, step: int) -> None:
        pass

    def point(self, run: VaeRun) -> None:
        pass

    def failed(self, run: VaeRun, message: str) -> None:
        self.failures[run.settings.estimator] = message

    def say(self, message: str) -> None:
        pass


def tiny(name: str, lr: float = 0.01) -> VaeSettings:
    return VaeSettings(name, units=8, batch=20, lr=lr, every=20)


def test_runs_learn_and_do_not_depend_on_who_else_takes_turns(tmp_path: Path) -> None:
    both = [tiny("DoubleCV(2)"), tiny("StraightThrough()")]
    together = trained(both, 60, tmp_path / "a")
    (alone,) = trained(both[1:], 60, tmp_path / "b")
    assert together[1] == alone
    for record in together:
        assert record["curve"]["test"][-1] > record["curve"]["test"][0] + 20
        assert record["elbo"]["test"] == pytest.approx(record["curve"]["test"][-1], abs=5)
        assert record["steps"] == 60
    assert [record["n_evals"] for record in together] == [2, 1]


def test_a_larger_budget_carries_on_with_the_same_bits(tmp_path: Path) -> None:
    one = [tiny('REINFORCE("optimal")')]
    trained(one, 20, tmp_path / "a")
    assert trained(one, 60, tmp_path / "a") == trained(one, 60, tmp_path / "b")


def test_seconds_carry_a_fast_run_past_its_steps() -> None:
    assert Budget(1000, seconds=10).steps_of(milliseconds=5) == 2000
    assert Budget(1000, seconds=10).steps_of(milliseconds=20) == 1000
    found = milliseconds([tiny("DisARM()"), tiny("RLOO(8)")], tiny_digits.digits())
    assert found.keys() == {"DisARM()", "RLOO(8)"}
    assert all(ms > 0 for ms in found.values())


def test_a_run_that_diverges_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    watcher = Silent()
    settings = [tiny("DisARM()", lr=1e38), tiny("RLOO(2)")]  # the first overflows at once
    runs = train(dict.fromkeys(settings, 60), tiny_digits.digits(), tmp_path, watcher)
    assert list(runs) == ["RLOO(2)"]
    assert "not finite by step 20" in watcher.failures["DisARM()"]


def trained(settings: list[VaeSettings], steps: int, out: Path) -> list[dict[str, Any]]:
    runs = train(dict.fromkeys(settings, steps), tiny_digits.digits(), out, Silent())
    return [make_record(run, 1.0) for run in runs.values()]


# The command


def test_the_command_prints_the_table_and_writes_figures_and_records(tmp_path: Path) -> None:
    data = tiny_digits.packed(tmp_path / "data")
    names = ("--estimator=RLOO", "--estimator=StraightThrough", "--measure=ARM", "--steps=40")
    kept = f"--records={tmp_path / 'r'}"
    code, output = tiny_digits.invoke(*names, kept, data=data, out=tmp_path / "o")
    assert code == 0, output
    for word in ("RLOO(2)", "StraightThrough()", "Larochelle's split (not the published", "equal"):
        assert word in output
    for name in ("vae-elbo.png", "vae-variance.png"):
        assert (tmp_path / "o" / name).stat().st_size > 10_000
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "RLOO-2.json", "StraightThrough.json", "variance.json",
    }  # fmt: skip
    variance = json.loads((tmp_path / "r" / "variance.json").read_text())
    assert [row["step"] for row in variance["rows"]] == [20, 40] * 3
    assert variance["rows"][-1]["estimator"] == "ARM()"  # measured, not trained
    assert variance["trajectory"]["estimator"] == "RLOO(2)"
    code, output = tiny_digits.invoke(*names, "--lr=0.02", data=data, out=tmp_path / "o")
    assert code == 1
    assert "lr 0.01 → 0.02" in output
    assert "--fresh" in output


def test_what_was_measured_is_kept_unless_damaged_or_fresh(tmp_path: Path) -> None:
    data, out = tiny_digits.packed(tmp_path / "data"), tmp_path / "o"
    path = out / "variance.json"

    def again(*more: str) -> tuple[int, str]:
        return tiny_digits.invoke("--estimator=RLOO", "--steps=40", *more, data=data, out=out)

    assert "measured the variance of RLOO(2)" in again()[1]
    assert "measured the variance of RLOO(2)" not in again()[1]
    for damaged in ("[1]", "{"):
        path.write_text(damaged)
        code, output = again()
        assert code == 0, output
        assert "measured the variance of RLOO(2)" in output
    assert "measured the variance of RLOO(2)" in again("--fresh")[1]
    weights = out / "RLOO-2" / "weights-000040.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    path.unlink()
    code, output = again()
    assert code == 1
    assert "weights-000040.safetensors: expected the weights of a run" in output
    assert "Traceback" not in output


def test_the_other_data_are_labelled_in_output_and_record(tmp_path: Path) -> None:
    data = tiny_runs.files(tmp_path / "idx")
    args = ("--estimator=DisARM", "--steps=20")
    code, output = tiny_digits.invoke(*args, data=data, out=tmp_path / "o")
    assert code == 0, output
    assert f"mnist binarised with seed {SEED}" in output
    record = json.loads((tmp_path / "o" / "DisARM" / "record.json").read_text())
    assert "not Larochelle's files" in record["dataset"]


def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    data, chance = tiny_digits.packed(tmp_path / "data"), random.Random(0)

    def line(out: str) -> list[str]:
        args = ("--estimator=DoubleCV", "--estimator=RLOO", "--steps=160")
        return tiny_digits.command(*args, data=data, out=tmp_path / out)

    code, output = tiny_runs.finish(line("whole"))
    assert code == 0, output
    with tiny_runs.start(line("parts")) as process:
        assert process.stdout is not None
        while "step 40" not in process.stdout.readline():
            pass
        time.sleep(0.2 * chance.random())
        os.kill(process.pid, signal.SIGKILL)
    code, output = tiny_runs.finish(line("parts"))
    assert code == 0, output
    assert "DoubleCV(2): step 20/" not in output  # it did not start anew
    for name in ("DoubleCV-2", "RLOO-2"):
        ends = [
            json.loads((tmp_path / out / name / "record.json").read_text())
            for out in ("whole", "parts")
        ]
        assert ends[0].pop("milliseconds") > 0
        assert ends[1].pop("milliseconds") > 0
        assert ends[0] == ends[1]
        weights = [
            (tmp_path / out / name / "weights-000160.safetensors") for out in ("whole", "parts")
        ]
        assert weights[0].read_bytes() == weights[1].read_bytes()


# Tables


def made_up(name: str, evals: int, ms: float, elbos: list[float]) -> dict[str, Any]:
    step = [100 * (k + 1) for k in range(len(elbos))]
    curve = {"step": step, "test": elbos, "train": elbos}
    return {
        "settings": {"estimator": name, "batch": 100, "lr": 0.1, "seed": 0},
        "dataset": "made up", "unbiased": True, "n_evals": evals, "steps": step[-1],
        "milliseconds": ms, "curve": {**curve, "test_error": [0.1]},
    }  # fmt: skip


def test_the_table_compares_at_equal_budgets() -> None:
    cheap = made_up("cheap", 1, 5.0, [-50.0, -40.0, -30.0, -20.0])
    dear = made_up("dear", 2, 10.0, [-45.0, -35.0, -25.0, -15.0])
    common = Common.of([cheap, dear])
    assert common == Common(400, 400, 2.0)
    assert at(dear, "test", 250) == -30.0
    rows = markdown([dear, cheap], []).splitlines()
    assert rows[2].startswith("| `cheap`* | 1 | 5.0 | – | -20.00 | -20.00 | -20.00 |")
    assert rows[3].startswith("| `dear`* | 2 | 10.0 | – | -15.00 | -35.00 | -35.00 |")


def test_the_variances_are_sorted_at_equal_evaluations() -> None:
    def row(name: str, evals: int, step: int, variance: float) -> dict[str, Any]:
        facts = {"estimator": name, "n_evals": evals, "unbiased": evals > 1, "step": step}
        return {**facts, "variance": variance, "error": variance / 10}

    rows = [row("two", 2, 8, 3.0), row("two", 2, 16, 2.0), row("one", 1, 8, 5.0)]
    table = variance_table.markdown([*rows, row("one", 1, 16, 3.0)]).splitlines()
    assert table[0] == "| estimator | evals | step 8 | step 16 | × evals |"
    assert table[2] == "| `one` | 1 | 5 | 3 | 3 |"
    assert table[3] == "| `two`* | 2 | 3 | 2 | 4 |"
    assert "at most 10 %" in table[-1]
    assert variance_table.markdown([]) == ""

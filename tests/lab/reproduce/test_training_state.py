"""What a run does from step to step, by value: rates, momentum, norms, densities, starts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from hardgate_lab.reproduce.evaluate import evaluate, gate_use
from hardgate_lab.reproduce.network import Gated, build, limit_norms_
from hardgate_lab.reproduce.settings import Settings, settings_of
from hardgate_lab.reproduce.training_state import TrainingState
from tests.support.tiny_runs import SMALL, dataset


def settings(row: str = "straight_through", **changes: Any) -> Settings:
    return settings_of(row, "quick", {**SMALL, **changes})


def gated(**changes: Any) -> Gated:
    torch.manual_seed(0)
    model = build(settings(**changes), dataset().train.x, 10)
    assert isinstance(model, Gated)
    return model


@pytest.mark.parametrize("momentum", [0.0, 0.5])  # by FusedSGD, by SGD
def test_rates_fall_within_an_epoch_and_the_gater_has_its_own(momentum: float) -> None:
    given: dict[str, Any] = {
        "lr": 0.4,
        "gater_lr": 0.5,
        "epochs": 4,
        "decay_start": 2,
        "decay": 0.0,
    }
    run = TrainingState(settings(momentum=momentum, **given), dataset().train)
    run.curves["seconds"] = [1.0, 1.0]  # two epochs are done: it falls to zero over the last two
    for part, factor in ((0.0, 1.0), (0.5, 0.75)):
        run.schedule(part)
        rates = [group["lr"] for group in run.optimiser.param_groups]
        assert rates == pytest.approx([0.4 * factor, 0.2 * factor])


def test_momentum_rises_from_epoch_to_epoch() -> None:
    changes = {"momentum": 0.9, "momentum_start": 0.5, "momentum_epochs": 2}
    run = TrainingState(settings("dense", **changes), dataset().train)
    for epoch, expected in enumerate((0.5, 0.7, 0.9, 0.9)):
        run.curves["seconds"] = [1.0] * epoch
        run.schedule(0.3)
        assert run.optimiser.param_groups[0]["momentum"] == pytest.approx(expected)


def test_each_layer_has_its_own_limit_and_start() -> None:
    limits: dict[str, Any] = {"max_norm": 1.1, "bottleneck_max_norm": 1.2, "gate_max_norm": 1.3}
    model = gated(**limits, out_max_norm=1.4)
    hidden, output = model.layer.gater.hidden, model.layer.gater.output
    out = model.get_parameter("layer.out.weight").T  # kept as [hidden, out]
    weights = (model.layer.experts.weight, hidden.weight, output.weight, out)
    for weight in weights:  # [units, their inputs]
        weight.data.fill_(1.0)
    limit_norms_(model, settings(**limits, out_max_norm=1.4))
    norms = [weight.norm(dim=1).max().item() for weight in weights]
    assert norms == pytest.approx([1.1, 1.2, 1.3, 1.4], rel=1e-5)
    free = dict.fromkeys((*limits, "out_max_norm"), 0.0)
    plain = gated(**free, expert_init=1.0, bottleneck_init=1.0, gater_init=1.0, out_init=1.0)
    scaled = gated(**free, expert_init=2.0, bottleneck_init=3.0, gater_init=5.0, out_init=7.0)
    for name, factor in (
        *(("layer.experts", 2.0), ("layer.gater.hidden", 3.0)),
        *(("layer.gater.output", 5.0), ("layer.out", 7.0)),
    ):
        one, other = (model.get_parameter(f"{name}.weight") for model in (plain, scaled))
        torch.testing.assert_close(other.detach(), factor * one.detach())


def test_density_in_training_is_that_since_it_was_last_asked() -> None:
    model = gated()
    with torch.no_grad():
        model.layer.gater.output.bias.fill_(1000.0)
        model(dataset().train.x[:20])
        assert model.density() == 1.0
        model.layer.gater.output.bias.fill_(-1000.0)
        model(dataset().train.x[:20])
        assert model.density() == 0.0
        model.eval()(dataset().train.x[:20])  # evaluation does not count
        assert model.density() == 1.0  # as before the first pass


def test_an_evaluation_is_the_mean_over_images() -> None:
    """Of more than one batch, the last one short."""
    data, model = dataset(), gated()
    n = 620
    split = type(data.train)(data.train.x.repeat(4, 1)[:n], data.train.y.repeat(4)[:n])
    found = evaluate(model, split)
    with torch.no_grad():
        logits = model(split.x)
    assert found.error == pytest.approx(100 * (logits.argmax(1) != split.y).double().mean().item())
    loss = torch.nn.functional.cross_entropy(logits.double(), split.y).item()
    assert found.loss == pytest.approx(loss, rel=1e-5)
    assert found.density == pytest.approx(model.layer.telemetry().density, rel=1e-6)


def test_the_use_of_a_gate_by_a_class_is_a_share_of_its_images() -> None:
    data, model = dataset(), gated().eval()
    use = gate_use(model, data.valid)
    with torch.no_grad():
        on = (model.layer.gater(data.valid.x) != 0).double()
    shown = on[:, use["class_use"]["gates"]]
    for digit, rates in enumerate(use["class_use"]["rates"]):
        expected = shown[data.valid.y == digit].mean(0).tolist()
        assert rates == pytest.approx(expected, abs=0.0051)  # two digits
    assert use["dead"] == int((on.sum(0) == 0).sum())
    assert use["always_on"] == int((on.sum(0) == len(on)).sum())

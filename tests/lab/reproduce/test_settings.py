"""The settings of the experiment: rows, presets, schedules, and what is refused."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from hardgate import StraightThrough, calibrate_thresholds
from hardgate_lab.reproduce.network import (
    CONTROLLERS,
    UNITS,
    Dense,
    Gated,
    build,
    check,
    differences_,
)
from hardgate_lab.reproduce.settings import (
    PAPER_ROWS,
    PRESETS,
    ROWS,
    STARTS,
    Settings,
    SettingsError,
    change,
    settings_of,
)
from hardgate_lab.reproduce.table import LABELS, PAPER


def test_every_row_of_the_issue_is_there() -> None:
    assert (*PAPER_ROWS, "best", "dense") == tuple(ROWS) == tuple(LABELS)
    assert tuple(PAPER) == PAPER_ROWS
    assert set(PRESETS) == {"quick", "paper"}


def test_every_field_has_a_comment() -> None:
    source = inspect.getsource(Settings)
    for field in fields(Settings):
        assert re.search(rf"^    {field.name}: \w+ = \S+  # \w", source, re.MULTILINE), field.name


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("row", ROWS)
def test_every_row_builds_and_starts_at_its_rate(row: str, preset: str) -> None:
    torch.manual_seed(0)
    settings = settings_of(row, preset, {"hidden": 100, "bottleneck": 20})
    check(settings)
    x = torch.rand(200, 784)
    model = build(settings, x, 10)
    assert tuple(model(x).shape) == (200, 10)
    if isinstance(model, Gated) and settings.sparsity != "none":
        a = model.layer.gater.pre_activation(x)
        on = model.layer.gater.unit.active_probability(a).mean().item()
        assert on == pytest.approx(settings.rate, abs=0.01)
    assert isinstance(model, Dense) == (row == "dense")


def test_the_paper_rows_have_the_paper_network() -> None:
    for row in PAPER_ROWS:
        settings = settings_of(row, "paper")
        small = row.startswith("sigmoid")
        assert (settings.hidden, settings.bottleneck) == (200 if small else 2000, 400)
        assert settings.batch == 32
        assert settings.rate == 0.1
        assert (settings.sparsity == "none") == small


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"'learning' is not a setting.*sparsity_weight"):
        change(Settings(), {"learning": "1"})
    with pytest.raises(SettingsError, match=r"'nope' is not a row.*straight_through"):
        settings_of("nope", "quick")
    with pytest.raises(SettingsError, match=r"'slow' is not a preset.*quick, paper"):
        settings_of("sigmoid", "slow")
    with pytest.raises(SettingsError, match=rf"unit expected one of {', '.join(UNITS)}"):
        check(Settings(unit="relu"))
    with pytest.raises(SettingsError, match=rf"sparsity expected one of {', '.join(CONTROLLERS)}"):
        check(Settings(sparsity="l2"))
    with pytest.raises(SettingsError, match="activation expected one of linear, relu, got 'tanh'"):
        check(Settings(activation="tanh"))
    with pytest.raises(SettingsError, match="off_units expected one of 'exact', 'sampled'"):
        check(Settings(off_units="some"))


def test_values_are_read_as_the_field_is() -> None:
    read = change(Settings(), {"lr": "5e-2", "epochs": "7", "corrected": "True", "unit": "sigmoid"})
    assert (read.lr, read.epochs, read.corrected, read.unit) == (0.05, 7, True, "sigmoid")
    assert change(Settings(), {"lr": 1}).lr == 1.0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", "fast", "lr expected a number, got 'fast'"),
        ("epochs", "1.5", "epochs expected a whole number"),
        ("epochs", 1.5, "epochs expected a whole number"),
        ("corrected", "1", "corrected expected true or false"),
        ("unit", 3, "unit expected a word"),
        ("lr", "-1", r"lr expected a value in \[1e-12"),
        ("lr", "nan", "lr expected a value"),
        ("rate", "1", "rate expected a value"),
        ("batch", "0", "batch expected a value"),
        ("input_dropout", "1", "input_dropout expected a value"),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        change(Settings(), {name: value})


def test_the_learning_rate_falls_by_a_factor_or_linearly() -> None:
    by_factor = Settings(lr=0.1, decay_start=2, decay=0.5, epochs=10)
    assert [by_factor.learning_rate(e) for e in (0, 1.9, 2, 3.5)] == [0.1, 0.1, 0.05, 0.025]
    linear = Settings(lr=0.1, decay_start=2, decay=0.0, epochs=10)
    falling = [linear.learning_rate(e) for e in (0, 2, 6, 9.5)]
    assert falling == pytest.approx([0.1, 0.1, 0.05, 0.1 / 16])
    never = Settings(lr=0.1, decay_start=10, decay=0.0, epochs=10)
    assert never.learning_rate(9.99) == 0.1


def test_momentum_rises() -> None:
    settings = Settings(momentum=0.9, momentum_start=0.5, momentum_epochs=4)
    rising = [settings.momentum_in(e) for e in (0, 2, 4, 9)]
    assert rising == pytest.approx([0.5, 0.7, 0.9, 0.9])
    assert Settings().momentum_in(0) == 0
    assert Settings(momentum=0.9, momentum_epochs=0).momentum_in(0) == 0.9


def test_the_unit_gets_its_options() -> None:
    settings = change(
        ROWS["straight_through"],
        {"off_units": "sampled", "off_rate": "0.2", "hidden": 20, "bottleneck": 4},
    )
    model = build(settings, torch.rand(20, 784), 10)
    assert isinstance(model, Gated)
    unit = model.layer.gater.unit
    assert isinstance(unit, StraightThrough)
    assert (unit.off_units, unit.off_rate) == ("sampled", 0.2)


def test_a_bottleneck_can_start_at_differences_of_images() -> None:
    torch.manual_seed(0)
    x = torch.rand(60, 30)
    x[:, :5] = 0.7  # pixels in which no two images differ
    layer = nn.Linear(30, 40)
    differences_(layer, x, 0.5)
    a = layer(x)
    torch.testing.assert_close(a.std(0), torch.full((40,), 0.5))
    torch.testing.assert_close(a.mean(0), torch.zeros(40), atol=1e-5, rtol=0)
    assert not layer.weight[:, :5].any()
    pairs = (x.unsqueeze(0) - x.unsqueeze(1)).flatten(0, 1)
    cosines = cosine_similarity(layer.weight.unsqueeze(1), pairs, dim=-1)
    torch.testing.assert_close(cosines.amax(1), torch.ones(40))  # each is one of the differences
    assert len(cosines.argmax(1).unique()) > 30


def test_differences_of_images_that_are_all_the_same_are_zero() -> None:
    layer = nn.Linear(3, 4)
    differences_(layer, torch.ones(1, 3).expand(6, 3), 0.5)
    assert not layer.weight.any()
    assert not layer.bias.any()


def test_only_the_start_of_the_bottleneck_follows_its_setting() -> None:
    x = torch.rand(50, 784)
    start = {}
    for name in STARTS:
        torch.manual_seed(0)
        settings = Settings(hidden=20, bottleneck=4, bottleneck_start=name)
        start[name] = build(settings, x, 10).state_dict()
    for key in ("layer.gater.output.weight", "layer.experts.weight", "layer.out.weight"):
        assert torch.equal(start["uniform"][key], start["differences"][key])
    key = "layer.gater.hidden.weight"
    assert not torch.equal(start["uniform"][key], start["differences"][key])
    with pytest.raises(SettingsError, match="bottleneck_start expected one of uniform, diff"):
        Settings(bottleneck_start="pairs")


def test_dropout_of_gates_is_not_counted_as_closed() -> None:
    settings = Settings(hidden=400, bottleneck=20, hidden_dropout=0.9)
    x = torch.rand(200, 784)
    model = build(settings, x, 10)
    assert isinstance(model, Gated)
    model(x)
    assert model.density() == pytest.approx(0.1, abs=0.02)
    assert model.layer.telemetry().density == pytest.approx(0.01, abs=0.005)
    calibrate_thresholds(model.layer.gater, [x])
    model.eval()(x)  # no dropout in evaluation mode
    assert model.layer.telemetry().density == pytest.approx(0.1, abs=0.001)

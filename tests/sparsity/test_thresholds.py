"""Thresholds, the limit on norms, and statistics of gates."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hardgate import (
    UNITS,
    NoisyRectifier,
    Rectifier,
    StochasticTimesSmooth,
    StraightThrough,
    calibrate_thresholds,
    gate_statistics,
    max_norm_,
)
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate.units._unit import EvalMode


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", UNITS)
def test_calibration_reaches_the_rate(name: str) -> None:
    unit, a = UNITS[name](), 2 * randn(1000, 50) - (0 if name == "Rectifier()" else 3)
    reached = calibrate_thresholds(nn.Sequential(unit), a.split(100), rate=0.1)
    density = (unit.eval()(a) != 0).float().mean().item()
    assert density == pytest.approx(0.1, abs=1e-3)
    assert reached == {"0": pytest.approx(density)}


def test_noisy_rectifier_keeps_its_density_where_a_is_negative() -> None:
    """Above a negative threshold max(0, a) is mostly zero; E[h | a] is not."""
    a = randn(1000, 50) - 2
    unit = NoisyRectifier()
    calibrate_thresholds(unit, [a], rate=0.1)
    assert unit.threshold.item() < 0
    h = unit.eval()(a)
    assert (h != 0).float().mean().item() == pytest.approx(0.1, abs=1e-3)
    assert (torch.relu(a) > unit.threshold.clamp(min=0)).float().mean() < 0.05


@pytest.mark.parametrize("rate", [0.1, 0.37, 0.5])
def test_calibration_is_exact_to_one_gate(rate: float) -> None:
    """round(rate·n) values lie above the threshold; equal values are off together."""
    unit, a = StraightThrough().eval(), torch.randperm(200).float().reshape(20, 10)
    reached = calibrate_thresholds(unit, [a], rate=rate)
    assert unit(a).sum().item() == round(200 * rate)
    assert unit.threshold.item() == 199 - round(200 * rate)
    assert reached == {"": pytest.approx(round(200 * rate) / 200)}
    calibrate_thresholds(unit, [a], rate=rate, per_unit=True)
    assert unit(a).sum(0).tolist() == [round(20 * rate)] * 10
    same = StraightThrough().eval()
    calibrate_thresholds(same, [torch.zeros(8, 4)], rate=rate)
    assert same(torch.zeros(8, 4)).sum() == 0


def test_per_unit_calibration() -> None:
    a = randn(1000, 5) + torch.arange(5.0)
    unit = StraightThrough()
    calibrate_thresholds(unit, [a], rate=0.2, per_unit=True)
    assert unit.threshold.shape == (5,)
    torch.testing.assert_close(unit.eval()(a).mean(0), torch.full((5,), 0.2), atol=2e-3, rtol=0)


def test_stacks_are_calibrated_in_the_order_they_run() -> None:
    """The second layer is calibrated on the first one's calibrated output."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 40), StraightThrough(), nn.Linear(40, 40), StraightThrough()
    )
    x = torch.randn(500, 10)
    generator = ((b, None) for b in x.split(50))  # tuples, and only once
    reached = calibrate_thresholds(model, generator, rate=0.1)
    model.eval()
    first = model[1](model[0](x))
    second = model[3](model[2](first))
    for h, name in [(first, "1"), (second, "3")]:
        assert h.mean().item() == pytest.approx(0.1, abs=5e-3)
        assert reached[name] == pytest.approx(h.mean().item())


def test_calibration_leaves_the_model_as_it_was() -> None:
    unit = StraightThrough()
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), unit)
    model[1].eval()
    calibrate_thresholds(model, [torch.randn(20, 4)])
    assert [m.training for m in model] == [True, False, True]
    before = unit.threshold.clone()
    model(100 * torch.randn(20, 4))  # nobody listens any more
    assert torch.equal(unit.threshold, before)


def test_calibration_thins_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardgate.sparsity.thresholds._MOST_NUMBERS", 5_000)
    a, unit = randn(4000, 10), StraightThrough()
    calibrate_thresholds(unit, a.split(100), rate=0.1)
    assert unit.eval()(a).mean().item() == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize("size", [10, 7])
def test_thinning_keeps_the_same_share_of_early_and_late_batches(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Data that drift: batch t holds t. A share that changes on the way moves every quantile."""
    monkeypatch.setattr("hardgate.sparsity.thresholds._MOST_NUMBERS", 300)
    for rate in (0.1, 0.5, 0.9):
        unit = StraightThrough()
        batches = [torch.full((size, 3), float(t)) for t in range(100)]
        calibrate_thresholds(unit, batches, rate=rate)
        assert unit.threshold.item() == pytest.approx(100 * (1 - rate), abs=2)


def test_calibration_refusals() -> None:
    with pytest.raises(ValueError, match="no hardgate unit"):
        calibrate_thresholds(nn.Linear(2, 2), [])
    with pytest.raises(ValueError, match="batches were empty"):
        calibrate_thresholds(StraightThrough(), [])
    with pytest.raises(ValueError, match="rate"):
        calibrate_thresholds(StraightThrough(), [torch.zeros(1, 1)], rate=0.0)


@pytest.mark.parametrize("mode", ["sample", "mean"])
def test_a_mode_without_a_threshold_is_not_calibrated(mode: EvalMode) -> None:
    unit, a = StraightThrough(eval_mode=mode), randn(100, 50)
    with pytest.raises(ValueError, match=rf"'threshold', got '{mode}'.*'0'.*Write unit.eval_mode"):
        calibrate_thresholds(nn.Sequential(unit), [a], rate=0.1)
    assert unit.threshold.item() == 0
    assert (unit.eval()(a) != 0).float().mean() > 0.3  # not the 0.1 that would have been reported
    unit.eval_mode = "threshold"  # as the message says
    assert calibrate_thresholds(unit, [a], rate=0.1)[""] == pytest.approx(0.1, abs=1e-3)


def test_max_norm() -> None:
    linear, conv = nn.Linear(10, 4), nn.Conv2d(3, 5, 3)
    model = nn.Sequential(linear, nn.ReLU(), conv)
    with torch.no_grad():
        linear.weight.mul_(20)
        small = conv.weight.mul_(0.01).clone()
    before, bias = linear.weight.clone(), linear.bias.clone()
    assert max_norm_(model, 2.0) is model
    torch.testing.assert_close(linear.weight.norm(dim=1), torch.full((4,), 2.0))
    direction = torch.cosine_similarity(linear.weight, before)
    torch.testing.assert_close(direction, torch.ones(4))
    assert torch.equal(conv.weight, small)
    assert torch.equal(linear.bias, bias)


def test_max_norm_of_a_transposed_layer_is_that_of_incoming_weights() -> None:
    layer = TransposedLinear(4, 2)
    before = torch.tensor([[3.0, 1.0], [4.0, 1.0], [0.0, 1.0], [0.0, 1.0]])  # [in, out]
    layer.weight.data.copy_(before)
    max_norm_(layer, 2.5)  # into the first output: norm 5, into the second: 2
    expected = before * torch.tensor([0.5, 1.0])
    torch.testing.assert_close(layer.weight.detach(), expected, rtol=1e-5, atol=0)


def test_statistics() -> None:
    unit = StraightThrough()
    a = torch.tensor([[40.0, -40.0, 0.0], [40.0, -40.0, 0.0]])
    h = torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    stats = gate_statistics(unit, a, h)
    assert stats.density == 0.5
    assert stats.firing_rate.tolist() == [1.0, 0.0, 0.5]
    assert (stats.dead, stats.always_on) == (1, 1)
    assert stats.decisiveness == pytest.approx(0.0, abs=1e-6)  # the third gate is a coin
    decided = gate_statistics(unit, torch.tensor([[40.0], [-40.0]]), torch.tensor([[1.0], [0.0]]))
    assert decided.decisiveness == pytest.approx(1.0)


def test_decisiveness_is_the_share_of_variance_the_input_decides() -> None:
    """Var(h) = Var(p) + E[p(1-p)]: measured from samples of the gate itself."""
    unit, a = StraightThrough(), randn(2000, 1)
    h = torch.stack([unit(a) for _ in range(400)])  # [400, 2000, 1]
    share = h.mean(0).var() / h.var()
    stats = gate_statistics(unit, a, h[0])
    assert stats.decisiveness == pytest.approx(share.item(), abs=0.01)


def test_decisiveness_is_of_probabilities_not_of_gates() -> None:
    """The same a everywhere decides nothing, whatever was drawn; and P(h ≠ 0) is not E[h]."""
    for unit in (StraightThrough(), NoisyRectifier(), StochasticTimesSmooth()):
        coin = gate_statistics(unit, torch.zeros(500, 4), unit(torch.zeros(500, 4)))
        assert coin.decisiveness == pytest.approx(0.0, abs=1e-6)
        a = randn(500, 4).double()
        p = unit.active_probability(a)
        expected = p.var(0, unbiased=False).sum() / (p.mean(0) * (1 - p.mean(0))).sum()
        found = gate_statistics(unit, a, torch.zeros_like(a)).decisiveness
        assert found == pytest.approx(expected.item(), rel=1e-6)


def test_empty_batches_and_layers_have_no_statistics() -> None:
    unit = StraightThrough()
    for shape in ((0, 4), (2, 0), (0,)):
        stats = gate_statistics(unit, torch.zeros(shape), torch.zeros(shape))
        assert math.isnan(stats.density)
        assert math.isnan(stats.decisiveness)
        assert stats.firing_rate.shape == shape[-1:]
    with pytest.raises(TypeError, match=r"one shape, got \(3, 4\) and \(5, 2\)"):
        gate_statistics(unit, torch.zeros(3, 4), torch.zeros(5, 2))


def test_max_norm_refuses_weights_that_are_computed() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(5, 4))
    with pytest.raises(TypeError, match="expected weights that are parameters"):
        max_norm_(nn.Sequential(layer), 1.0)


class _ByName(nn.Module):
    """Calls its unit as unit(a=…)."""

    def __init__(self) -> None:
        super().__init__()
        self.unit = StraightThrough()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h: torch.Tensor = self.unit(a=x)
        return h


def test_calibration_of_a_unit_called_by_name() -> None:
    assert calibrate_thresholds(_ByName(), [randn(100, 10)]) == {"unit": pytest.approx(0.1)}


def test_calibration_refuses_nan() -> None:
    unit, a = StraightThrough(), randn(100, 10)
    a[3, 4] = math.nan
    with pytest.raises(ValueError, match="got NaN for ''"):
        calibrate_thresholds(unit, [a])
    assert unit.threshold.item() == 0


def test_calibration_refuses_a_unit_of_two_layers() -> None:
    unit = StraightThrough()
    model = nn.Sequential(nn.Linear(4, 5), unit, nn.Linear(5, 7), unit)
    with pytest.raises(ValueError, match=r"'1' to serve one layer, got layers of 5 and 7\."):
        calibrate_thresholds(model, [randn(100, 4)])


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "part"])
def test_calibration_of_a_compiled_model_that_ran_before(whole: bool) -> None:
    """Compiled code takes no notice of hooks that come later."""
    first = nn.Sequential(nn.Linear(4, 30), StraightThrough())
    compiled: Any = torch.compile(first, backend="eager")
    model = compiled if whole else nn.Sequential(compiled, nn.Linear(30, 5), Rectifier())
    x = randn(100, 4)
    with torch.no_grad():
        model.eval()(x)
    reached = calibrate_thresholds(model, [x], rate=0.1)
    assert len(reached) == (1 if whole else 2)
    with torch.no_grad():
        assert (compiled(x) != 0).float().mean().item() == pytest.approx(0.1, abs=1e-3)

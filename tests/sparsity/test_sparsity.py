"""Sparsity controllers: values, gradients, state, and that they steer a real layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hardgate
from hardgate import (
    UNITS,
    AdaptiveL1,
    Controller,
    FiringRate,
    KLTarget,
    NoisyRectifier,
    Rectifier,
    StochasticTimesSmooth,
    StraightThrough,
    Unit,
    calibrate_thresholds,
    gate_statistics,
    max_norm_,
)
from hardgate.units._bernoulli import BernoulliUnit
from hardgate.units._unit import EvalMode

NOT_SOFT = ("Rectifier", "Sigmoid", "BinaryConcrete")
SOFT = [n for n in UNITS if not n.startswith(NOT_SOFT) and "False" not in n]
LAWS = [n for n in SOFT if not issubclass(type(UNITS[n]()), BernoulliUnit)]  # they share one: σ(a)


def grad(value: Tensor, a: Tensor) -> Tensor:
    return torch.autograd.grad(value, a)[0]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# --- KLTarget -------------------------------------------------------------------------------


def test_kl_is_the_printed_criterion_up_to_a_constant() -> None:
    """Erratum 3: what is printed is the cross-entropy; the gradient is the same."""
    a = randn(32, 5).double().requires_grad_()
    p = torch.sigmoid(a).mean(0)
    printed = -0.3 * (0.1 * p.log() + 0.9 * (1 - p).log()).sum()
    unit = StraightThrough()
    penalty = KLTarget(0.1, weight=0.3)(unit, a, unit(a))
    torch.testing.assert_close(grad(penalty, a), grad(printed, a))
    entropy = -0.3 * 5 * (0.1 * math.log(0.1) + 0.9 * math.log(0.9))
    torch.testing.assert_close(penalty.detach(), printed.detach() - entropy)


@pytest.mark.parametrize("name", LAWS)
def test_kl_holds_the_probability_of_being_nonzero(name: str) -> None:
    """Gradient descent on the penalty alone ends at P(h ≠ 0) = rate, STS included."""
    unit, a = UNITS[name](), nn.Parameter(randn(8, 6))
    control, optimiser = KLTarget(0.1, weight=1.0), torch.optim.SGD([a], lr=2.0)
    for _ in range(1000):
        optimiser.zero_grad()
        control(unit, a, a).backward()
        optimiser.step()
    torch.testing.assert_close(
        unit.active_probability(a).mean(0), torch.full((6,), 0.1), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SOFT)
def test_kl_is_stable_at_extremes_and_still_pulls(name: str, dtype: torch.dtype) -> None:
    """A dead or always-on unit at ±40 has a finite penalty and a gradient that brings it back."""
    unit = UNITS[name]()
    # Φ(-13) is the last that fp32 can hold; beyond it the penalty is finite but pulls no more.
    reach = 12.0 if "gaussian" in name else 40.0
    for value in (-reach, reach):
        a = torch.full((32, 3), value, dtype=dtype, requires_grad=True)
        penalty = KLTarget(0.1, weight=1.0)(unit, a, unit(a.detach()))
        g = grad(penalty, a)
        assert penalty.isfinite()
        assert g.isfinite().all()
        assert (g * value > 0).all()
    wild = torch.tensor([[-1e4, -100.0, 100.0, 1e4]], dtype=dtype, requires_grad=True)
    penalty = KLTarget(0.1, weight=1.0)(unit, wild, unit(wild.detach()))
    assert grad(penalty, wild).isfinite().all()


def test_kl_refuses_units_without_a_smooth_probability() -> None:
    a = randn(4, 3).requires_grad_()
    for unit in (Rectifier(), StraightThrough(sample=False)):
        with pytest.raises(ValueError, match=r"varies smoothly.*AdaptiveL1.*FiringRate"):
            KLTarget(0.1, 1.0)(unit, a, unit(a))


@pytest.mark.parametrize("control", [KLTarget(0.1, 1.0), AdaptiveL1(0.1), FiringRate(0.1)])
@pytest.mark.parametrize("name", ["Sigmoid()", 'Sigmoid("gaussian")', "BinaryConcrete()"])
def test_controllers_refuse_units_that_are_never_off(name: str, control: Controller) -> None:
    unit, a = UNITS[name](), randn(4, 3).requires_grad_()
    with pytest.raises(ValueError, match=r"expected a unit that can be off.*never zero"):
        control(unit, a, unit(a))


def test_l1_refuses_units_whose_h_has_no_gradient() -> None:
    unit, a = hardgate.StochasticBinary(), randn(4, 3).requires_grad_()
    with pytest.raises(ValueError, match=r"AdaptiveL1 expected a unit that back-propagates"):
        AdaptiveL1(0.1)(unit, a, unit(a))


def test_kl_with_beta_noise_counts_what_is_really_on() -> None:
    """P(h ≠ 0 | a) integrates over the noise at the sigmoid's input."""
    unit = StochasticTimesSmooth(noise=hardgate.noise.Beta(40.1))
    a = torch.full((400_000,), 1.0)
    h = unit(a, unit.sample_noise(a, torch.Generator().manual_seed(0)))
    p = unit.active_probability(torch.tensor(1.0)).item()
    standard_error = (p * (1 - p) / len(a)) ** 0.5
    assert abs((h != 0).float().mean().item() - p) < 5.5 * standard_error
    plain = StochasticTimesSmooth().active_probability(torch.tensor(1.0 + unit.shift)).item()
    assert abs(plain - p) > 10 * standard_error  # the noise's mean alone would not do


# --- AdaptiveL1 -----------------------------------------------------------------------------


def test_l1_value_gradient_and_steps() -> None:
    unit, control = Rectifier(), AdaptiveL1(0.1, weight=1e-2, step=0.5)
    a = torch.tensor([[1.0, -1.0], [3.0, -1.0]], requires_grad=True)
    penalty = control(unit, a, unit(a))
    assert penalty.item() == pytest.approx(1e-2 * (1 + 3) / 2)
    assert grad(penalty, a).tolist() == [[pytest.approx(5e-3), 0.0], [pytest.approx(5e-3), 0.0]]
    assert control.weight.item() == pytest.approx(1.5e-2)  # half are on: λ rises after use
    off = -torch.ones(2, 2)
    control(unit, off, unit(off))
    assert control.weight.item() == pytest.approx(1e-2)
    inside = torch.tensor([[1.0] + [-1.0] * 9])
    control(unit, inside, unit(inside))
    assert control.weight.item() == pytest.approx(1e-2)  # inside the band: unchanged
    wide = AdaptiveL1(0.1, band=0.05, weight=1e-2, step=0.5)
    for on, weight in ((6, 1e-2), (14, 1e-2), (16, 1.5e-2), (4, 1e-2)):  # per cent
        some = torch.where(torch.arange(100) < on, 1.0, -1.0).unsqueeze(0)
        wide(unit, some, unit(some))
        assert wide.weight.item() == pytest.approx(weight)
    control.eval()
    control(unit, a, unit(a))
    assert control.weight.item() == pytest.approx(1e-2)


def test_l1_weight_stays_in_its_range() -> None:
    unit, control = Rectifier(), AdaptiveL1(0.1, weight=0.9, step=1.0, least=0.5, most=1.0)
    for value, end in [(1.0, 1.0), (-1.0, 0.5)]:
        for _ in range(5):
            a = torch.full((2, 2), value)
            control(unit, a, unit(a))
        assert control.weight.item() == end


# --- FiringRate -----------------------------------------------------------------------------


def test_firing_rate_moves_the_bias_only() -> None:
    layer, unit = nn.Linear(4, 3), StraightThrough()
    a = layer(randn(64, 4))
    control = FiringRate(0.5, layer, strength=1.0)
    h = torch.zeros(64, 3)
    h[:, 1] = 1.0
    h[::2, 2] = 1.0
    penalty = control(unit, a, h)
    assert penalty.item() == 0.0
    penalty.backward()
    assert layer.bias.grad is not None
    assert layer.bias.grad.tolist() == [-1.0, 1.0, 0.0]  # up, down, at the target
    assert layer.weight.grad is None


def test_firing_rate_without_a_bias_pushes_every_example_alike() -> None:
    a = randn(8, 2).requires_grad_()
    push = grad(FiringRate(0.5, strength=1.0)(StraightThrough(), a, torch.zeros(8, 2)), a)
    torch.testing.assert_close(push, torch.full((8, 2), -1 / 8))


@pytest.mark.parametrize("make", [Rectifier, NoisyRectifier, StraightThrough])
def test_no_dead_unit_stays_dead(make: Callable[[], Unit]) -> None:
    """Units that start at a = -40 (and +40) reach the target rate, through the bias alone."""
    layer, unit = nn.Linear(8, 20), make()
    with torch.no_grad():
        layer.bias[:10], layer.bias[10:] = -40.0, 40.0
    control = FiringRate(0.1, layer, strength=1.0)
    optimiser = torch.optim.SGD([layer.bias], lr=0.2)
    torch.manual_seed(0)
    rates = []
    for _ in range(600):
        a = layer(torch.randn(64, 8))
        h = unit(a)
        optimiser.zero_grad()
        control(unit, a, h).backward()
        optimiser.step()
        rates.append((h != 0).float().mean(0))
    settled = torch.stack(rates[-200:]).mean(0)
    assert (settled - 0.1).abs().max() < 0.05


def test_moving_average_is_a_mean_from_the_first_call() -> None:
    control, unit, a = FiringRate(0.5, decay=0.9), StraightThrough(), torch.zeros(4, 2)
    control(unit, a, torch.tensor([[1.0, 0.0]]).expand(4, 2))
    torch.testing.assert_close(control.average(), torch.tensor([1.0, 0.0]))
    control(unit, a, torch.tensor([[0.0, 0.0]]).expand(4, 2))
    torch.testing.assert_close(control.average()[0].item(), 0.09 / 0.19, rtol=1e-5, atol=0)


# --- all controllers ------------------------------------------------------------------------

CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "KLTarget": lambda: KLTarget(0.1, 1e-2),
    "AdaptiveL1": lambda: AdaptiveL1(0.1),
    "FiringRate": lambda: FiringRate(0.1),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_shapes_and_state(name: str) -> None:
    unit, control = NoisyRectifier(), CONTROLLERS[name]()
    for shape in [(4, 3), (0, 3), (2, 4, 3), (3,)]:
        a = randn(*shape).requires_grad_()
        penalty = control(unit, a, unit(a))
        assert penalty.shape == ()
        assert penalty.isfinite()
        assert grad(penalty, a).shape == shape
    fresh = CONTROLLERS[name]()
    fresh.load_state_dict(control.state_dict())  # before its first use
    for key, value in control.state_dict().items():
        assert torch.equal(fresh.state_dict()[key], value)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_trains_at_lr_0_1_without_nan(name: str) -> None:
    """The paper's learning rate on a small gated classifier; density is steered to 10 %."""
    torch.manual_seed(0)
    x = torch.randn(512, 20)
    y = (x[:, 0] * x[:, 1] > 0).long()
    gater, experts, out = nn.Linear(20, 100), nn.Linear(20, 100), nn.Linear(100, 2)
    unit: Unit = NoisyRectifier() if name == "AdaptiveL1" else StraightThrough()
    control = {
        "KLTarget": KLTarget(0.1, 1.0),
        "AdaptiveL1": AdaptiveL1(0.1, weight=1e-3, step=0.1),
        "FiringRate": FiringRate(0.1, gater, strength=1.0),
    }[name]
    parameters = [*gater.parameters(), *experts.parameters(), *out.parameters()]
    optimiser = torch.optim.SGD(parameters, lr=0.1)
    densities = []
    for _ in range(800):
        index = torch.randint(512, (32,))
        a = gater(x[index])
        h = unit(a)
        loss = nn.functional.cross_entropy(out(h * experts(x[index])), y[index])
        optimiser.zero_grad()
        (loss + control(unit, a, h)).backward()
        optimiser.step()
        assert loss.isfinite()
        densities.append((h != 0).float().mean().item())
    late = sum(densities[-200:]) / 200
    assert 0.06 < late < 0.14
    assert densities[0] > 0.3  # it started elsewhere


def test_controllers_refuse_nonsense() -> None:
    unit, a = StraightThrough(), torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"rate expected a number between 0 and 1.*got 10"):
        KLTarget(10, 1.0)
    with pytest.raises(ValueError, match="weight expected a positive number, got -1"):
        KLTarget(0.1, -1)
    with pytest.raises(ValueError, match="least"):
        AdaptiveL1(0.1, least=2.0, most=1.0)
    with pytest.raises(ValueError, match="decay"):
        FiringRate(0.1, decay=1.0)
    with pytest.raises(TypeError, match=r"a layer with a bias.*FiringRate\(rate, layer\)"):
        FiringRate(0.1, nn.Linear(2, 2, bias=False))
    with pytest.raises(TypeError, match=r"expected \(unit, a, h\).*h = unit\(a\)"):
        KLTarget(0.1, 1.0)(unit, a, a[:2])
    with pytest.raises(ValueError, match="limit"):
        max_norm_(nn.Linear(2, 2), 0.0)


# --- thresholds, max norm, statistics -------------------------------------------------------


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


def test_kl_of_logits_is_read_without_gradients() -> None:
    unit, a = StraightThrough(), torch.zeros(3, 4, requires_grad=True)
    with torch.no_grad():
        value = KLTarget(0.1, weight=1.0)(unit, a, unit(a))
    assert value.item() == pytest.approx(4 * (0.1 * math.log(0.2) + 0.9 * math.log(1.8)))


def test_firing_rate_is_that_of_one_layer() -> None:
    unit, control = StraightThrough(), FiringRate(0.1)
    control(unit, torch.zeros(3, 4), torch.ones(3, 4))
    for width in (1, 5):  # one rate would broadcast to all four
        with pytest.raises(ValueError, match=f"expected the 4 units .* got {width}"):
            control(unit, torch.zeros(3, width), torch.ones(3, width))


def test_state_made_in_inference_mode_goes_on_outside() -> None:
    unit, control = StraightThrough(), FiringRate(0.1)
    a = randn(20, 4)
    with torch.inference_mode():
        control(unit, a, unit(a))
        calibrate_thresholds(unit, [a], rate=0.25)
    control(unit, a, unit(a))
    unit.load_state_dict(StraightThrough().state_dict())
    assert unit.threshold.item() == 0


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

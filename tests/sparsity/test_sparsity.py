"""Sparsity controllers: values, gradients, state, and that they steer a real layer."""

from __future__ import annotations

import math
from collections.abc import Callable

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
    max_norm_,
)
from hardgate.units._bernoulli import BernoulliUnit

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

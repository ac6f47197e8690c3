"""Every unit at the edges: dtypes, extremes, NaN, shapes, wrong arguments, state, copies."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, get_args

import pytest
import torch
from torch import Tensor, nn

import hardgate
from hardgate import NoisyRectifier, Sigmoid, StochasticTimesSmooth, StraightThrough, Unit
from hardgate._base.lazy_state import LazyState
from hardgate.noise import Beta, Binomial
from hardgate.units._unit import NoiseTensors
from tests.support.statistics import Z_LEVEL, largest_z
from tests.support.unit_cases import CASES, each_unit, each_unit_newer_slow, samples

Mode: TypeAlias = Literal["train", "threshold", "mean", "sample"]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]

each_half = pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
# "sample" is training's code, see `test_sampling_in_evaluation_is_that_of_training`.
each_mode = pytest.mark.parametrize("mode", ["train", "threshold", "mean"])
each_binary = pytest.mark.parametrize("name", [n for n in CASES if CASES[n]().binary])


def in_mode(name: str, mode: Mode) -> Unit:
    unit = CASES[name]()
    if mode != "train":
        unit.eval()
        unit.eval_mode = mode
    return unit


def tensors(noise: NoiseTensors) -> tuple[Tensor, ...]:
    return noise if isinstance(noise, tuple) else (noise,)


def gradient(unit: Unit, a: Tensor, noise: NoiseTensors | None = None) -> Tensor:
    """Of Σh, or of what stands in for it where the unit learns from the loss.

    By a copy: some units learn in every backward pass.
    """
    x, unit = a.detach().requires_grad_(), copy.deepcopy(unit)
    h = unit(x, noise)
    total = h.sum()
    if unit.needs_loss:
        total = total + hardgate.score_loss(unit, h.detach().sum(-1), update_baselines=False)
    total.backward()
    assert x.grad is not None
    return x.grad


# Exact values


@pytest.mark.parametrize("mode", ["train", "threshold"])
@each_binary
def test_binary_units_are_exactly_zero_or_one(name: str, mode: Mode) -> None:
    for dtype in FLOATS:
        a = (3 * torch.randn(5000, dtype=dtype)).requires_grad_()
        h = in_mode(name, mode)(a)
        assert torch.equal(h.unique(), torch.tensor([0, 1], dtype=dtype))
        assert not h.signbit().any()


@each_unit
def test_sampled_zeros_are_exact(name: str) -> None:
    """As many zeros as the law says, in the coarse dtypes too."""
    for dtype in FLOATS:
        unit, a = CASES[name](), torch.tensor([-1.0, 0.0, 1.0], dtype=dtype)
        h = unit(a.expand(20_000, 3))
        assert largest_z(h == 0, unit.inactive_probability(a.double())) < Z_LEVEL


@each_unit
def test_below_the_threshold_is_exactly_zero(name: str) -> None:
    """Per unit; 0.3 and 0.7 lie between two half precision numbers, 0.5 is met exactly."""
    for dtype in FLOATS:
        unit, a = CASES[name]().eval(), torch.linspace(0.25, 0.75, 4001)[:, None].to(dtype)
        unit.threshold = torch.tensor([0.3, 0.5, 0.7])
        assert torch.equal(unit(a.expand(-1, 3)) != 0, a.double() > unit.threshold.double())


@each_half
@each_unit
def test_half_precision_is_computed_in_single(name: str, dtype: torch.dtype) -> None:
    a = 3 * torch.randn(200, 3, dtype=dtype)
    for mode in get_args(Mode):
        unit = in_mode(name, mode)
        noise = unit.sample_noise(a)
        assert torch.equal(unit(a, noise), unit(a.float(), noise).to(dtype))
        narrow, wide = gradient(unit, a, noise), gradient(unit, a.float(), noise)
        torch.testing.assert_close(narrow, wide.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    for probability in (unit.active_probability, unit.inactive_probability):
        assert torch.equal(probability(a), probability(a.float()).to(dtype))


def test_the_mean_of_the_noise_is_not_rounded_in_double() -> None:
    a = torch.randn(5, dtype=torch.float64)
    assert torch.equal(Sigmoid(Binomial(0.7)).eval()(a), a.sigmoid() * 0.7)
    assert torch.equal(Sigmoid(Beta(40.1)).eval()(a), (a + Beta(40.1).mean).sigmoid())


# Extremes


@each_mode
@each_unit
def test_large_logits(name: str, mode: Mode) -> None:
    for dtype in FLOATS:
        largest = torch.finfo(dtype).max
        a = torch.tensor([40.0, 100.0, largest, -40.0, -100.0, -largest], dtype=dtype)
        unit, a = in_mode(name, mode), a.expand(50, 6)  # 50 draws
        assert unit(a).isfinite().all(), dtype
        assert gradient(unit, a).isfinite().all(), dtype


@each_mode
@each_unit
def test_infinite_logits(name: str, mode: Mode) -> None:
    for dtype in FLOATS:
        a = torch.tensor([torch.inf, -torch.inf], dtype=dtype).expand(50, 2)
        unit = in_mode(name, mode)
        h = unit(a)
        assert not h.isnan().any(), dtype
        assert (h[:, 1] == 0).all(), dtype
        assert gradient(unit, a).isfinite().all(), dtype


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@each_unit
def test_extreme_probabilities(name: str, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    ends = [torch.inf, largest, 100.0, 40.0, -40.0, -100.0, -largest, -torch.inf]
    a, unit = torch.tensor(ends, dtype=dtype, requires_grad=True), CASES[name]()
    active, inactive = unit.active_probability(a), unit.inactive_probability(a)
    for p in (active, inactive):
        assert ((p >= 0) & (p <= 1)).all()
    assert (active[:2] + inactive[:2] == 1).all()
    connected = active - inactive + a.clamp(-1, 1)  # where the probabilities are constants too
    (slope,) = torch.autograd.grad(connected.sum(), a)
    assert slope.isfinite().all()


@each_mode
@each_unit
def test_nan_in_nan_out(name: str, mode: Mode) -> None:
    a = torch.randn(6, 4)
    a[1, 2] = a[3, 0] = a[5, 3] = torch.nan
    unit = in_mode(name, mode)
    assert torch.equal(unit(a).isnan(), a.isnan())
    assert torch.equal(unit(a.clone().requires_grad_()).isnan(), a.isnan())
    assert torch.equal(unit.active_probability(a).isnan(), a.isnan())
    assert torch.equal(unit.inactive_probability(a).isnan(), a.isnan())


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("mode", ["train", "threshold"])
@each_unit_newer_slow
def test_nan_through_compile(name: str, mode: Mode) -> None:
    a = torch.randn(6, 4)
    a[1, 2] = a[3, 0] = torch.nan
    unit = in_mode(name, mode)
    noise = unit.sample_noise(a)
    h = torch.compile(unit, fullgraph=True, backend="aot_eager")(a, noise)
    assert h.isnan().sum() == 2
    torch.testing.assert_close(h, unit(a, noise), rtol=0, atol=0, equal_nan=True)


# Shapes, strides, dtypes


SHAPES: list[tuple[int, ...]] = [(), (0,), (3,), (0, 3), (2, 3), (4, 2, 3), (2, 1, 2, 3)]


@each_mode
@each_unit
def test_shapes(name: str, mode: Mode) -> None:
    unit = in_mode(name, mode)
    for dtype, shape in itertools.product(FLOATS, SHAPES):
        a = torch.randn(shape, dtype=dtype)
        h = unit(a)
        assert (h.shape, h.dtype) == (a.shape, dtype)
        slope = gradient(unit, a)
        assert (slope.shape, slope.dtype) == (a.shape, dtype)


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "transposed": lambda: torch.randn(4, 6).t(),
    "strided": lambda: torch.randn(12, 8)[::2, ::2],
    "expanded": lambda: torch.randn(4).expand(6, 4),
}


@each_mode
@each_unit
def test_layouts(name: str, mode: Mode) -> None:
    unit = in_mode(name, mode)
    for layout in LAYOUTS.values():
        a = layout()
        noise = unit.sample_noise(a)
        strided = tuple(z.t().contiguous().t() for z in tensors(noise))
        assert not a.is_contiguous()
        h, expected = unit(a, strided), unit(a.contiguous(), noise)
        torch.testing.assert_close(h, expected)  # vectorised code differs in the last digit
        assert torch.equal(h == 0, expected == 0)
        slope = gradient(unit, a, strided)
        torch.testing.assert_close(slope, gradient(unit, a.contiguous(), noise))


# Noise


@each_unit
def test_noise_is_drawn_in_single(name: str) -> None:
    """bf16 noise, cast afterwards, would have some 250 different values."""
    for dtype in FLOATS:
        a = torch.zeros(64, 64, dtype=dtype)
        for z in tensors(CASES[name]().sample_noise(a)):
            assert (z.dtype, z.shape) == (torch.float32, a.shape)
            assert len(z.unique()) > (1 if "Binomial" in name else 3500)


@each_unit
def test_generators(name: str) -> None:
    unit, a = CASES[name](), torch.zeros(50, 4)
    generator, before = torch.Generator().manual_seed(1), torch.get_rng_state()
    first, second = unit.sample_noise(a, generator), unit.sample_noise(a, generator)
    again = unit.sample_noise(a, generator.manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(unit(a, first), unit(a, again))
    for z, other, same in zip(tensors(first), tensors(second), tensors(again), strict=True):
        assert torch.equal(z, same)
        assert not torch.equal(z, other)


@each_unit
def test_seeds(name: str) -> None:
    unit, a = CASES[name](), torch.randn(50, 4)
    torch.manual_seed(1)
    first, second = unit(a), unit(a)
    torch.manual_seed(1)
    assert torch.equal(first, unit(a))
    assert torch.equal(first, second) == (not samples(unit))


@each_unit
def test_sampling_in_evaluation_is_that_of_training(name: str) -> None:
    """So the tests of training hold for `eval_mode="sample"` as well."""
    a = torch.randn(50, 4)
    training, sampling = CASES[name](), in_mode(name, "sample")
    noise = training.sample_noise(a)
    assert torch.equal(sampling(a, noise), training(a, noise))
    assert torch.equal(gradient(sampling, a, noise), gradient(training, a, noise))
    assert torch.equal(sampling(a), sampling(a)) == (not samples(sampling))


@pytest.mark.parametrize("mode", ["threshold", "mean"])
@each_unit
def test_evaluation_is_deterministic_and_differentiable(name: str, mode: Mode) -> None:
    unit, a = in_mode(name, mode), torch.randn(50, 4).requires_grad_()
    before = torch.get_rng_state()
    h = unit(a)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(h, unit(a, unit.sample_noise(a)))  # the noise is not used
    (slope,) = torch.autograd.grad(h.sum(), a)
    assert slope.isfinite().all()
    assert (slope != 0).any()


# Wrong arguments

NOT_PRE_ACTIVATIONS = {
    r"torch.int64 of shape \(3,\)": torch.zeros(3, dtype=torch.int64),
    r"torch.bool of shape \(3,\)": torch.zeros(3, dtype=torch.bool),
    r"torch.complex64 of shape \(3,\)": torch.zeros(3, dtype=torch.complex64),
    "list": [0.0, 1.0],
}


@each_unit
def test_wrong_pre_activations(name: str) -> None:
    for got, mode in itertools.product(NOT_PRE_ACTIVATIONS, get_args(Mode)):
        unit = in_mode(name, mode)
        expected = rf"{type(unit).__name__} expected a floating point tensor of pre-activations"
        with pytest.raises(TypeError, match=rf"{expected}.*got {got}. Write unit\(a.float\(\)\)"):
            unit(NOT_PRE_ACTIVATIONS[got])


WRONG_NOISE: list[tuple[Any, str]] = [
    (torch.zeros(3), r"torch.float32 of shape \(3,\)"),  # would broadcast
    (torch.zeros(2, 1), r"torch.float32 of shape \(2, 1\)"),
    (torch.zeros(2, 3, dtype=torch.int64), r"torch.int64 of shape \(2, 3\)"),
    ([0.5], "list"),
    ((torch.zeros(2, 3), torch.zeros(3)), r"torch.float32 of shape \(3,\)"),
]


@each_unit
def test_wrong_noise(name: str) -> None:
    expected = r"expected floating point noise of the shape of a, \(2, 3\), got "
    for wrong, got in WRONG_NOISE:
        with pytest.raises(ValueError, match=rf"{expected}{got}. Write unit\(a, unit.sample_noise"):
            CASES[name]()(torch.zeros(2, 3), wrong)


@pytest.mark.parametrize(
    ("unit", "count", "message"),
    [
        (StraightThrough(), 2, "expected one noise tensor, got 2"),
        (NoisyRectifier(), 0, "expected one noise tensor, got 0"),
        (StochasticTimesSmooth(), 2, "expected one noise tensor, got 2"),
        (StochasticTimesSmooth(noise=Beta()), 1, "expected two noise tensors.*, got 1"),
        (StochasticTimesSmooth(noise=Beta()), 3, "expected two noise tensors.*, got 3"),
    ],
)
def test_wrong_number_of_noises(unit: Unit, count: int, message: str) -> None:
    a = torch.zeros(2, 3)
    with pytest.raises(ValueError, match=rf"{message}. Write unit\(a, unit.sample_noise\(a\)\)"):
        unit(a, (torch.rand(2, 3),) * count)


NAMES = {**vars(hardgate), **vars(hardgate.noise)}
WRONG_OPTIONS = {  # what is written: what is said
    'NoisyRectifier("cauchy")': "noise expected one of 'gaussian', 'logistic', got 'cauchy'",
    "NoisyRectifier(Gaussian(2))": r"noise expected .*, and its scale besides, got Gaussian\(2\)",
    "NoisyRectifier(scale=0)": r"Gaussian noise expected a positive scale, got 0. For no noise .* "
    r"use hardgate.Rectifier\(\)",
    'NoisyRectifier("logistic", -1)': "Logistic noise expected a positive scale, got -1",
    'Gaussian(float("nan"))': "Gaussian noise expected a positive scale, got nan",
    'StochasticTimesSmooth(placement="x")': "placement expected one of 'both', 'sto.*', got 'x'",
    "StochasticTimesSmooth(noise=Binomial())": "expected additive noise such as "
    r"hardgate.noise.Beta\(40.1\) or None, got Binomial\(keep=0.5\)",
    'StochasticTimesSmooth(noise="gaussian")': "expected additive noise such as .* got 'gaussian'",
    'StochasticBinary("best")': "baseline expected one of 'optimal', 'mean', got 'best'",
    "StochasticBinary(decay=1.0)": r"decay expected a number in \[0, 1\), got 1.0. Write decay=0.9",
    'StochasticBinary(decay=float("nan"))': "decay expected a number in .* got nan",
    'Sigmoid("cauchy")': "noise expected one of 'gaussian', got 'cauchy'",
    "Beta(beta=1.0)": r"Beta expected beta > 1 \(the paper: 1.1 to 160.1\), got 1.0",
    "Beta(rate=0)": "rate expected a number between 0 and 1, got 0. Write rate=0.1",
    'Beta(rate=float("nan"))': "rate expected a number between 0 and 1, got nan. Write rate=0.1",
    "Binomial(keep=0)": r"Binomial expected keep in \(0, 1\], like 0.5, got 0",
    "Binomial(keep=1.5)": r"Binomial expected keep in \(0, 1\], like 0.5, got 1.5",
    **{
        f'{unit}(eval_mode="foo")': "eval_mode expected one of 'threshold', 'mean', 'sample', "
        "got 'foo'"
        for unit in sorted({type(make()).__name__ for make in CASES.values()})
    },
    "Sigmoid(3)": "noise expected None, 'gaussian' or a hardgate.noise.Noise, got int. "
    r"Write noise=hardgate.noise.Gaussian\(0.5\)",
    "StochasticBinary(0.9)": "baseline expected 'optimal', 'mean', None or a "
    "hardgate.baselines.Baseline, got float",
}


@pytest.mark.parametrize("code", WRONG_OPTIONS)
def test_wrong_options(code: str) -> None:
    with pytest.raises((ValueError, TypeError), match=WRONG_OPTIONS[code]):
        eval(code, NAMES)


# State


def used(name: str) -> Unit:
    """A unit with state that differs from a fresh one's: per-unit threshold, moved baseline."""
    unit = CASES[name]()
    unit.threshold = torch.tensor([-1.3, 0.1, 0.7])
    if unit.needs_loss:
        losses = unit(torch.randn(8, 3).requires_grad_()).sum(-1)
        hardgate.score_loss(unit, losses)
    return unit


def assert_same_state(unit: nn.Module, other: nn.Module) -> None:
    left, right = unit.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    for key in left:
        assert torch.equal(left[key], right[key]), key


def assert_same_unit(unit: Unit, other: Unit) -> None:
    assert_same_state(unit, other)
    assert repr(other) == repr(unit)
    a = torch.randn(8, 3)
    noise = unit.sample_noise(a)
    assert torch.equal(other.train()(a, noise), unit.train()(a, noise))
    assert torch.equal(other.eval()(a), unit.eval()(a))


@each_unit
def test_state_loads_into_a_fresh_unit(name: str) -> None:
    unit, fresh = used(name), CASES[name]()
    fresh.load_state_dict(unit.state_dict())  # strict, and before the first call
    assert_same_unit(unit, fresh)
    fresh.threshold.zero_()
    assert unit.threshold[2] == 0.7  # a copy, not an alias


@each_unit
def test_loading_is_strict(name: str) -> None:
    state = used(name).state_dict()
    with pytest.raises(RuntimeError, match=r"Unexpected key.*surplus"):
        CASES[name]().load_state_dict({**state, "surplus": torch.zeros(1)})
    for key in state:
        with pytest.raises(RuntimeError, match=f"Missing key.*{key}"):
            CASES[name]().load_state_dict({k: v for k, v in state.items() if k != key})


@each_half
@each_unit
def test_half_precision_models_keep_their_state(name: str, dtype: torch.dtype) -> None:
    unit = used(name)
    model = nn.Sequential(nn.Linear(3, 3), copy.deepcopy(unit)).eval()
    model = model.half() if dtype == torch.float16 else model.bfloat16()
    assert_same_state(model[1], unit)
    assert all(b.dtype == torch.float32 for b in model[1].buffers())
    assert model(torch.randn(2, 3, dtype=dtype)).dtype == dtype


@each_unit
def test_double_models(name: str) -> None:
    unit = used(name)
    double = copy.deepcopy(unit).double()
    assert all(b.dtype == torch.float64 for b in double.buffers())
    assert torch.equal(double.threshold.float(), unit.threshold)


@pytest.fixture
def _default_bfloat16() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("_default_bfloat16")
@each_unit
def test_a_narrow_default_dtype(name: str) -> None:
    """Models are built under it; neither the state nor the constants may be rounded."""
    unit, a = CASES[name](), torch.randn(500, 3, dtype=torch.float32)
    noise = unit.sample_noise(a)
    results = [unit(a, noise), unit.eval()(a), unit.mean(a), unit.active_probability(a)]
    torch.set_default_dtype(torch.float32)
    same = CASES[name]()
    expected = [same(a, noise), same.eval()(a), same.mean(a), same.active_probability(a)]
    for got, want in zip(results, expected, strict=True):
        assert torch.equal(got, want)
    assert all(m.dtype == torch.float32 for m in unit.buffers())
    assert_same_state(unit, same)


def test_lazy_state_leaves_parameters_and_children_alone() -> None:
    """Only its own buffers are exempt from narrowing."""
    state = LazyState()
    state.register_buffer("total", torch.tensor([1 / 3]))
    state.layer = nn.BatchNorm1d(2)
    state.bfloat16()
    assert state.get_buffer("total").dtype == torch.float32
    assert {t.dtype for t in state.layer.parameters()} == {torch.bfloat16}
    assert state.layer.running_mean is not None
    assert state.layer.running_mean.dtype == torch.bfloat16


@each_unit
def test_copies_and_pickles(name: str) -> None:
    unit = used(name)
    unit(torch.randn(4, 3).requires_grad_())  # leaves a record in a unit that needs the loss
    for other in (copy.deepcopy(unit), pickle.loads(pickle.dumps(unit))):
        assert_same_unit(unit.train(), other)
        other.threshold.zero_()
        assert unit.threshold[2] == 0.7
        gradient(other.train(), torch.randn(4, 3))  # and the copy learns by itself

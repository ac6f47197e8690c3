"""Every estimator in use: parameters inside f, batches, dtypes, extremes, copies, refusals."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import hardgate
from hardgate import ESTIMATORS, StochasticBinary, exact_expectation, exact_gradient, expectation
from hardgate.estimators import REINFORCE, RLOO, DoubleCV, Exact, ManySamples, StochasticAD
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.estimator_cases import (
    CASES,
    draw,
    each_form,
    each_learning,
    each_unbiased_form,
    leaf,
    seeded,
    warm,
)
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

SMOOTH = PROBLEMS["smooth"]
A = SMOOTH.logits
W = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)


def loss(b: Tensor, w: Tensor) -> Tensor:
    return ((b * w.to(b.dtype)).sum(-1) - 1).square() + w.to(b.dtype).square().sum(-1)


# --- gradients of everything else -----------------------------------------------------------


@each_form
def test_parameters_inside_f_get_their_ordinary_gradient(name: str) -> None:
    """∂E f/∂w by enumeration; every row has a w of its own, so that its draws can be counted."""
    w, a = leaf(W, 20_000), leaf(A, 20_000)
    estimator = warm(CASES[name](), lambda b: loss(b, W), A)
    expectation(lambda b: loss(b, w), a, estimator, generator=seeded(0)).sum().backward()
    truth = leaf(W)
    exact_expectation(lambda b: loss(b, truth), A).backward()
    assert w.grad is not None
    assert truth.grad is not None
    assert largest_z(w.grad, truth.grad) < Z_LEVEL


@each_unbiased_form
def test_f_may_depend_on_the_logits(name: str) -> None:
    """As in an ELBO, where f contains -log q(b | a): both ways to a are counted, once."""

    def f(b: Tensor, a: Tensor) -> Tensor:
        return (b * a).sum(-1).square() + a.square().sum(-1)

    a, truth = leaf(A, 20_000), leaf(A)
    estimator = warm(CASES[name](), lambda b: f(b, A), A)
    expectation(lambda b: f(b, a), a, estimator, generator=seeded(0)).sum().backward()
    exact_expectation(lambda b: f(b, truth), truth).backward()
    assert a.grad is not None
    assert truth.grad is not None
    assert largest_z(a.grad, truth.grad) < Z_LEVEL


@each_form
def test_nothing_leaks(name: str) -> None:
    """A call alone leaves no gradient anywhere; backward gives none to what is learnt."""
    w, a, estimator = leaf(W), leaf(A, 8), CASES[name]()
    for _ in range(3):
        value = expectation(lambda b: loss(b, w), a, estimator)
        assert w.grad is None
        assert a.grad is None
    value.sum().backward()
    held = [*estimator.parameters(), *estimator.buffers()]
    assert all(t.grad is None for t in held if t.is_leaf)
    assert not any(t.requires_grad for t in held)
    assert w.grad is not None
    assert a.grad is not None


@each_learning
def test_learning_does_not_change_the_gradient_of_f(name: str) -> None:
    """The parameters' gradient is that of the value, whether or not the estimator learns."""

    def gradient(adapt: bool) -> Tensor:
        w, estimator = leaf(W), CASES[name]()
        estimator.adapt = adapt
        a = leaf(A, 8)
        expectation(lambda b: loss(b, w), a, estimator, generator=seeded(0)).sum().backward()
        assert w.grad is not None
        return w.grad

    torch.testing.assert_close(gradient(True), gradient(False))


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n]().uses_context])
def test_context_gets_no_gradient(name: str) -> None:
    x, a = torch.randn(8, 3, generator=seeded(0)).requires_grad_(), leaf(A.float(), 8)
    expectation(SMOOTH.f, a, CASES[name](), context=x).sum().backward()
    assert x.grad is None


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, inside jvp
@pytest.mark.parametrize("name", ["REINFORCE", "RLOO", "DisARM"])
def test_forward_mode_sees_the_same_estimate(name: str) -> None:
    a, along = leaf(A, 8), torch.randn(8, len(A), generator=seeded(1)).to(A)
    g = draw(ESTIMATORS[name](), SMOOTH.f, a).gradient
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(a.detach(), along)
        estimator = ESTIMATORS[name]()
        value = expectation(SMOOTH.f, dual, estimator, generator=seeded(0))
        tangent = forward_ad.unpack_dual(value).tangent
    torch.testing.assert_close(tangent, (g * along).sum(-1))


# --- batches --------------------------------------------------------------------------------


@each_unbiased_form
def test_examples_have_their_own_logits(name: str) -> None:
    """Draws as [T, B, D], a different a for each of the B."""
    a = torch.stack([A, -A, A.flip(0) + 1])
    found = draw(warm(CASES[name](), SMOOTH.f, a, rows=200), SMOOTH.f, leaf(a, 10_000))
    assert found.value.shape == (10_000, 3)
    assert largest_z(found.gradient, exact_gradient(SMOOTH.f, a)) < Z_LEVEL
    assert largest_z(found.value, exact_expectation(SMOOTH.f, a)) < Z_LEVEL


@each_form
def test_examples_do_not_share_noise(name: str) -> None:
    if name == "Exact()":
        return
    g = draw(warm(CASES[name](), SMOOTH.f, A), SMOOTH.f, leaf(A, 20_000)).gradient
    g = (g - g.mean(0)) / g.std(0)
    assert largest_z(g[1:] * g[:-1], 0.0) < Z_LEVEL


@each_form
@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 3, 4), (0, 4), (1, 1)])
def test_shapes(name: str, shape: tuple[int, ...]) -> None:
    a = torch.zeros(shape, requires_grad=True)
    value = expectation(lambda b: b.sum(-1).square(), a, CASES[name]())
    assert value.shape == shape[:-1]
    value.sum().backward()
    assert a.grad is not None
    assert a.grad.isfinite().all()


@each_form
def test_upstream_weights(name: str) -> None:
    """The gradient is multiplied by what comes from above, example by example."""
    weights, a = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64), leaf(A, 3)
    value = expectation(SMOOTH.f, a, CASES[name](), generator=seeded(0))
    (weighted,) = torch.autograd.grad((weights * value).sum(), a)
    expected = weights.unsqueeze(-1) * draw(CASES[name](), SMOOTH.f, leaf(A, 3)).gradient
    torch.testing.assert_close(weighted, expected)


@each_form
def test_without_grad(name: str) -> None:
    with torch.no_grad():
        value = expectation(SMOOTH.f, leaf(A, 5), CASES[name](), generator=seeded(0))
    assert not value.requires_grad
    torch.testing.assert_close(value, draw(CASES[name](), SMOOTH.f, leaf(A, 5)).value)


# --- dtypes and extremes --------------------------------------------------------------------


@each_form
def test_half_precision_is_computed_in_fp32(name: str) -> None:
    a = A.bfloat16()
    low = draw(CASES[name](), SMOOTH.f, leaf(a, 20))
    high = draw(CASES[name](), SMOOTH.f, leaf(a.float(), 20))
    assert low.gradient.dtype == torch.bfloat16
    assert torch.equal(low.value, high.value)
    torch.testing.assert_close(low.gradient.float(), high.gradient, rtol=2**-8, atol=1e-30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_form
def test_extreme_logits_are_finite(name: str, dtype: torch.dtype) -> None:
    a, estimator = torch.tensor([40.0, -40.0, 100.0, -100.0], dtype=dtype), CASES[name]()
    for step in range(3):  # what is learnt must stay finite, too
        found = draw(estimator, SMOOTH.f, leaf(a, 200), seed=step)
        assert found.gradient.isfinite().all()
        assert found.value.isfinite().all()
    assert all(t.isfinite().all() for t in estimator.state_dict().values())


# --- copies and seeds -----------------------------------------------------------------------


@each_form
def test_generators(name: str) -> None:
    first, again, other = (draw(CASES[name](), SMOOTH.f, leaf(A, 50), s) for s in (3, 3, 4))
    assert torch.equal(first.gradient, again.gradient)
    assert torch.equal(first.gradient, other.gradient) == (name == "Exact()")
    state = torch.get_rng_state()
    draw(CASES[name](), SMOOTH.f, leaf(A, 5))
    assert torch.equal(torch.get_rng_state(), state)


@each_form
def test_copies(name: str) -> None:
    """By state_dict into one that was never called, by deepcopy, by pickle."""
    estimator = CASES[name]()
    for step in range(3):
        draw(estimator, SMOOTH.f, leaf(A, 50), step)
    loaded = CASES[name]()
    loaded.load_state_dict(copy.deepcopy(estimator.state_dict()))
    copies = [loaded, copy.deepcopy(estimator), pickle.loads(pickle.dumps(estimator))]
    expected = draw(estimator, SMOOTH.f, leaf(A, 50), 9).gradient
    for other in copies:
        assert torch.equal(draw(other, SMOOTH.f, leaf(A, 50), 9).gradient, expected)


@each_learning
def test_loading_matters(name: str) -> None:
    """Negative control of the one above: what was learnt is in the result."""
    estimator = warm(CASES[name](), SMOOTH.f, A)
    fresh = draw(CASES[name](), SMOOTH.f, leaf(A, 50)).gradient
    assert not torch.allclose(draw(estimator, SMOOTH.f, leaf(A, 50)).gradient, fresh)


@each_form
def test_repr(name: str) -> None:
    assert repr(CASES[name]()).startswith(name.split("(")[0] + "(")


# --- refusals -------------------------------------------------------------------------------


def total(b: Tensor) -> Tensor:
    return b.sum(-1)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_class_is_no_estimator(name: str) -> None:
    cls = ESTIMATORS[name]
    with pytest.raises(TypeError, match=rf"got the class {name}. Write estimator={name}\(\)"):
        expectation(total, torch.zeros(3), cls)  # type: ignore[arg-type]


@each_form
def test_f_of_a_wrong_shape(name: str) -> None:
    with pytest.raises(ValueError, match=r"one loss each.*got \(\).*last axis only"):
        expectation(lambda b: b.sum(), torch.zeros(2, 3), CASES[name]())


@each_form
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_losses_may_be_counts(name: str, dtype: torch.dtype) -> None:
    """A count or a yes, as the same number in floating point; it has no gradient in b."""

    def count(b: Tensor) -> Tensor:
        return b.sum(-1).round().to(dtype)

    if CASES[name]().needs_gradient_of_f:
        with pytest.raises(TypeError, match="expected f to be differentiable in b"):
            draw(CASES[name](), count, leaf(A, 20))
        return
    found = draw(CASES[name](), count, leaf(A, 500))
    expected = draw(CASES[name](), lambda b: count(b).to(b.dtype), leaf(A, 500))
    assert torch.equal(found.value, expected.value)
    assert torch.equal(found.gradient, expected.gradient)
    assert found.gradient.any()


@each_form
def test_losses_that_are_no_real_tensor(name: str) -> None:
    for f, got in ((lambda b: 1.5, "a float"), (lambda b: (b + 0j).sum(-1), "torch.complex64")):
        with pytest.raises(TypeError, match=rf"tensor of real losses.*got {got}.*torch.tensor\("):
            expectation(f, torch.zeros(2, 3), CASES[name]())  # type: ignore[arg-type]


@each_form
def test_context_where_it_is_of_no_use(name: str) -> None:
    estimator, context = CASES[name](), torch.zeros(2, 5)
    if estimator.uses_context:
        expectation(total, torch.zeros(2, 3), estimator, context=context)
        return
    with pytest.raises(ValueError, match=r"expected no context.*Leave context out"):
        expectation(total, torch.zeros(2, 3), estimator, context=context)


@pytest.mark.parametrize("name", [n for n, c in ESTIMATORS.items() if issubclass(c, ManySamples)])
@pytest.mark.parametrize("samples", [0, 1, 2.5, "2"])
def test_too_few_samples(name: str, samples: int) -> None:
    cls = ESTIMATORS[name]
    assert issubclass(cls, ManySamples)
    if samples == 1 and cls.fewest == 1:
        return
    with pytest.raises(
        ValueError, match=rf"samples expected a whole number of at least {cls.fewest}"
    ):
        cls(samples)


@pytest.mark.parametrize("name", ["FiniteDifferences", "SPSA", "NodePerturbation"])
@pytest.mark.parametrize("step", [0, -1.0, float("nan"), float("inf"), "0.1"])
def test_steps_are_positive(name: str, step: float) -> None:
    cls = getattr(hardgate.estimators, name)
    with pytest.raises(ValueError, match=r"step expected a positive number.*Write step=0\.1\."):
        cls(step)


def test_other_refusals() -> None:
    a = torch.zeros(3)
    with pytest.raises(TypeError, match=r"floating point logits.*int64"):
        expectation(total, a.long(), RLOO())
    with pytest.raises(TypeError, match="floating point logits"):
        expectation(total, torch.tensor(0.0), RLOO())
    with pytest.raises(TypeError, match=r"got str. Write estimator=hardgate.estimators.DisARM\(\)"):
        expectation(total, a, "DisARM")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"got StochasticBinary.*REINFORCE\('optimal'\)"):
        expectation(total, a, StochasticBinary())
    with pytest.raises(ValueError, match="baseline expected one of 'optimal', 'mean', got 'best'"):
        REINFORCE("best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="flips expected one of 'one', 'all', got 'two'"):
        StochasticAD("two")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at most 20 units, got 21"):
        expectation(total, torch.zeros(21), Exact())


def test_one_estimator_for_each_layer() -> None:
    """A per-unit state of other units is refused, not broadcast."""
    estimator = REINFORCE("optimal")
    draw(estimator, total, leaf(torch.zeros(3), 5))
    with pytest.raises(ValueError, match="expected the 3 units"):
        draw(estimator, total, leaf(torch.zeros(4), 5))


@pytest.mark.parametrize("unit", [hardgate.StraightThrough(), hardgate.NoisyRectifier()])
def test_units_go_in_too(unit: hardgate.Unit) -> None:
    a = leaf(A, 100)
    value = expectation(SMOOTH.f, a, unit, generator=seeded(0))
    expected = leaf(A, 100)
    SMOOTH.f(unit(expected, unit.sample_noise(expected, seeded(0)))).sum().backward()
    value.sum().backward()
    assert torch.equal(a.grad, expected.grad)  # type: ignore[arg-type]


def test_a_shared_draw_would_be_seen() -> None:
    """Negative control of test_examples_do_not_share_noise."""
    g = draw(RLOO(), SMOOTH.f, leaf(A, 10_000)).gradient.repeat_interleave(2, 0)
    assert largest_z(g[1:] * g[:-1], 0.0) > Z_WRONG


def test_coefficients_of_another_shape_are_refused() -> None:
    """Of another number of units, or stored with other options: they would broadcast."""
    learnt = DoubleCV(per_unit=True)
    draw(learnt, SMOOTH.f, leaf(A, 50))
    other = DoubleCV()
    other.load_state_dict(learnt.state_dict())
    with pytest.raises(ValueError, match=rf"shape \[{len(A)}\].*got \[\].*same options"):
        draw(other, SMOOTH.f, leaf(A, 2))
    with pytest.raises(ValueError, match=rf"shape \[{len(A)}\].*got \[{len(A) - 1}\]"):
        draw(learnt, lambda b: b.sum(-1), leaf(A[1:], 2))

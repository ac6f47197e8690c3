"""Estimators with learnt parts, and those that expand f: exact means, identities, what is learnt.

Facts that hold for every estimator are in test_estimators.py; here are proofs by enumeration and
quadrature, the negative controls, and that learning pays.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import exact_gradient
from hardgate.estimators import (
    ARMS,
    NVIL,
    REBAR,
    REINFORCE,
    RELAX,
    RODEO,
    DoubleCV,
    Estimate,
    Estimator,
    LinearCV,
    MuProp,
    QuadraticCV,
    rebar,
)
from hardgate.estimators._estimator import Context, Loss, Noise
from hardgate.estimators._relaxation import Relaxation, relax
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.estimator_cases import draw, leaf, seeded, warm
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

SMOOTH = PROBLEMS["smooth"]
F, A = SMOOTH.f, SMOOTH.logits

# Every form that learns something.
FORMS: dict[str, Callable[[], Estimator]] = {
    "NVIL": NVIL,
    "MuProp": lambda: MuProp("mean"),
    "DoubleCV": DoubleCV,
    "DoubleCV per unit": lambda: DoubleCV(per_unit=True),
    "RODEO": RODEO,
    "QuadraticCV": QuadraticCV,
    "LinearCV": LinearCV,
    "REBAR": REBAR,
    "REBAR with its temperature": lambda: REBAR(learn_temperature=True),
    "RELAX": lambda: RELAX(rate=0.01),
    "RELAX with its temperature": lambda: RELAX(rate=0.01, learn_temperature=True),
}
each_form = pytest.mark.parametrize("form", FORMS)


def linear(b: Tensor) -> Tensor:
    return b @ torch.tensor([1.0, -2.0, 3.0, 0.5]).to(b) + 7


def variance(estimator: Estimator, f: Loss, a: Tensor, rows: int = 20_000) -> float:
    """Σ_i Var(g_i) of the estimator as it stands."""
    frozen = copy.deepcopy(estimator)
    frozen.adapt = False
    return draw(frozen, f, leaf(a, rows), seed=1).gradient.var(0).sum().item()


# --- exact means ----------------------------------------------------------------------------


def mean_over_samples(estimator: Estimator, f: Loss, a: Tensor, K: int | None) -> Tensor:
    """E[g], summed over every value of the K samples (of the one sample, for None)."""
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=(K or 1) * len(a)))).double()
    b = states.view(len(states), K or 1, -1).transpose(0, 1)  # [K, N, D]
    p = torch.sigmoid(a)
    q = torch.where(b == 1, p, 1 - p).prod(-1).prod(0)
    u = (1 - b) * (1 - 2**-24)  # forces b
    estimator.adapt = False
    found = estimator.estimate(f, a.expand(len(states), -1), u[0] if K is None else u)
    return (q.unsqueeze(-1) * found.gradient.detach()).sum(0)


@pytest.mark.parametrize("stage", [0, 1, 30])
@pytest.mark.parametrize(
    ("make", "K"),
    [
        (RODEO, 2),
        (lambda: RODEO(3), 3),
        (QuadraticCV, 2),
        (lambda: QuadraticCV(3), 3),
        (DoubleCV, 2),
        (lambda: DoubleCV(per_unit=True), 2),
        (MuProp, None),
        (lambda: MuProp("optimal"), None),
        (NVIL, None),
    ],
)
def test_unbiased_by_enumeration(make: Callable[[], Estimator], K: int | None, stage: int) -> None:
    """Every value of the K samples, with the coefficients of several stages of training."""

    def f(b: Tensor) -> Tensor:  # of three units, not symmetric, not smooth
        return (b @ torch.tensor([1.0, -2.0, 0.7]).to(b) - 0.3).abs().exp() + b[..., 0] * b[..., 2]

    a = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    estimator = make().double()
    for step in range(stage):
        draw(estimator, f, leaf(a, 4), seed=step)
    torch.testing.assert_close(
        mean_over_samples(estimator, f, a, K), exact_gradient(f, a), rtol=1e-9, atol=1e-9
    )


def logistic_nodes(p: float, n: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Gauss nodes u, v and weights on the unit square, with a seam where b changes, u = 1 - p."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    x, w = torch.from_numpy(nodes + 1) / 2, torch.from_numpy(weights) / 2
    u, wu = torch.cat([x * (1 - p), 1 - p + x * p]), torch.cat([w * (1 - p), w * p])
    grid = torch.cartesian_prod(u, x)
    return grid[:, :1], grid[:, 1:], torch.cartesian_prod(wu, w).prod(-1, keepdim=True)


@pytest.mark.parametrize("a", [-2.0, 0.3, 1.5])
@pytest.mark.parametrize("form", ["REBAR", "REBAR with its temperature", "RELAX"])
def test_unbiased_by_quadrature(form: str, a: float) -> None:
    """One unit, its two numbers integrated; after some training."""

    def f(b: Tensor) -> Tensor:
        return (2 * b[..., 0] - 0.5).exp() + 1

    point = torch.tensor([a], dtype=torch.float64)
    estimator = warm(FORMS[form]().double(), f, point, steps=20, rows=50)
    u, v, weight = logistic_nodes(torch.sigmoid(point).item())
    found = estimator.estimate(f, point.expand_as(u), (u, v)).gradient
    torch.testing.assert_close(
        (weight * found).sum(0), exact_gradient(f, point), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("stage", [0, 5, 60])
@each_form
def test_unbiased_at_every_stage_of_training(form: str, stage: int) -> None:
    estimator = FORMS[form]()
    for step in range(stage):
        draw(estimator, F, leaf(A, 16), seed=step)
    estimator.adapt = False
    found = draw(estimator, F, leaf(A, 20_000), seed=stage)
    assert largest_z(found.gradient, exact_gradient(F, A)) < Z_LEVEL


# --- identities -----------------------------------------------------------------------------


def test_relax_without_its_network_is_rebar() -> None:
    """Bit for bit, step after step, η moving: the network is zero and has no rate."""
    one, other = REBAR(), RELAX(rate=0.0)
    for step in range(5):
        first, second = (draw(e, F, leaf(A, 20), seed=step) for e in (one, other))
        assert torch.equal(first.gradient, second.gradient)
        assert torch.equal(first.value, second.value)
    assert torch.equal(one.eta.value(), other.eta.value())
    assert not torch.equal(one.eta.value(), torch.tensor(1.0))


@pytest.mark.parametrize("make", [MuProp, DoubleCV, RODEO, QuadraticCV])
def test_a_linear_loss_has_no_variance(make: Callable[..., Estimator]) -> None:
    found = draw(make(adapt=False), linear, leaf(A, 200)).gradient
    torch.testing.assert_close(found, exact_gradient(linear, A).expand(200, -1))


def test_a_quadratic_loss_ends_without_variance() -> None:
    """Of what `DoubleCV` leaves, QuadraticCV leaves less than a thousandth."""
    f, a = PROBLEMS["quadratic"].f, PROBLEMS["quadratic"].logits
    learnt = warm(QuadraticCV().double(), f, a, steps=40)
    assert variance(learnt, f, a) < 1e-3 * variance(warm(DoubleCV(), f, a), f, a)


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (RODEO, DoubleCV),
        (lambda: RODEO(3), lambda: DoubleCV(3)),
        (QuadraticCV, DoubleCV),
        (lambda: QuadraticCV(4), lambda: DoubleCV(4)),
        (LinearCV, ARMS),
        (lambda: LinearCV(3), lambda: ARMS(3)),
        (NVIL, REINFORCE),
    ],
)
def test_where_they_start(new: Callable[[], Estimator], old: Callable[[], Estimator]) -> None:
    first, second = (draw(make(), F, leaf(A, 50)) for make in (new, old))
    torch.testing.assert_close(first.gradient, second.gradient)
    torch.testing.assert_close(first.value, second.value)


def test_nvil_normalised() -> None:
    """Over max(1, s): here s > 1, which is why it does not count as unbiased."""
    plain, normalised = (NVIL(normalise=n) for n in (False, True))
    for step in range(5):
        first, second = (
            draw(e, lambda b: 10 * F(b), leaf(A, 50), seed=step) for e in (plain, normalised)
        )
    torch.testing.assert_close(plain.moments.ratio(2), normalised.moments.ratio(2))
    ratio = (first.gradient.norm() / second.gradient.norm()).item()
    assert ratio > 3
    torch.testing.assert_close(first.gradient, ratio * second.gradient)
    assert plain.unbiased
    assert not normalised.unbiased


def test_z_given_b() -> None:
    """z̃ as printed, on b's side of zero, its slope by autograd; for moderate a."""
    a = torch.linspace(-4, 4, 9, dtype=torch.float64).repeat(200, 1).requires_grad_()
    u, v = (torch.rand(a.shape, dtype=torch.float64, generator=seeded(s)) for s in (0, 1))
    at = relax(a, (u, v))
    p = torch.sigmoid(a)
    v_prime = torch.where(at.b == 1, v * p + 1 - p, v * (1 - p))
    printed = a + torch.logit(v_prime)
    torch.testing.assert_close(at.z_tilde, printed)
    assert torch.equal((at.z_tilde > 0).double(), at.b)
    for z in (printed, at.z_tilde):
        (slope,) = torch.autograd.grad(z.sum(), a, retain_graph=True)
        torch.testing.assert_close(at.slope, slope)


# --- negative controls ----------------------------------------------------------------------


def test_rebar_without_the_slope_of_z_tilde_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    def draws() -> Tensor:
        return draw(warm(REBAR(), F, A), F, leaf(A, 40_000)).gradient

    def flat(a: Tensor, noise: Noise) -> Relaxation:
        at = relax(a, noise)
        return at._replace(slope=torch.ones_like(a))

    truth = exact_gradient(F, A)
    assert largest_z(draws(), truth) < Z_LEVEL
    monkeypatch.setattr(rebar, "relax", flat)
    assert largest_z(draws(), truth) > Z_WRONG


class Leaking(MuProp):
    """The expansion's own gradient gets into the value, as without a detach."""

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        value, gradient = super().estimate(f, a, noise, context)
        mean_field = f(torch.sigmoid(a))
        return Estimate(value + (mean_field - mean_field.detach()), gradient)


def test_a_control_variate_that_leaks_is_seen() -> None:
    """Into f's parameters: every row has a w of its own."""

    def z(estimator: Estimator) -> float:
        w, truth = leaf(A, 20_000), leaf(A)
        value = hardgate.expectation(
            lambda b: ((b * w).sum(-1) - 1).square(),
            leaf(A, 20_000),
            estimator,
            generator=seeded(0),
        )
        (found,) = torch.autograd.grad(value.sum(), w)
        exact = hardgate.exact_expectation(lambda b: ((b * truth).sum(-1) - 1).square(), A)
        return largest_z(found, torch.autograd.grad(exact, truth)[0])

    assert z(MuProp()) < Z_LEVEL
    assert z(Leaking()) > Z_WRONG


class MovedFirst(NVIL):
    """c and C_ψ contain the present sample when they are read."""

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        super().estimate(f, a, noise, context)
        self._learning = False
        return super().estimate(f, a, noise, context)


def test_nvil_moved_before_it_is_read_is_biased() -> None:
    """A stream of single examples, each read and then learnt."""

    def stream(estimator: Estimator) -> Tensor:
        a, generator = A.unsqueeze(0), seeded(0)
        found = []
        for _ in range(3000):
            estimator._learning = True
            noise = estimator.sample_noise(a, generator)
            found.append(estimator.estimate(F, a, noise).gradient)
        return torch.cat(found[50:])

    truth = exact_gradient(F, A)
    assert largest_z(stream(NVIL(decay=0.5)), truth) < Z_LEVEL
    assert largest_z(stream(MovedFirst(decay=0.5)), truth) > Z_WRONG


# --- learning pays --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "problem", "factor"),
    [
        (REBAR, "sparse", 0.95),
        (lambda: REBAR(0.1, learn_temperature=True), "smooth", 0.5),
        (DoubleCV, "quadratic", 0.95),
        (lambda: DoubleCV(per_unit=True), "sparse", 0.8),
        (RODEO, "smooth", 0.8),
        (QuadraticCV, "smooth", 0.1),
        (LinearCV, "smooth", 0.1),
        (lambda: MuProp("mean"), "quadratic", 0.8),
    ],
)
def test_learning_reduces_the_variance(
    make: Callable[[], Estimator], problem: str, factor: float
) -> None:
    """Against the same estimator as it starts, by more than the given factor."""
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    start, learnt = make(), warm(make(), f, a, steps=60)
    assert variance(learnt, f, a) < factor * variance(start, f, a)


def test_the_network_of_relax_reduces_the_variance() -> None:
    """Below REBAR's, whose η is the best there is."""
    f, a = PROBLEMS["kinked"].f, PROBLEMS["kinked"].logits
    with_network = warm(RELAX(rate=0.03), f, a, steps=150, rows=200)
    without = warm(RELAX(rate=0.0), f, a, steps=150, rows=200)
    assert variance(with_network, f, a) < 0.7 * variance(without, f, a)


def test_the_network_of_nvil_sees_the_context() -> None:
    """A loss that depends on x by much: with x the variance nearly goes, without it stays."""
    x = torch.linspace(-1, 1, 64).unsqueeze(-1)

    def f(b: Tensor) -> Tensor:
        return b.sum(-1) + 10 * x[:, 0]

    def learnt(context: Tensor | None) -> float:
        estimator, a = NVIL(rate=0.03), torch.zeros(64, 2)
        for step in range(200):
            hardgate.expectation(
                f, a.requires_grad_(), estimator, context=context, generator=seeded(step)
            )
        estimator.adapt = False
        u = torch.rand(500, 64, 2, generator=seeded(1))
        rows = None if context is None else context.expand(500, -1, -1)
        g = estimator.estimate(f, a.detach().expand(500, -1, -1), u, rows).gradient
        return g.var(0).sum(-1).mean().item()

    assert learnt(x) < 0.1 * learnt(None)


def test_rodeo_has_no_more_variance_than_double_cv() -> None:
    """At equal evaluations, on every problem where f is smooth."""
    for problem, K in itertools.product(["smooth", "quadratic", "multilinear", "sparse"], [2, 4]):
        f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
        rodeo, double = (warm(make(K), f, a) for make in (RODEO, DoubleCV))
        assert variance(rodeo, f, a) < 0.9 * variance(double, f, a)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_our_own_against_the_best_of_their_kind(problem: str) -> None:
    """At two evaluations: with ∇f against RODEO, without it against DisARM."""
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    quadratic, rodeo, slope, arms = (
        variance(warm(make(), f, a), f, a) for make in (QuadraticCV, RODEO, LinearCV, ARMS)
    )
    assert quadratic < 0.25 * rodeo
    assert slope < 0.4 * arms


# --- state ----------------------------------------------------------------------------------


@each_form
def test_resumed_training_goes_on_as_if_never_stopped(form: str) -> None:
    whole = FORMS[form]()
    for step in range(4):
        draw(whole, F, leaf(A, 20), seed=step)
    resumed = FORMS[form]()
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for step in range(4, 8):
        first, second = (draw(e, F, leaf(A, 20), seed=step) for e in (whole, resumed))
        assert torch.equal(first.gradient, second.gradient)
    assert all(
        torch.equal(x, y)
        for x, y in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True)
    )


@each_form
def test_what_is_learnt_is_no_parameter_and_has_no_graph(form: str) -> None:
    w, a, estimator = leaf(A), leaf(A, 8), FORMS[form]()
    for _ in range(2):
        value = hardgate.expectation(lambda b: ((b * w).sum(-1) - 1).square(), a, estimator)
        assert w.grad is None
        assert a.grad is None
    value.sum().backward()
    assert not list(estimator.parameters())
    assert not any(buffer.requires_grad for buffer in estimator.buffers())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@each_form
def test_extreme_logits_are_finite(form: str, dtype: torch.dtype) -> None:
    estimator = FORMS[form]()
    a = torch.tensor([40.0, -40.0, 0.5, -100.0], dtype=dtype)
    for step in range(4):
        found = draw(estimator, F, leaf(a, 100), seed=step)
        assert found.gradient.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in estimator.state_dict().values())


@each_form
def test_a_batch_that_is_not_finite_spoils_nothing(form: str) -> None:
    estimator = FORMS[form]()
    draw(estimator, F, leaf(A, 20))
    before = copy.deepcopy(estimator.state_dict())
    draw(estimator, lambda b: F(b) * torch.nan, leaf(A, 20), seed=1)
    after = estimator.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in after)


# --- the parts ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_network_of_nvil_takes_any_precision(dtype: torch.dtype) -> None:
    nvil, a = NVIL(), torch.zeros(6, 4, dtype=dtype, requires_grad=True)
    for context in (torch.ones(6, 3, dtype=torch.float64), torch.ones(6, 3, dtype=torch.bfloat16)):
        hardgate.expectation(linear, a, nvil, context=context).sum().backward()
    assert nvil.network.adam.steps == 2


@functools.cache
def used(form: str) -> Estimator:
    estimator = FORMS[form]()
    draw(estimator, linear, leaf(A, 5))
    return estimator


def test_refusals() -> None:
    for cls, temperature in itertools.product((REBAR, RELAX), (0, -1.0, float("nan"))):
        with pytest.raises(ValueError, match=r"positive number, got.*Write temperature=0.5"):
            cls(temperature)
    refused = r"expected the (4 inputs|shape \[4\]|shape \[4, 4\]) that.*got (3|\[3).*of its own"
    for form in ("RELAX", "QuadraticCV", "LinearCV"):
        with pytest.raises(ValueError, match=refused):
            draw(used(form), lambda b: b.sum(-1), leaf(torch.zeros(3), 5))
    nvil, a = NVIL(), leaf(A.float(), 5)
    hardgate.expectation(linear, a, nvil, context=torch.zeros(5, 2))
    with pytest.raises(ValueError, match=r"expected the 2 inputs.*got 3"):
        hardgate.expectation(linear, a, nvil, context=torch.zeros(5, 3))


def test_context_of_any_shape_is_flattened() -> None:
    """Images `[B, 1, 3, 3]` beside logits `[B, D]`."""
    nvil = NVIL(hidden=4)
    hardgate.expectation(linear, leaf(A.float(), 5), nvil, context=torch.zeros(5, 1, 3, 3))
    assert nvil.network.weights.shape == (4 * 9 + 2 * 4 + 1,)

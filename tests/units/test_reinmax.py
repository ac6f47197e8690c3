"""ReinMax: where it is exact, and what its control variate does and does not change."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad

from hardgate import ReinMax, StraightThrough, exact_gradient
from hardgate.learning.coefficients import Coefficient
from hardgate_lab.rig.measure import gradient_samples
from hardgate_lab.rig.problems import PROBLEMS, GradientProblem
from tests.support.enumeration import (
    A,
    expected,
    outcome_gradients,
    outcome_noise,
    outcomes,
    variance,
)
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z
from tests.support.transforms import TRANSFORMS

each_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))


def cubic(h: Tensor) -> Tensor:
    return h.pow(3).sum(-1)


def control_of(unit: ReinMax) -> Coefficient:
    assert unit.control is not None
    return unit.control


def learnt(problem: GradientProblem, size: int = 1000) -> ReinMax:
    """A unit whose control variate has seen 20 batches of this size."""
    unit, generator = ReinMax(control_variate=True).double(), torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient_samples(unit, problem.f, problem.logits, size, generator)
    control_of(unit).eval()
    return unit


# --- where it is exact ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["multilinear", "quadratic"])
def test_exact_for_losses_quadratic_in_each_unit(name: str) -> None:
    problem = PROBLEMS[name]
    truth = exact_gradient(problem.f, problem.logits)
    torch.testing.assert_close(expected(ReinMax(), problem.f, problem.logits), truth)


def test_not_beyond_and_straight_through_not_so_far() -> None:
    """Negative controls: a cubic for ReinMax, the quadratic for ST × σ'."""
    f, p = PROBLEMS["quadratic"].f, A.sigmoid()
    straight = StraightThrough(sigmoid_derivative=True)
    off = expected(straight, f, A) - exact_gradient(f, A)
    assert off.abs().max() > 0.1
    torch.testing.assert_close(exact_gradient(cubic, A), p * (1 - p))
    torch.testing.assert_close(expected(ReinMax(), cubic, A), 1.5 * p * (1 - p))  # trapezoid


def test_the_formula_is_the_general_one() -> None:
    """Liu et al.'s Algorithm 2, on two categories: 2·((D + π)/2)-softmax step less π/2's."""
    b, p = outcomes(4), A.sigmoid()
    middle = (b + p) / 2
    general = 2 * middle * (1 - middle) - p * (1 - p) / 2
    g, _ = outcome_gradients(ReinMax(), lambda h: h.sum(-1), A)
    torch.testing.assert_close(g, general)
    torch.testing.assert_close(g, (b - p).abs() / 2)


# --- the control variate --------------------------------------------------------------------


@each_problem
def test_the_same_mean_and_less_variance(problem: GradientProblem) -> None:
    """Exactly, by enumeration, with what was learnt from past samples."""
    plain, unit = ReinMax(), learnt(problem)
    assert (control_of(unit).value() != 0).all()
    mean = expected(unit, problem.f, problem.logits)
    torch.testing.assert_close(mean, expected(plain, problem.f, problem.logits))
    reduced = variance(unit, problem.f, problem.logits)
    full = variance(plain, problem.f, problem.logits)
    assert reduced.sum() < 0.97 * full.sum()
    assert (reduced < 1.001 * full).all()


@each_problem
def test_the_learnt_multiple_is_the_best(problem: GradientProblem) -> None:
    """Corollary 1: c = -E[g v]/E[v²]; no other multiple has less variance."""
    unit = learnt(problem, size=10_000)
    best = copy.deepcopy(unit)
    g, q = outcome_gradients(ReinMax(), problem.f, problem.logits)
    b, p = outcomes(len(problem.logits)), problem.logits.sigmoid()
    v = p * (1 - p) - (b - p).abs() / 2
    set_multiple(best, -(q * g * v).sum(0) / (q * v.square()).sum(0))
    least = variance(best, problem.f, problem.logits)
    assert (variance(unit, problem.f, problem.logits) < 1.02 * least).all()
    for factor in (0.5, 1.5):
        other = copy.deepcopy(best)
        set_multiple(other, factor * control_of(best).value())
        assert (variance(other, problem.f, problem.logits) > least).all()


def set_multiple(unit: ReinMax, c: Tensor) -> None:
    control_of(unit).numerator, control_of(unit).denominator = c, torch.ones_like(c)


def test_the_mean_gradient_as_the_multiple_can_do_harm() -> None:
    """Why c is not simply the mean of ∂L/∂h: on the smooth problem that adds variance."""
    problem = PROBLEMS["smooth"]
    h = outcomes(4).requires_grad_()
    (slopes,) = torch.autograd.grad(problem.f(h).sum(), h)
    _, q = outcome_gradients(ReinMax(), problem.f, problem.logits)
    unit = learnt(problem)
    set_multiple(unit, (q * slopes).sum(0))
    plain = variance(ReinMax(), problem.f, problem.logits).sum()
    assert variance(unit, problem.f, problem.logits).sum() > 1.1 * plain


def test_c_is_read_before_the_batch_moves_it() -> None:
    """And taken in the forward pass: no later use of the unit in the same pass enters it."""
    unit, plain = ReinMax(control_variate=True), ReinMax()
    a, u = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.rand(8, 3)

    def gradients(unit: ReinMax) -> tuple[Tensor, Tensor]:
        x, y = a.clone().requires_grad_(), a.clone().requires_grad_()
        second = unit(y + unit(x, u), u)
        gx, gy = torch.autograd.grad(second.square().sum(), (x, y))
        return gx, gy

    torch.testing.assert_close(gradients(unit), gradients(plain), rtol=0, atol=0)
    assert control_of(unit).numerator.abs().min() > 0
    assert not torch.equal(gradients(unit)[0], gradients(plain)[0])


def test_a_multiple_that_contains_the_sample_is_biased() -> None:
    """Negative control: c fitted to the very batch that it corrects, of 4 samples."""
    problem, unit = PROBLEMS["quadratic"], ReinMax()
    generator = torch.Generator().manual_seed(0)
    truth = exact_gradient(problem.f, problem.logits)
    n, p = 50_000, problem.logits.sigmoid()
    points = problem.logits.expand(n, 4, 4).clone().requires_grad_()
    h = unit(points, torch.rand(n, 4, 4, generator=generator))
    (g,) = torch.autograd.grad(problem.f(h).sum(), points)
    v = p * (1 - p) - (h.detach() - p).abs() / 2
    c = -(g * v).sum(1, keepdim=True) / v.square().sum(1, keepdim=True)
    assert largest_z(g.mean(1), truth) < Z_LEVEL
    assert largest_z((g + c * v).mean(1), truth) > Z_WRONG


# --- where hooks do not run -----------------------------------------------------------------


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_under_transforms_it_is_plain_and_frozen(transform: str) -> None:
    unit = learnt(PROBLEMS["smooth"]).float()
    control_of(unit).train()
    before = copy.deepcopy(unit.state_dict())
    a = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    u = torch.rand(5, 4, generator=torch.Generator().manual_seed(1))

    def loss(unit: ReinMax) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        return lambda a, u: ((h := unit(a, u)).sum(-1).square().sum(), h.detach())

    torch._dynamo.reset()
    gradient, h = TRANSFORMS[transform](loss(unit))(a, u)  # type: ignore[arg-type]
    plain, same = TRANSFORMS["grad"](loss(ReinMax()))(a, u)  # type: ignore[arg-type]
    torch.testing.assert_close(gradient, plain)
    assert torch.equal(h, same)
    for name, tensor in unit.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_vmap_inside_grad_is_plain_too() -> None:
    unit = learnt(PROBLEMS["smooth"])
    u = outcome_noise(outcomes(4))

    def total(unit: ReinMax) -> Callable[[Tensor], Tensor]:
        return lambda a: torch.vmap(lambda v: unit(a, v))(u).square().sum()

    torch.testing.assert_close(grad(total(unit))(A), grad(total(ReinMax()))(A))


# --- state ----------------------------------------------------------------------------------


def step(unit: ReinMax, a: Tensor, scale: float = 1.0) -> None:
    (unit(a.clone().requires_grad_()) * scale).square().sum().backward()


def test_the_multiple_moves_in_training_only() -> None:
    a = torch.randn(16, 3)
    for part in ("", "control"):
        unit = ReinMax(control_variate=True, eval_mode="sample")
        step(unit, a)
        before = copy.deepcopy(unit.state_dict())
        unit.get_submodule(part).eval()
        step(unit, a)
        assert all(torch.equal(t, before[n]) for n, t in unit.state_dict().items())
    with torch.no_grad():
        unit.train()(a)  # no gradient, nothing to learn
    assert all(torch.equal(t, before[n]) for n, t in unit.state_dict().items())


def test_a_bad_batch_does_not_stay() -> None:
    unit, a = ReinMax(control_variate=True), torch.randn(16, 3)
    step(unit, a)
    before = control_of(unit).value()
    step(unit, a, scale=float("nan"))
    assert torch.equal(control_of(unit).value(), before)


def test_refusals() -> None:
    unit = ReinMax(control_variate=True)
    step(unit, torch.randn(4, 3))
    with pytest.raises(ValueError, match=r"expected the shape \[3\].*got \[5\].*unit of its own"):
        unit(torch.randn(4, 5, requires_grad=True))
    with pytest.raises(ValueError, match=r"decay expected a number in \[0, 1\), got 1.0"):
        ReinMax(control_variate=True, decay=1.0)

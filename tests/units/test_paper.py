"""The paper's propositions, theorem and corollary by name, exact where the noise can be enumerated.

Uniform noise is enumerated by its midpoints (k + ½)/N, logistic noise by their logits, and a
binary vector b is forced through a unit by u = 0 where b = 1 and u = 1 - 2⁻²⁴ where b = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import StochasticBinary, StochasticTimesSmooth, StraightThrough, functional
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

GRID = (torch.arange(1_000_000, dtype=torch.float64) + 0.5) / 1_000_000
POINTS = [-3.0, -0.7, 0.0, 1.3]
F = PROBLEMS["smooth"].f
A = PROBLEMS["smooth"].logits  # [4]
Loss = Callable[[Tensor], Tensor]


def all_binary(D: int) -> Tensor:
    return ((torch.arange(2**D).unsqueeze(-1) >> torch.arange(D)) & 1).double()


def forcing(b: Tensor) -> Tensor:
    """The uniform noise that makes a unit with 0 < p < 1 output b."""
    return (1 - b) * (1 - 2**-24)


def probability(b: Tensor, a: Tensor) -> Tensor:
    p = torch.sigmoid(a)
    return torch.where(b == 1, p, 1 - p).prod(-1)


def score_draws(unit: StochasticBinary, f: Loss, a: Tensor, b: Tensor) -> Tensor:
    """The library's gradient at `a` for each b `[N, D]`, through h and through the score."""
    points = a.expand(len(b), -1).clone().requires_grad_()
    h = unit(points, forcing(b))
    assert torch.equal(h, b)
    losses = f(h)
    loss = losses.sum() + len(b) * hardgate.score_loss(unit, losses, update_baselines=False)
    (gradient,) = torch.autograd.grad(loss, points)
    return gradient


def constant_baseline(value: Tensor) -> StochasticBinary:
    unit = StochasticBinary("optimal").double()
    unit.load_state_dict(
        {**unit.state_dict(), "baseline.numerator": value, "baseline.denominator": value * 0 + 1}
    )
    return unit


def optimal(f: Loss, a: Tensor) -> Tensor:
    """L̄_i of Cor. 1, by enumeration."""
    b = all_binary(len(a))
    weight = probability(b, a).unsqueeze(-1) * (b - torch.sigmoid(a)).square()
    return (weight * f(b).unsqueeze(-1)).sum(0) / weight.sum(0)


def variance(f: Loss, a: Tensor, baseline: Tensor) -> Tensor:
    """The exact variance of each unit's estimate with this baseline."""
    b = all_binary(len(a))
    q, g = probability(b, a).unsqueeze(-1), score_draws(constant_baseline(baseline), f, a, b)
    return (q * g.square()).sum(0) - (q * g).sum(0).square()


# --- §2.1, Proposition 1 --------------------------------------------------------------------


@pytest.mark.parametrize("a", POINTS)
def test_proposition_1a(a: float) -> None:
    """Logistic noise: P(h > 0) = σ(a)."""
    h = functional.noisy_rectifier(torch.full_like(GRID, a), torch.logit(GRID))
    assert (h > 0).double().mean().item() == pytest.approx(1 / (1 + math.exp(-a)), abs=2e-6)


@pytest.mark.parametrize("a", POINTS)
def test_proposition_1b(a: float) -> None:
    """Logistic noise: E[h] = softplus(a); Gaussian noise has another mean (negative control)."""
    softplus = math.log1p(math.exp(a))
    h = functional.noisy_rectifier(torch.full_like(GRID, a), torch.logit(GRID))
    assert h.mean().item() == pytest.approx(softplus, abs=2e-5)
    gaussian = functional.noisy_rectifier(torch.full_like(GRID, a), torch.special.ndtri(GRID))
    assert abs(gaussian.mean().item() - softplus) > 1e-2


# --- §2.2, Proposition 2 --------------------------------------------------------------------


def sts_mean(f: Loss, a: Tensor) -> Tensor:
    """E f(h) of one STS unit over both values of b."""
    on = functional.stochastic_times_smooth(a, torch.zeros_like(a))
    off = functional.stochastic_times_smooth(a, torch.full_like(a, 1 - 2**-24))
    root = torch.sigmoid(a).sqrt()
    assert (off == 0).all()
    return root * f(on) + (1 - root) * f(off)


def test_proposition_2a() -> None:
    """E[h] = p."""
    a = torch.tensor(POINTS, dtype=torch.float64)
    torch.testing.assert_close(sts_mean(lambda h: h, a), torch.sigmoid(a))


def test_proposition_2b() -> None:
    """P(h > 0) = √p."""
    for a in POINTS:
        h = functional.stochastic_times_smooth(torch.full_like(GRID, a), GRID)
        expected = (1 / (1 + math.exp(-a))) ** 0.5
        assert (h > 0).double().mean().item() == pytest.approx(expected, abs=2e-6)


def test_proposition_2c() -> None:
    """(E f(h) - f(p)) / p^1.5 → f''(0)/2 as p → 0, which a plain Bernoulli(p) unit misses.

    At the printed order o(√p) the statement holds for Bernoulli(p) as well, and could not fail.
    """
    p = torch.logspace(-3, -7, 5, dtype=torch.float64)
    f = torch.exp  # f''(0)/2 = ½
    ratio = (sts_mean(f, torch.logit(p)) - f(p)) / p**1.5
    torch.testing.assert_close(ratio, torch.full_like(p, 0.5), atol=0.02, rtol=0)
    binary = ((1 - p) * f(0 * p) + p * f(0 * p + 1) - f(p)) / p**1.5
    assert (binary[1:] > 2 * binary[:-1]).all()  # grows like 1/√p: the negative control


def test_erratum_2_plain_back_propagation_halves_the_sts_gradient() -> None:
    """E[∂h/∂a] = ½ p(1-p) with b held constant; passing the gradient through b restores 1."""
    for corrected, factor in [(False, 0.5), (True, 1.0)]:
        unit = StochasticTimesSmooth(corrected)
        a = torch.tensor(POINTS, dtype=torch.float64).repeat(2, 1).requires_grad_()
        u = forcing(torch.tensor([[1.0], [0.0]], dtype=torch.float64)).expand_as(a)
        root = torch.sigmoid(a.detach()[0]).sqrt()
        weights = torch.stack([root, 1 - root])
        (gradient,) = torch.autograd.grad((weights * unit(a, u)).sum(), a)
        p = torch.sigmoid(a.detach()[0])
        torch.testing.assert_close(gradient.sum(0), factor * p * (1 - p))


# --- §3, Eq. 3, Theorem 1 -------------------------------------------------------------------


@pytest.mark.parametrize("a", POINTS)
def test_equation_3(a: float) -> None:
    """P(h = 1) = σ(a), which the printed inequality 1[z > σ(a)] does not give."""
    p = 1 / (1 + math.exp(-a))
    h = functional.stochastic_binary(torch.full_like(GRID, a), GRID)
    assert h.mean().item() == pytest.approx(p, abs=2e-6)
    printed = (torch.sigmoid(torch.tensor(a)) < GRID).double()
    assert printed.mean().item() == pytest.approx(1 - p, abs=2e-6)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_theorem_1(problem: str) -> None:
    """E[(h - σ(a)) L] = ∂E[L]/∂a, summed over every h."""
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    b = all_binary(len(a))
    mean = (probability(b, a).unsqueeze(-1) * score_draws(StochasticBinary(None), f, a, b)).sum(0)
    torch.testing.assert_close(mean, hardgate.exact_gradient(f, a))


def test_theorem_1_fails_for_the_printed_inequality() -> None:
    """Negative control: with P(h = 1) = 1 - σ(a) the same estimator is wrong."""
    b = all_binary(len(A))
    draws = score_draws(StochasticBinary(None), F, A, b)
    mean = (probability(b, -A).unsqueeze(-1) * draws).sum(0)
    assert (mean - hardgate.exact_gradient(F, A)).norm() > hardgate.exact_gradient(F, A).norm()


# --- Corollary 1 ----------------------------------------------------------------------------


@pytest.mark.parametrize("constant", [-3.0, 0.5, 100.0])
def test_corollary_1_unbiased_for_any_baseline(constant: float) -> None:
    b = all_binary(len(A))
    unit = constant_baseline(constant * torch.tensor([1.0, -2.0, 0.3, 5.0]).double())
    mean = (probability(b, A).unsqueeze(-1) * score_draws(unit, F, A, b)).sum(0)
    torch.testing.assert_close(mean, hardgate.exact_gradient(F, A), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("problem", ["smooth", "quadratic", "sparse"])
def test_corollary_1_least_variance(problem: str) -> None:
    """On a grid of baselines around it, L̄_i has the least variance, unit by unit."""
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    best = optimal(f, a)
    least = variance(f, a, best)
    for offset in (-1.0, -0.1, -0.01, 0.01, 0.1, 1.0):
        assert (variance(f, a, best + offset) > least).all()
    mean_loss = hardgate.exact_expectation(f, a).expand_as(a)
    assert (variance(f, a, mean_loss) > least).all()  # better than the mean loss, too


@pytest.mark.parametrize("a", POINTS)
def test_corollary_1_single_unit_has_no_variance(a: float) -> None:
    def f(h: Tensor) -> Tensor:
        return (3 * h[..., 0] - 1).exp()

    point = torch.tensor([a], dtype=torch.float64)
    draws = score_draws(constant_baseline(optimal(f, point)), f, point, all_binary(1))
    torch.testing.assert_close(draws[0], draws[1])
    torch.testing.assert_close(draws[0], hardgate.exact_gradient(f, point))


def test_corollary_1_moving_averages_find_the_optimal_baseline() -> None:
    unit, generator = StochasticBinary(decay=0.0).double(), torch.Generator().manual_seed(0)
    a = A.expand(400_000, -1).clone().requires_grad_()
    losses = F(unit(a, unit.sample_noise(a, generator)))
    hardgate.score_loss(unit, losses)
    assert unit.baseline is not None
    torch.testing.assert_close(unit.baseline.value(), optimal(F, A), rtol=3e-3, atol=0)


def test_a_baseline_that_contains_the_current_sample_is_biased() -> None:
    """Negative control: read after the update, L̄ follows L and the gradient shrinks."""
    n, generator = 8_000, torch.Generator().manual_seed(0)
    truth = hardgate.exact_gradient(F, A)

    def draws(read_before_update: bool) -> Tensor:
        h = (torch.rand(n, len(A), generator=generator) < torch.sigmoid(A)).double()
        score, losses = h - torch.sigmoid(A), F(h).unsqueeze(-1)
        baseline = hardgate.baselines.OptimalBaseline(decay=0.5).double()
        out = []
        for s, L in zip(score.split(1), losses.split(1), strict=True):
            before = baseline.value()
            baseline.step([s], [L])
            out.append(s * (L - (before if read_before_update else baseline.value())))
        return torch.cat(out[100:])

    assert largest_z(draws(read_before_update=True), truth) < Z_LEVEL
    assert largest_z(draws(read_before_update=False), truth) > Z_WRONG


# --- §4 -------------------------------------------------------------------------------------


def test_straight_through_copies_the_gradient() -> None:
    """∂L/∂a := ∂L/∂h, for sampled and thresholded units, off units included."""
    w = torch.tensor([1.0, -2.0, 3.0])
    for unit in (StraightThrough(), StraightThrough(sample=False)):
        a = torch.tensor([-2.0, 0.5, 2.0], requires_grad=True)
        (gradient,) = torch.autograd.grad((unit(a) * w).sum(), a)
        assert torch.equal(gradient, w)


def test_straight_through_can_have_the_wrong_sign() -> None:
    """Erratum 7: f(h) = 4h³ - 6h² + h pushes a the wrong way in a single layer."""

    def f(h: Tensor) -> Tensor:
        return (4 * h**3 - 6 * h**2 + h).sum(-1)

    a = torch.zeros(64, 1, requires_grad=True)
    (gradient,) = torch.autograd.grad(f(StraightThrough()(a)).sum(), a)
    assert (gradient > 0).all()
    assert hardgate.exact_gradient(f, torch.zeros(1)).item() < 0


# --- Appendix -------------------------------------------------------------------------------


def test_appendix_a2_beta_noise() -> None:
    """The mode is the target rate and the sigmoid of the scaled mode is the rate."""
    noise = hardgate.noise.Beta(40.1, rate=0.1)
    mode = (noise.alpha - 1) / (noise.alpha + noise.beta - 2)
    assert mode == pytest.approx(0.1)
    assert 1 / (1 + math.exp(-noise.scale * mode)) == pytest.approx(0.1)
    assert noise.alpha == pytest.approx(5.344, abs=1e-3)
    assert noise.mean == pytest.approx(-2.584, abs=1e-3)

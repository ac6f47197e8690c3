"""How estimators relate: identities, dominance, and wrong ones that must be caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hardgate import exact_gradient, expectation
from hardgate.estimators import (
    ARM,
    ARMS,
    REINFORCE,
    RLOO,
    UGC,
    BitFlip,
    DisARM,
    Exact,
    LocalExpectation,
    StochasticAD,
)
from hardgate.estimators._flips import draw_unit, unit_by_unit
from hardgate.estimators._odds import Odds
from hardgate.estimators.arms import debias, dirichlet_copula
from hardgate.estimators.disarm import antithetic
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.estimator_cases import draw, draws, each_problem, leaf, seeded
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

SMOOTH = PROBLEMS["smooth"]
ROWS = 20_000


def total_variance(name: str, problem: str) -> float:
    return draws(name, problem).gradient.var(0).sum().item()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=seeded(seed))


# --- identities -----------------------------------------------------------------------------


@each_problem
def test_exact_is_exact(problem: str) -> None:
    found = draws("Exact()", problem)
    expected = exact_gradient(PROBLEMS[problem].f, PROBLEMS[problem].logits)
    torch.testing.assert_close(found.gradient, expected.expand_as(found.gradient))


def test_exact_in_parts_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are computed again in the backward pass: of logits and of parameters in f."""

    def gradients() -> tuple[Tensor, Tensor]:
        a, w = leaf(SMOOTH.logits, 3), leaf(torch.ones(4, dtype=torch.float64))
        expectation(lambda b: (b @ w).square() + (b @ w).tanh(), a, Exact()).sum().backward()
        assert a.grad is not None
        assert w.grad is not None
        return a.grad, w.grad

    whole = gradients()
    monkeypatch.setattr("hardgate.enumeration._CHUNK_NUMBERS", 60)  # 5 of the 16 states at a time
    torch.testing.assert_close(gradients(), whole)


@each_problem
def test_arms_with_two_samples_is_disarm(problem: str) -> None:
    """Pathwise: the copula of two is an antithetic pair, the debias factor σ(|a|)."""
    f, a = PROBLEMS[problem].f, leaf(PROBLEMS[problem].logits, ROWS).detach()
    pair = noise(2, *a.shape).double()
    E = -torch.log1p(-pair)
    first, second = 1 - E / E.sum(0)
    u = torch.where(a > 0, first, second)
    torch.testing.assert_close(dirichlet_copula(Odds.of(a), pair), antithetic(Odds.of(a), u))
    disarm = DisARM().estimate(f, a, u)
    for drawn in (pair, u.unsqueeze(0)):  # as for any K, and as ARMS(2) draws
        arms = ARMS(2).estimate(f, a, drawn)
        torch.testing.assert_close(arms.gradient, disarm.gradient)
        torch.testing.assert_close(arms.value, disarm.value)
    assert [len(ARMS(K).sample_noise(a)) for K in (2, 3)] == [1, 3]


@pytest.mark.parametrize("K", [2, 3, 4, 8])
def test_debias_is_the_printed_formula_where_that_is_finite(K: int) -> None:
    a = torch.linspace(-8, 8, 33, dtype=torch.float64)
    p, q = torch.sigmoid(a), torch.sigmoid(-a)
    small = (2 * p ** (1 / (K - 1)) - 1).clamp(min=0) ** (K - 1)
    large = 2 * p - 1 + (2 * q ** (1 / (K - 1)) - 1).clamp(min=0) ** (K - 1)
    J = torch.where(p < 0.5, small, large)
    torch.testing.assert_close(debias(Odds.of(a), K), p * q / (p - J), rtol=1e-6, atol=0)
    far = debias(Odds.of(torch.tensor([40.0, -40.0, 1e4, -1e4, torch.inf])), K)
    torch.testing.assert_close(far, torch.ones(5))


@pytest.mark.parametrize("p", [1e-4, 0.05, 0.4, 0.5, 0.7, 1 - 1e-4])
@pytest.mark.parametrize("K", [2, 3, 4])
def test_the_copula_has_the_law_it_is_debiased_for(K: int, p: float) -> None:
    """Each of the K is a sample of b, and 1/(1 - ρ) is the factor."""
    a = torch.logit(torch.tensor(p, dtype=torch.float64)).expand(1_000_000, 1)
    b = dirichlet_copula(Odds.of(a), noise(1 if K == 2 else K, *a.shape))
    assert largest_z(b.mean(0), p) < Z_LEVEL
    # E[(b_j - b_k)²] = 2p(1-p)(1 - ρ)
    apart = (b[0] - b[1]).square() * debias(Odds.of(a), K) / 2
    assert largest_z(apart, p * (1 - p)) < Z_LEVEL


@each_problem
def test_ugc_is_disarm_where_no_unit_is_rare(problem: str) -> None:
    here = PROBLEMS[problem]
    a = leaf(here.logits / 8, ROWS).detach()  # every p near ½
    u, v = noise(*a.shape), noise(len(a), 1, seed=1)
    for ugc in (UGC(), UGC(among_rare=True)):
        found, expected = ugc.estimate(here.f, a, (u, v)), DisARM().estimate(here.f, a, u)
        assert torch.equal(found.gradient, expected.gradient)
        assert torch.equal(found.value, expected.value)


@each_problem
def test_ugc_is_bitflip_where_every_unit_is_rare(problem: str) -> None:
    here = PROBLEMS[problem]
    a = leaf(here.logits - 4, ROWS).detach()
    u, v = noise(*a.shape), noise(len(a), 1, seed=1)
    for ugc in (UGC(), UGC(among_rare=True)):
        found = ugc.estimate(here.f, a, (u.double(), v)).gradient
        # the first of UGC's pair is 1[u > 1-p], that of bitflip 1[u < p]
        expected = BitFlip().estimate(here.f, a, (1 - u.double(), v)).gradient
        assert torch.equal(found, expected)


def test_one_unit_alone() -> None:
    """Its optimal baseline, and summing it out, leave no variance at all (Corollary 1)."""
    a = torch.tensor([-0.7], dtype=torch.float64)
    p = torch.sigmoid(a)

    def f(b: Tensor) -> Tensor:
        return 5 - 3 * b.squeeze(-1)

    w = torch.stack([(1 - p) * p**2, p * (1 - p) ** 2])  # q(b)(b - p)²
    optimal = REINFORCE("optimal", adapt=False)
    L = torch.tensor([[5.0], [2.0]])
    optimal.load_state_dict(
        {"baseline.numerator": (w * L).sum(0), "baseline.denominator": w.sum(0)}
    )
    for estimator in (optimal.double(), LocalExpectation(), BitFlip()):
        g = draw(estimator, f, leaf(a, 1000)).gradient
        torch.testing.assert_close(g, (-3 * p * (1 - p)).expand(1000, 1), rtol=1e-6, atol=0)
    assert draw(RLOO(), f, leaf(a, 1000)).gradient.var() > 0.01


@each_problem
def test_second_moments_of_bitflip_and_local_expectation(problem: str) -> None:
    """E[g²] of the one is D times that of the other: D² with probability 1/D."""
    D = len(PROBLEMS[problem].logits)
    one, each = (draws(n, problem).gradient.square() for n in ("BitFlip()", "LocalExpectation()"))
    assert largest_z(one - D * each, 0.0) < Z_LEVEL


# --- drawing and changing units -------------------------------------------------------------


def test_units_are_drawn_by_weight() -> None:
    w = torch.tensor([0.0, 0.1, 2.0, 0.0, 0.4, 0.0])
    chosen = draw_unit(w.expand(200_000, 6), noise(200_000, 1)).double()
    assert (chosen.sum(-1) == 1).all()
    assert largest_z(chosen, w / w.sum()) < Z_LEVEL
    assert not draw_unit(torch.zeros(9, 5), noise(9, 1)).any()


def test_units_change_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of f sees more numbers than allowed, and none keeps a graph."""
    w, a = leaf(torch.ones(30, dtype=torch.float64)), torch.zeros(7, 30, dtype=torch.float64)
    sizes: list[int] = []

    def f(b: Tensor) -> Tensor:
        sizes.append(b.numel())
        return (b @ w).square()

    whole = draw(LocalExpectation(), f, a).gradient
    assert sizes == [7 * 30, 30 * 7 * 30]
    monkeypatch.setattr("hardgate.estimators._flips._CHUNK_NUMBERS", 4 * 7 * 30)
    sizes.clear()
    torch.testing.assert_close(draw(LocalExpectation(), f, a).gradient, whole)
    assert sizes == [7 * 30] + 7 * [4 * 7 * 30] + [2 * 7 * 30]
    assert not unit_by_unit(lambda e: f(a + e), a).requires_grad


# --- dominance ------------------------------------------------------------------------------


@each_problem
@pytest.mark.parametrize(
    ("better", "worse"),
    [("DisARM()", "ARM()"), ("LocalExpectation()", 'StochasticAD("all")')],
)
def test_a_conditional_mean_varies_less(better: str, worse: str, problem: str) -> None:
    """Rao-Blackwell, unit by unit, on the same noise; what is left over is uncorrelated."""
    low, high = draws(better, problem).gradient, draws(worse, problem).gradient
    assert (low.var(0) <= high.var(0)).all()
    assert largest_z((high - low) * low, 0.0) < Z_LEVEL


@each_problem
@pytest.mark.parametrize("name", ["RLOO", "ARMS", "DoubleCV"])
def test_more_samples_vary_less(name: str, problem: str) -> None:
    two, three, four = (total_variance(f"{name}(samples={K})", problem) for K in (2, 3, 4))
    assert two > three > four


@each_problem
def test_baselines_pay(problem: str) -> None:
    """Corollary 1: the optimal one varies least; 2 % for its being learnt."""
    none, mean, optimal = (
        total_variance(f"REINFORCE({b})", problem) for b in ("", '"mean"', '"optimal"')
    )
    assert optimal < 1.02 * mean
    assert mean < none


@each_problem
def test_arms_varies_less_than_leave_one_out(problem: str) -> None:
    """Antithetic against independent samples, K = 3 and 4: measured, on these problems."""
    for K in (3, 4):
        arms, rloo = (total_variance(f"{n}(samples={K})", problem) for n in ("ARMS", "RLOO"))
        assert arms < 1.02 * rloo


def test_ugc_and_disarm() -> None:
    """Less where units are rare; no theorem, so for the named problem only."""
    assert total_variance("UGC()", "sparse") < total_variance("DisARM()", "sparse")


@each_problem
def test_ugc_among_the_rare_varies_less(problem: str) -> None:
    """|S| for D in the second moment of each rare unit: never more, less where it applies."""
    ours, paper = (draws(n, problem).gradient for n in ("UGC(among_rare=True)", "UGC()"))
    D, q = paper.shape[-1], torch.sigmoid(-PROBLEMS[problem].logits.abs())
    rare = 2 * D * q < 1
    assert torch.equal(ours[:, ~rare], paper[:, ~rare])
    assert bool(rare.any()) == (problem == "sparse")
    if rare.any():
        assert (ours[:, rare].var(0) < paper[:, rare].var(0)).all()
        moment = ours.square() * D - paper.square() * rare.sum()
        assert largest_z(moment[:, rare], 0.0) < Z_LEVEL


def test_a_flip_drawn_by_weight_varies_less() -> None:
    """StochasticAD's against bitflip's, drawn uniformly: where the units matter alike."""
    a = torch.tensor([-1.0, -3.0, -5.0, -7.0], dtype=torch.float64)
    by_weight, uniform = (
        draw(e, lambda b: b.sum(-1), leaf(a, ROWS)).gradient for e in (StochasticAD(), BitFlip())
    )
    assert by_weight.var(0).sum() < 0.7 * uniform.var(0).sum()


# --- wrong ones must be caught --------------------------------------------------------------


def self_including(f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """RLOO whose mean contains the sample itself: (K-1)/K of the gradient."""
    b = (noise(2, *a.shape) < torch.sigmoid(a)).to(a.dtype)
    L = f(b)
    return ((L - L.mean(0)).unsqueeze(-1) * (b - torch.sigmoid(a))).mean(0)


def leave_one_out_of_a_pair(f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """RLOO over an antithetic pair, whose members are not independent."""
    b = antithetic(Odds.of(a), noise(*a.shape))
    L = f(b)
    return ((L - L.flip(0)).unsqueeze(-1) * (b - torch.sigmoid(a))).mean(0)


def arms_without_debias(f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    g = ARMS(3).estimate(f, a, noise(3, *a.shape)).gradient
    return g / debias(Odds.of(a), 3)


def with_respect_to_p(f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    p = torch.sigmoid(a)
    return RLOO().estimate(f, a, noise(2, *a.shape)).gradient / (p * (1 - p))


def flipped_sign(f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    return -ARM().estimate(f, a, noise(*a.shape)).gradient


def flip_towards_the_sample(f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """bitflip without (-1)^b."""
    u, v = noise(*a.shape), noise(len(a), 1, seed=1)
    b = (u < torch.sigmoid(a)).to(a.dtype)
    return BitFlip().estimate(f, a, (u, v)).gradient * (1 - 2 * b)


@pytest.mark.parametrize("problem", ["smooth", "quadratic"])
@pytest.mark.parametrize(
    "wrong",
    [
        self_including,
        leave_one_out_of_a_pair,
        arms_without_debias,
        with_respect_to_p,
        flipped_sign,
        flip_towards_the_sample,
    ],
)
def test_a_wrong_estimator_is_seen(wrong: Callable[..., Tensor], problem: str) -> None:
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    assert largest_z(wrong(f, leaf(a, 100_000).detach()), exact_gradient(f, a)) > Z_WRONG

"""The biased estimators: where their means are, exactly, and how far that is from the gradient."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hardgate import exact_expectation, exact_gradient
from hardgate.estimators import FiniteDifferences, NodePerturbation
from hardgate.estimators._perturbation import Perturbation
from hardgate_lab.rig.problems import PROBLEMS, GradientProblem
from tests.support.estimator_cases import CASES, UNBIASED, draw, draws, each_problem, leaf
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

# --- the means, by enumeration --------------------------------------------------------------


def finite_differences(problem: GradientProblem, step: float) -> Tensor:
    """(F(a + εe_i) - F(a - εe_i)) / 2ε, F = E f(b)."""
    moves = step * torch.eye(len(problem.logits), dtype=torch.float64)
    above, below = (exact_expectation(problem.f, problem.logits + s * moves) for s in (1, -1))
    return (above - below) / (2 * step)


def spsa(problem: GradientProblem, step: float) -> Tensor:
    """The mean over all Δ of (F(a + cΔ) - F(a - cΔ)) / 2cΔ_i."""
    signs = list(itertools.product([-1.0, 1.0], repeat=len(problem.logits)))
    delta = step * torch.tensor(signs, dtype=torch.float64)
    above, below = (exact_expectation(problem.f, problem.logits + s * delta) for s in (1, -1))
    return ((above - below).unsqueeze(-1) / (2 * delta)).mean(0)


def node_perturbation(problem: GradientProblem, step: float) -> Tensor:
    """E ∇F(a + ξ), by Gauss-Hermite quadrature over each unit's ξ."""
    D, (nodes, weights) = len(problem.logits), np.polynomial.hermite_e.hermegauss(13)
    grid = torch.cartesian_prod(*[torch.from_numpy(nodes)] * D)
    weight = torch.cartesian_prod(*[torch.from_numpy(weights / weights.sum())] * D).prod(-1)
    return weight @ exact_gradient(problem.f, problem.logits + step * grid)


MEANS: dict[str, Callable[[GradientProblem, float], Tensor]] = {
    "FiniteDifferences": finite_differences,
    "SPSA": spsa,
    "NodePerturbation": node_perturbation,
}

# ‖E[g] - gradient‖ / ‖gradient‖ of each as it is made without arguments.
RELATIVE_BIAS: dict[str, dict[str, float]] = {
    "FiniteDifferences": {
        "multilinear": 0.000766,
        "quadratic": 0.000743,
        "smooth": 0.000666,
        "kinked": 0.000677,
        "sparse": 0.000666,
    },
    "SPSA": {
        "multilinear": 0.00114,
        "quadratic": 0.00158,
        "smooth": 0.000675,
        "kinked": 0.00160,
        "sparse": 0.000676,
    },
    "NodePerturbation": {
        "multilinear": 0.00258,
        "quadratic": 0.00305,
        "smooth": 0.00197,
        "kinked": 0.00293,
        "sparse": 0.00199,
    },
}

each_biased = pytest.mark.parametrize("name", MEANS)


def make(name: str, step: float) -> Perturbation:
    cls = type(CASES[f"{name}()"]())
    assert issubclass(cls, Perturbation)
    return cls(step)


def relative_bias(name: str, problem: str, step: float) -> float:
    here = PROBLEMS[problem]
    truth = exact_gradient(here.f, here.logits)
    bias: Tensor = (MEANS[name](here, step) - truth).norm() / truth.norm()
    return bias.item()


def test_the_table_covers_every_biased_estimator() -> None:
    biased = {name.split("(")[0] for name in set(CASES) - set(UNBIASED)}
    assert biased == set(MEANS) == set(RELATIVE_BIAS)
    assert all(set(row) == set(PROBLEMS) for row in RELATIVE_BIAS.values())


@each_problem
@each_biased
def test_the_mean_is_where_theory_says(name: str, problem: str) -> None:
    mean = MEANS[name](PROBLEMS[problem], 0.1)
    assert largest_z(draws(f"{name}()", problem).gradient, mean) < Z_LEVEL


@each_problem
@each_biased
def test_bias(name: str, problem: str) -> None:
    """As recorded; a quarter of it at half the step: O(step²)."""
    bias = relative_bias(name, problem, 0.1)
    assert bias == pytest.approx(RELATIVE_BIAS[name][problem], rel=1e-2)
    assert bias / relative_bias(name, problem, 0.05) == pytest.approx(4.0, rel=0.05)


@each_biased
def test_bias_is_seen(name: str) -> None:
    """Declaring it is a claim too: a long step is off the gradient, and at its own mean still."""
    problem = PROBLEMS["smooth"]
    g = draw(make(name, 2.0), problem.f, leaf(problem.logits, 40_000)).gradient
    assert largest_z(g, exact_gradient(problem.f, problem.logits)) > Z_WRONG
    assert largest_z(g, MEANS[name](problem, 2.0)) < Z_LEVEL


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_bias_of_finite_differences_is_a_factor(problem: str) -> None:
    """(σ(a+ε) - σ(a-ε)) / (2ε p(1-p)) for each unit, whatever f is."""
    here, step = PROBLEMS[problem], 1.0
    a, p = here.logits, torch.sigmoid(here.logits)
    factor = (torch.sigmoid(a + step) - torch.sigmoid(a - step)) / (2 * step * p * (1 - p))
    expected = factor * exact_gradient(here.f, a)
    torch.testing.assert_close(finite_differences(here, step), expected)


@each_biased
def test_the_variance_grows_as_the_step_shrinks(name: str) -> None:
    """As 1/step: for a given u the sample is a step function of a."""
    problem = PROBLEMS["smooth"]
    a = leaf(problem.logits, 100_000)
    wide, fine = (draw(make(name, s), problem.f, a).gradient.var(0).sum() for s in (0.2, 0.05))
    assert (fine / wide).item() == pytest.approx(4.0, rel=0.25)


def test_single_draws_are_no_derivative() -> None:
    """At ε = 1e-6 all of 10⁴ draws are 0: f(b) does not change with a, but for a jump."""
    problem = PROBLEMS["smooth"]
    a = leaf(problem.logits, 10_000)
    assert (draw(FiniteDifferences(1e-6), problem.f, a).gradient == 0).float().mean() > 0.999
    assert (draw(NodePerturbation(1e-6), problem.f, a).gradient == 0).float().mean() > 0.99

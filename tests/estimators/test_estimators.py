"""The claims table of the estimators: every declared fact, measured against enumeration."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import ESTIMATORS, exact_expectation, exact_gradient
from hardgate.estimators import REINFORCE
from hardgate.estimators._estimator import Estimator
from hardgate.learning.baselines import MeanBaseline
from hardgate_lab.rig.problems import EXTREME, PROBLEMS
from tests.support.estimator_cases import (
    CASES,
    draw,
    draws,
    each_case,
    each_form,
    each_learning,
    each_problem,
    each_unbiased,
    each_unbiased_form,
    evaluations,
    leaf,
    rare_draws,
    warm,
)
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

SMOOTH = PROBLEMS["smooth"]
CONTRACT = {"REINFORCE", "RLOO", "ARM", "DisARM", "ARMS", "UGC", "DoubleCV"}
CONTRACT |= {"RODEO", "REBAR", "RELAX", "MuProp", "NVIL"}


def test_the_registry() -> None:
    """Each by its own name, made without arguments, in the public module."""
    assert set(ESTIMATORS) >= CONTRACT
    for name, cls in ESTIMATORS.items():
        assert cls.__name__ == name
        assert isinstance(cls(), Estimator)
        assert getattr(hardgate.estimators, name) is cls
        assert name in hardgate.estimators.__all__


# --- unbiased -------------------------------------------------------------------------------


@each_problem
@each_unbiased
def test_unbiased(name: str, problem: str) -> None:
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    assert largest_z(draws(name, problem).gradient, exact_gradient(f, a)) < Z_LEVEL


@each_problem
@each_case
def test_the_value_is_unbiased(name: str, problem: str) -> None:
    """Of the biased estimators too: only samples of b itself go into it."""
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    assert largest_z(draws(name, problem).value, exact_expectation(f, a)) < Z_LEVEL


@each_unbiased
def test_unbiased_at_extreme_probabilities(name: str) -> None:
    """p = 1e-4 and 1 - 1e-4, the noise drawn where it matters.

    ARMS and StochasticAD combine several numbers, so that no single tail matters: more draws.
    """
    problem = EXTREME["extreme"]
    estimator = warm(CASES[name](), problem.f, problem.logits, rows=2000)
    found = rare_draws(
        estimator, problem, 200_000 if name.startswith(("ARMS", "StochasticAD()")) else 50_000
    )
    assert largest_z(found.gradient, exact_gradient(problem.f, problem.logits)) < Z_LEVEL
    assert largest_z(found.value, exact_expectation(problem.f, problem.logits)) < Z_LEVEL


def test_the_weighted_draws_see_a_wrong_gradient() -> None:
    """A gradient 10 % too small at the rare units only is caught."""
    problem = EXTREME["extreme"]
    truth = exact_gradient(problem.f, problem.logits)
    found = rare_draws(hardgate.estimators.LocalExpectation(), problem, 50_000).gradient
    rare = (problem.logits.abs() > 5).double()
    assert largest_z(found * (1 - 0.1 * rare), truth) > Z_WRONG


@each_unbiased_form
def test_unbiased_for_ten_units(name: str) -> None:
    """D = 10, each with its own p, and a loss that is no sum over units."""
    a = torch.linspace(-3, 3, 10, dtype=torch.float64)
    w = torch.linspace(-1, 2, 10, dtype=torch.float64)

    def f(b: Tensor) -> Tensor:
        return (b @ w.to(b)).tanh() + (b @ w.flip(0).to(b) - 1).square()

    rows = 1 if name == "Exact()" else 20_000
    found = draw(warm(CASES[name](), f, a), f, leaf(a, rows))
    if rows == 1:
        torch.testing.assert_close(found.gradient[0], exact_gradient(f, a))
    else:
        assert largest_z(found.gradient, exact_gradient(f, a)) < Z_LEVEL


# --- what is learnt -------------------------------------------------------------------------


@each_learning
def test_state_is_read_before_it_is_moved(name: str) -> None:
    """Step by step: an estimator that adapts gives the gradient of one that does not."""
    estimator = CASES[name]()
    for step in range(4):
        frozen = copy.deepcopy(estimator)
        frozen.adapt = False
        before = copy.deepcopy(estimator.state_dict())
        moving = draw(estimator, SMOOTH.f, leaf(SMOOTH.logits, 8), seed=step)
        still = draw(frozen, SMOOTH.f, leaf(SMOOTH.logits, 8), seed=step)
        torch.testing.assert_close(moving.gradient, still.gradient)
        assert moved(before, estimator)


@each_learning
def test_unbiased_while_adapting(name: str) -> None:
    """Few rows per step, where a sample that meets itself would show."""
    found = sequence(CASES[name](), steps=150, rows=8)
    assert largest_z(found, exact_gradient(SMOOTH.f, SMOOTH.logits)) < Z_LEVEL


def test_a_baseline_that_contains_the_sample_is_seen() -> None:
    """Negative control of both tests above."""
    estimator = REINFORCE("mean", decay=0.0)
    estimator.baseline = SelfIncluding(0.0)
    found = sequence(estimator, steps=800, rows=2)
    assert largest_z(found, exact_gradient(SMOOTH.f, SMOOTH.logits)) > Z_WRONG
    frozen = copy.deepcopy(estimator)
    frozen.adapt = False
    moving, still = (draw(e, SMOOTH.f, leaf(SMOOTH.logits, 8)) for e in (estimator, frozen))
    assert not torch.allclose(moving.gradient, still.gradient)


class SelfIncluding(MeanBaseline):
    def step(
        self,
        scores: Sequence[Tensor],
        losses: Sequence[Tensor],
        *,
        update: bool = True,
        masks: Sequence[Tensor | None] | None = None,
    ) -> Tensor:
        super().step(scores, losses, update=update, masks=masks)
        return self.value()


def sequence(estimator: Estimator, steps: int, rows: int) -> Tensor:
    """Draws as in training: the state moves at every step."""
    a = leaf(SMOOTH.logits, rows)
    return torch.cat([draw(estimator, SMOOTH.f, a, seed=s).gradient for s in range(steps)])


def moved(before: dict[str, Tensor], estimator: Estimator) -> bool:
    """Whether `estimator.state` has changed; nothing else may have."""
    after = estimator.state_dict()
    changed = {key for key in after if not torch.equal(before[key], after[key])}
    assert changed <= set(estimator.state)
    return bool(changed)


@each_form
def test_state_is_what_the_state_dict_holds(name: str) -> None:
    estimator = CASES[name]()
    draw(estimator, SMOOTH.f, leaf(SMOOTH.logits, 8))
    assert set(estimator.state) <= set(estimator.state_dict())
    assert bool(estimator.state) == bool(estimator.state_dict())


@each_learning
def test_frozen(name: str) -> None:
    """adapt=False, evaluation mode and no_grad leave the state alone."""
    estimator = CASES[name]()
    draw(estimator, SMOOTH.f, leaf(SMOOTH.logits, 50))
    before = copy.deepcopy(estimator.state_dict())
    estimator.adapt = False
    draw(estimator, SMOOTH.f, leaf(SMOOTH.logits, 8))
    assert not moved(before, estimator)
    estimator.adapt = True
    draw(estimator.eval(), SMOOTH.f, leaf(SMOOTH.logits, 8))
    assert not moved(before, estimator)
    with torch.no_grad():
        hardgate.expectation(SMOOTH.f, leaf(SMOOTH.logits, 8), estimator.train())
    assert not moved(before, estimator)
    draw(estimator, SMOOTH.f, leaf(SMOOTH.logits, 8))
    assert moved(before, estimator)


@each_learning
def test_made_frozen(name: str) -> None:
    estimator = type(CASES[name]())(adapt=False)
    draw(estimator, SMOOTH.f, leaf(SMOOTH.logits, 8))  # state may take its size here
    before = copy.deepcopy(estimator.state_dict())
    draw(estimator, SMOOTH.f, leaf(SMOOTH.logits, 8), seed=1)
    assert not any(not torch.equal(before[k], v) for k, v in estimator.state_dict().items())


# --- cost, and what f has to be -------------------------------------------------------------


@pytest.mark.parametrize("D", [1, 3, 6])
@each_case
def test_n_evals(name: str, D: int) -> None:
    """As many samples as declared, counted; twice as many rows, twice as many."""
    count = 0

    def f(b: Tensor) -> Tensor:
        nonlocal count
        count += b.shape[:-1].numel()
        return (b - 0.3).square().sum(-1)

    estimator = CASES[name]()
    for rows in (5, 10):
        count = 0
        draw(estimator, f, leaf(torch.linspace(-1, 1, D), rows))
        assert count == rows * evaluations(estimator, D)


@each_form
def test_needs_relaxed_f(name: str) -> None:
    relaxed = False

    def f(b: Tensor) -> Tensor:
        nonlocal relaxed
        relaxed |= bool(((b != 0) & (b != 1)).any())
        return SMOOTH.f(b)

    estimator = CASES[name]()
    draw(estimator, f, leaf(SMOOTH.logits, 50))
    assert relaxed == estimator.needs_relaxed_f


@each_form
def test_needs_gradient_of_f(name: str) -> None:
    """A loss that torch cannot differentiate is taken, with the same result, or refused."""

    def f(b: Tensor) -> Tensor:
        return torch.from_numpy(SMOOTH.f(b.detach()).numpy())

    estimator, a = CASES[name](), leaf(SMOOTH.logits, 50)
    if estimator.needs_gradient_of_f:
        with pytest.raises(TypeError, match=r"expected f to be differentiable in b.*DisARM"):
            draw(estimator, f, a)
        return
    found, expected = draw(estimator, f, a), draw(CASES[name](), SMOOTH.f, a)
    torch.testing.assert_close(found.gradient, expected.gradient)
    torch.testing.assert_close(found.value, expected.value)


def test_facts_are_told_apart() -> None:
    """The tests above have both answers to find, on every kind of problem."""
    assert {"smooth", "quadratic", "kinked", "multilinear", "sparse"} <= set(PROBLEMS)
    made = [make() for make in CASES.values()]
    for fact in ("unbiased", "needs_gradient_of_f", "needs_relaxed_f"):
        assert {getattr(e, fact) for e in made} == {True, False}

"""The claims table: every unit × every declared fact, measured."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import (
    UNITS,
    NoisyRectifier,
    ReinMax,
    SlopeAnnealed,
    StochasticBinary,
    StochasticTimesSmooth,
    StraightThrough,
    Unit,
)
from hardgate.learning.baselines import MeanBaseline
from hardgate_lab.rig.law import exact_unit_gradient
from hardgate_lab.rig.measure import gradient_samples
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.claims import (
    N,
    check_active_probability,
    check_mean,
    check_noise_is_independent,
    check_off_gradient,
)
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z, z_scores


class Claim(NamedTuple):
    unbiased: bool
    binary: bool
    off_gradient: str


# What each unit must declare. The facts below are then measured, whatever they say.
CLAIMS = {
    'NoisyRectifier("gaussian")': Claim(True, False, "zero"),
    'NoisyRectifier("logistic")': Claim(True, False, "zero"),
    "StochasticTimesSmooth()": Claim(False, False, "zero"),
    "StochasticTimesSmooth(corrected=True)": Claim(False, False, "expert"),
    "StochasticBinary(None)": Claim(True, True, "score"),
    'StochasticBinary("mean")': Claim(True, True, "score"),
    'StochasticBinary("optimal")': Claim(True, True, "score"),
    "StraightThrough()": Claim(False, True, "expert"),
    "StraightThrough(sigmoid_derivative=True)": Claim(False, True, "expert"),
    "StraightThrough(sample=False)": Claim(False, True, "expert"),
    'StraightThrough(off_units="sampled")': Claim(False, True, "expert"),
    'StraightThrough(off_units="ignore")': Claim(False, True, "zero"),
    "Rectifier()": Claim(True, False, "zero"),
    "Sigmoid()": Claim(True, False, "zero"),
    'Sigmoid("gaussian")': Claim(True, False, "zero"),
    "SlopeAnnealed()": Claim(False, True, "expert"),
    "STGumbel()": Claim(False, True, "expert"),
    "GRMCK()": Claim(False, True, "expert"),
    "GappedST()": Claim(False, True, "expert"),
    "ReinMax()": Claim(False, True, "expert"),
    "ReinMax(control_variate=True)": Claim(False, True, "expert"),
    "BinaryConcrete()": Claim(True, False, "zero"),  # of its own, relaxed objective
    "HardConcrete()": Claim(True, False, "zero"),
}

# Where theory says that a biased unit is exact in expectation.
EXACT_ON = {
    "StochasticTimesSmooth(corrected=True)": "multilinear",
    "StraightThrough(sigmoid_derivative=True)": "multilinear",
    "ReinMax()": "quadratic",
    "ReinMax(control_variate=True)": "quadratic",
}

each_unit = pytest.mark.parametrize("name", UNITS)


def test_the_table_covers_every_unit() -> None:
    assert set(CLAIMS) == set(UNITS)
    classes = {type(make()) for make in UNITS.values()}
    public = {
        getattr(hardgate, n) for n in hardgate.__all__ if isinstance(getattr(hardgate, n), type)
    }
    assert classes == {c for c in public if issubclass(c, Unit) and c is not Unit}


@each_unit
def test_declared(name: str) -> None:
    unit = UNITS[name]()
    assert (unit.unbiased, unit.binary, unit.off_gradient) == CLAIMS[name]
    assert unit.needs_loss == (unit.off_gradient == "score")


def draws(name: str, problem: str, seed: int = 1) -> Tensor:
    """Gradient draws of the unit, its averages warmed up on earlier samples."""
    unit, generator = UNITS[name]().double(), torch.Generator().manual_seed(seed)
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    if any(True for _ in unit.children()):  # what it learns from past samples
        for _ in range(20):
            gradient_samples(unit, f, a, 1000, generator, update_baselines=True)
    return gradient_samples(unit, f, a, N, generator)


def truth(name: str, problem: str) -> Tensor:
    return exact_unit_gradient(UNITS[name](), PROBLEMS[problem].f, PROBLEMS[problem].logits)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", [n for n in UNITS if CLAIMS[n].unbiased])
def test_unbiased(name: str, problem: str) -> None:
    assert largest_z(draws(name, problem), truth(name, problem)) < Z_LEVEL


@pytest.mark.parametrize("name", [n for n in UNITS if not CLAIMS[n].unbiased])
def test_biased_ones_are_seen_to_be(name: str) -> None:
    """Declaring bias is a claim too: it shows on the smooth problem, or the claim is wrong."""
    assert largest_z(draws(name, "smooth"), truth(name, "smooth")) > Z_WRONG


@pytest.mark.parametrize(("name", "problem"), EXACT_ON.items())
def test_biased_ones_are_exact_where_theory_says_so(name: str, problem: str) -> None:
    assert largest_z(draws(name, problem), truth(name, problem)) < Z_LEVEL


@each_unit
def test_binary(name: str) -> None:
    unit = UNITS[name]()
    h = unit(torch.randn(1000, 4, generator=torch.Generator().manual_seed(0)))
    assert (set(h.unique().tolist()) == {0.0, 1.0}) == unit.binary


@each_unit
def test_off_gradient(name: str) -> None:
    check_off_gradient(UNITS[name]())


@each_unit
@pytest.mark.parametrize("a", [-3.0, -0.5, 0.0, 2.0])
def test_active_probability(name: str, a: float) -> None:
    check_active_probability(UNITS[name](), a)


# By design the noise's mean replaces the noise of Sigmoid("gaussian"): σ(a), not E σ(a + z).
@pytest.mark.parametrize("name", [n for n in UNITS if n != 'Sigmoid("gaussian")'])
@pytest.mark.parametrize("a", [-3.0, -0.5, 0.0, 2.0])
def test_mean(name: str, a: float) -> None:
    check_mean(UNITS[name](), a)


@each_unit
def test_noise_is_independent_across_units_and_examples(name: str) -> None:
    check_noise_is_independent(UNITS[name]())


def test_z_scores_see_a_wrong_mean() -> None:
    x = torch.randn(10_000, 3, generator=torch.Generator().manual_seed(0))
    assert largest_z(x, 0.0) < Z_LEVEL
    assert (z_scores(x, 0.2).abs() > Z_WRONG).all()
    assert largest_z(torch.ones(10, 1), 1.001) > Z_WRONG


@pytest.mark.parametrize("name", UNITS)
def test_never_off(name: str) -> None:
    unit = UNITS[name]()
    possible = unit.inactive_probability(torch.linspace(-8, 8, 33)) > 0
    assert unit.never_off == (not possible.any())


def test_a_mask_turns_a_sigmoid_off() -> None:
    assert not hardgate.Sigmoid(hardgate.noise.Binomial(0.5)).never_off


@pytest.mark.parametrize(
    ("cls", "arguments", "words"),
    [
        (StraightThrough, ["sampled"], "sigmoid_derivative expected True or False"),
        (StraightThrough, [False, 1], "sample expected True or False, got 1"),
        (ReinMax, [0.5], "control_variate expected True or False, got 0.5"),
        (SlopeAnnealed, [1, "no"], "sample expected True or False, got 'no'"),
        (StochasticTimesSmooth, ["both"], "corrected expected True or False"),
        (NoisyRectifier, [hardgate.noise.Gaussian(2.0)], "'gaussian', scale="),
    ],
)
def test_arguments_in_the_wrong_place(cls: Any, arguments: list[Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        cls(*arguments)


def test_a_baseline_has_its_own_decay() -> None:
    with pytest.raises(ValueError, match=r"Write StochasticBinary\(MeanBaseline\(decay=0.5\)\)"):
        StochasticBinary(MeanBaseline(), decay=0.5)
    baseline = StochasticBinary("mean", decay=0.5).baseline
    assert baseline is not None
    assert baseline.decay == 0.5

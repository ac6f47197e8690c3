"""Stochastic times smooth by value: which half is noisy, which is differentiated, where it starts.

With d = √σ(drawn's input) and s = √σ(the smooth half's input), h = 1[u < d]·s.
"""

from __future__ import annotations

import math

import pytest
import torch

from hardgate import StochasticTimesSmooth
from hardgate.functional.neurons import Placement
from hardgate.noise import Beta

A, N, U = -0.4, 1.7, 0.5  # √σ(A) = 0.63, √σ(A + N) = 0.89: b = 1 with and without the noise
HIGH = 0.75  # between the two: b = 1 with the noise only


def root(x: float) -> float:
    """√σ(x)."""
    return math.exp(-0.5 * math.log1p(math.exp(-x)))


def slope(x: float) -> float:
    """Its derivative, ½√σ(x)·(1 - σ(x))."""
    return 0.5 * root(x) / (1 + math.exp(x))


def value_and_slope(unit: StochasticTimesSmooth, u: float) -> tuple[float, float]:
    a = torch.tensor([A], dtype=torch.float64, requires_grad=True)
    noise = torch.tensor([u], dtype=torch.float64), torch.tensor([N], dtype=torch.float64)
    h = unit(a, noise)
    (gradient,) = torch.autograd.grad(h.sum(), a)
    return h.item(), gradient.item()


@pytest.mark.parametrize("u", [U, HIGH, 0.95])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("placement", ["both", "stochastic"])
def test_value_and_derivative(placement: Placement, corrected: bool, u: float) -> None:
    """∂h/∂a = b·s′, and with the correction s·d′ more: the product rule with ∂b := ∂d."""
    smooth = A + N if placement == "both" else A
    b = float(u < root(A + N))
    unit = StochasticTimesSmooth(corrected, noise=Beta(40.1), placement=placement)
    h, gradient = value_and_slope(unit, u)
    assert h == pytest.approx(b * root(smooth), abs=1e-12)
    through_b = root(smooth) * slope(A + N) if corrected else 0.0
    assert gradient == pytest.approx(b * slope(smooth) + through_b, abs=1e-12)


@pytest.mark.parametrize("placement", ["both", "stochastic"])
def test_the_mean_has_the_noise_where_it_enters(placement: Placement) -> None:
    """In evaluation the noise's mean m replaces it: √σ(a + m)·√σ(a + m or a)."""
    noise = Beta(40.1)
    unit = StochasticTimesSmooth(noise=noise, placement=placement)
    second = A + noise.mean if placement == "both" else A
    found = unit.mean(torch.tensor([A], dtype=torch.float64)).item()
    assert found == pytest.approx(root(A + noise.mean) * root(second), abs=1e-12)


@pytest.mark.parametrize("noise", [None, Beta(40.1), Beta(40.1, rate=0.7)], ids=repr)
def test_it_starts_where_it_is_as_often_on_as_off(noise: Beta | None) -> None:
    """√σ(t + m) = ½ at the first threshold t, whatever the noise's mean m: t = -log 3 - m."""
    unit = StochasticTimesSmooth(noise=noise).eval()
    mean = 0.0 if noise is None else noise.mean
    t = unit.threshold.item()
    assert t == pytest.approx(-math.log(3) - mean, abs=1e-6)
    assert root(t + mean) == pytest.approx(0.5, abs=1e-6)
    assert (unit(torch.tensor([t - 1e-3, t + 1e-3])) != 0).tolist() == [False, True]

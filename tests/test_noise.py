"""Noise sources: their laws, and that they are drawn in fp32."""

from __future__ import annotations

import math

import pytest
import torch

from hardgate.noise import Beta, Binomial, Gaussian, Logistic, Noise, uniform
from tests.support.statistics import Z_LEVEL, largest_z

N = 400_000
BETAS = [1.1, 2.6, 40.1, 160.1]  # the ends and the middle of the paper's range
NOISES: list[Noise] = [Gaussian(), Gaussian(0.5), Logistic(), Logistic(2.0), Binomial(0.3)]
NOISES += [Beta(beta) for beta in BETAS]


def draw(noise: Noise, n: int = N) -> torch.Tensor:
    return noise.sample(torch.empty(n), torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("noise", NOISES, ids=repr)
def test_mean_and_quadrature(noise: Noise) -> None:
    """Sample moments against Gauss quadrature, which is exact for polynomials."""
    z = draw(noise)
    assert largest_z(z, noise.mean) < Z_LEVEL
    nodes, weights = noise.quadrature(2)
    assert sum(weights) == pytest.approx(1.0)
    assert sum(w * x for x, w in zip(nodes, weights, strict=True)) == pytest.approx(noise.mean)
    second = sum(w * x * x for x, w in zip(nodes, weights, strict=True))
    assert largest_z(z.square(), second) < Z_LEVEL


@pytest.mark.parametrize("beta", BETAS)
def test_beta_has_the_law_of_torch_beta(beta: float) -> None:
    """Quantiles of the table against torch's own sampler: the noise is not just mean-matched."""
    noise = Beta(beta)
    torch.manual_seed(0)
    reference = noise.scale * torch.distributions.Beta(noise.alpha, noise.beta).sample((N,))
    levels = torch.tensor([0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999], dtype=torch.float64)
    table = noise._table.double().sort().values
    for level in levels:
        quantile = table[int(level * len(table))]
        below = (reference.double() < quantile).double()
        assert largest_z(below, (int(level * len(table)) + 0.5) / len(table)) < Z_LEVEL


@pytest.mark.parametrize("noise", [Gaussian(), Logistic(), Gaussian(2.0), Logistic(0.5)], ids=repr)
@pytest.mark.parametrize("a", [-2.0, 0.0, 1.5])
def test_positive_and_rectified(noise: Gaussian | Logistic, a: float) -> None:
    z, point = draw(noise), torch.tensor(a, dtype=torch.float64)
    assert largest_z((a + z > 0).double(), noise.positive(point)) < Z_LEVEL
    assert largest_z((a + z).clamp(min=0), noise.rectified(point)) < Z_LEVEL


def test_rectified_is_never_negative_and_finite() -> None:
    a = torch.tensor([-math.inf, -1e30, -100.0, -13.0, -5.0, 0.0, 100.0])
    for noise in (Gaussian(), Logistic()):
        mean = noise.rectified(a)
        assert mean.isfinite().all()
        assert (mean >= 0).all()
        assert mean[-1] == 100.0


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("law", [Gaussian, Logistic])
def test_the_mean_far_out_is_that_of_the_rectifier(
    law: type[Gaussian] | type[Logistic], scale: float
) -> None:
    """Beyond 40 scales E[max(0, a + z)] is a or 0, and so is its slope 1 or 0."""
    far = torch.tensor([-1000.0, -70.0, -45.0, 41.0, 45.0, 70.0, 1000.0], dtype=torch.float64)
    a = (far * scale).requires_grad_()
    mean = law(scale).rectified(a)
    torch.testing.assert_close(mean, a.detach().relu(), rtol=1e-12, atol=1e-15)
    (slope,) = torch.autograd.grad(mean.sum(), a)
    torch.testing.assert_close(slope, (far > 0).double(), rtol=0, atol=1e-15)


def test_logistic_is_finite_where_uniform_noise_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardgate.noise.uniform", lambda like, generator: torch.zeros_like(like))
    assert Logistic().sample(torch.empty(3)).isfinite().all()


def test_noise_is_fp32_and_follows_the_generator() -> None:
    like = torch.empty(5, 3, dtype=torch.bfloat16)
    for noise in NOISES:
        z = noise.sample(like, torch.Generator().manual_seed(1))
        assert z.dtype == torch.float32
        assert z.shape == like.shape
        assert torch.equal(z, noise.sample(like, torch.Generator().manual_seed(1)))
    assert uniform(like).dtype == torch.float32


def test_masks_are_zero_or_one() -> None:
    assert set(draw(Binomial(0.3), 1000).unique().tolist()) == {0.0, 1.0}


def test_beta_sampling_is_fast_enough_to_be_a_table() -> None:
    """Not a timing: the draw is an index into 2¹⁶ values, however skewed the law."""
    assert len(draw(Beta(40.1)).unique()) <= 2**16


def test_gaussian_tails_do_not_cancel() -> None:
    """fp32 against fp64 far in the left tail, where 1 + erf(x) would be 0."""
    a = torch.tensor([-12.0, -8.0, -5.0])
    for noise in (Gaussian(), Gaussian(2.0)):
        exact = noise.positive(a.double())
        torch.testing.assert_close(noise.positive(a).double(), exact, rtol=1e-4, atol=0)
    assert Gaussian().positive(a)[0].item() == pytest.approx(1.776e-33, rel=1e-3)

"""ARMS: K samples that repel each other, by a Dirichlet copula (Dimitriev & Zhou 2021)."""

from __future__ import annotations

from abc import ABC

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Loss, ManySamples, Noise
from hardgate.estimators._leave_one_out import rloo
from hardgate.estimators._odds import Odds
from hardgate.estimators.disarm import antithetic
from hardgate.noise import uniform
from hardgate.units._unit import single


class Repelled(ManySamples, ABC):
    """An estimator from samples of `dirichlet_copula`."""

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        numbers = 1 if self.samples == 2 else self.samples
        return uniform(a.expand(numbers, *a.shape), generator)


class ARMS(Repelled):
    """g = K/(K-1) mean_k (f(b_k) - f̄)(b_k - p) · debias.

    Each b_k is a sample of b, but the K of a unit are negatively correlated, ρ < 0, so that their
    mean is a better baseline than independent samples': RLOO's formula has to be divided by
    1 - ρ. With two samples it is `DisARM`.

    Args:
        samples: K ≥ 2.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, ARMS(samples=4)).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Dimitriev & Zhou 2021, *ARMS: antithetic-REINFORCE-multi-sample gradient for binary
        variables*.
    """

    unbiased = True

    def __init__(self, samples: int = 2) -> None:
        super().__init__(samples)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        odds = Odds.of(a)
        b = dirichlet_copula(odds, single(noise))  # [K, ..., D]
        losses = losses_of(f, b)
        g = rloo(losses.detach(), b) * debias(odds, self.samples)
        return Estimate(losses.mean(0), g)


def dirichlet_copula(odds: Odds, u: Tensor) -> Tensor:
    """K dependent samples of b from K independent uniform numbers, both `[K, ..., D]`.

    d ~ Dirichlet(1, …, 1) over the K; (1-d)^{K-1} is uniform, and small for one of them only.
    The rarer value of a unit is drawn where it is below q = min(p, 1-p). Two of them, d and 1-d,
    are an antithetic pair: one uniform number, `[1, ..., D]`, makes both.
    """
    if len(u) == 1:
        return antithetic(odds, u[0])
    E = torch.log1p(-u)  # ~ -Exp(1); the sign cancels
    d = E / E.sum(0)
    rare = (1 - d) ** (len(u) - 1) < odds.rarer
    return (rare != (odds.p > odds.q)).to(odds.p.dtype)


def debias(odds: Odds, K: int) -> Tensor:
    """1/(1 - ρ) = p(1-p)/(p - J), where J = P(b_j = b_k = 1).

    In q = min(p, 1-p): (1-q) / (1 - max(2q^{1/(K-1)} - 1, 0)^{K-1} / q). The power of the ratio
    is taken here, max(2 - q^{-1/(K-1)}, 0)^{K-1}, which is right for every a, q = 0 included: as
    printed it is 0/0 at a = 40. With two samples it is 0, as q ≤ ½.
    """
    if K == 2:
        return odds.commoner
    root = odds.rarer ** (-1 / (K - 1))
    return odds.commoner / (1 - (2 - root).clamp(min=0) ** (K - 1))

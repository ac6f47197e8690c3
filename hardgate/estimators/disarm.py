"""DisARM, also U2G: ARM's antithetic pair with its noise integrated out (Dong et al. 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._odds import Odds
from hardgate.units._unit import single


class DisARM(Estimator):
    """g = ½ (f(b) - f(b̃)) (-1)^b̃ 1[b ≠ b̃] σ(|a|), with b = 1[u > 1-p] and b̃ = 1[u < p].

    Each of the pair is a sample of b by itself; where both agree, the unit gets no gradient.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, DisARM()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Dong, Mnih & Tucker 2020, *DisARM*; Yin, Ho, Yan, Qian & Zhou 2020 (U2G).
    """

    unbiased = True
    n_evals = 2

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        odds = Odds.of(a)
        b = antithetic(odds, single(noise))
        losses = losses_of(f, b)
        return Estimate(losses.mean(0), pair_gradient(odds, b, losses.detach()))


def pair_gradient(odds: Odds, b: Tensor, L: Tensor) -> Tensor:
    """g from a pair b `[2, ..., D]` and its losses `[2, ...]`; (-1)^b̃ 1[b ≠ b̃] = b - b̃."""
    difference = (L[0] - L[1]).unsqueeze(-1)
    return 0.5 * difference * (b[0] - b[1]) * odds.commoner


def antithetic(odds: Odds, u: Tensor) -> Tensor:
    """The pair b = 1[u > 1-p], b̃ = 1[u < p], as `[2, ..., D]`."""
    return torch.stack([odds.q < u, u < odds.p]).to(odds.p.dtype)

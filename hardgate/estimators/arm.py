"""ARM: augment, REINFORCE, merge — an antithetic pair and its noise (Yin & Zhou 2019)."""

from __future__ import annotations

from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._odds import Odds
from hardgate.estimators.disarm import antithetic
from hardgate.units._unit import single


class ARM(Estimator):
    """g = (f(b) - f(b̃)) (u - ½), with b = 1[u > 1-p] and b̃ = 1[u < p].

    `DisARM` is its mean given b and b̃, and so never has more variance.

    Example:
        >>> import torch, hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, ARM()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Yin & Zhou 2019, *ARM: augment-REINFORCE-merge gradient for stochastic binary networks*.
    """

    unbiased = True
    n_evals = 2

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        u = single(noise)
        losses = losses_of(f, antithetic(Odds.of(a), u))
        first, second = losses.detach().unsqueeze(-1)
        return Estimate(losses.mean(0), (first - second) * (u - 0.5))

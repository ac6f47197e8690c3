"""RLOO: REINFORCE with the other samples' mean as baseline (Kool et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Loss, ManySamples, Noise
from hardgate.estimators._leave_one_out import rloo
from hardgate.functional.surrogates import bernoulli
from hardgate.units._unit import single


class RLOO(ManySamples):
    """g = mean_k (f(b_k) - mean_{j≠k} f(b_j)) (b_k - p) = Σ_k (f(b_k) - f̄) b_k / (K - 1).

    f̄ = mean_j f(b_j). Needs values of f only, and learns nothing.

    Args:
        samples: K ≥ 2.

    Example:
        >>> import torch, hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, RLOO(samples=4)).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Kool, van Hoof & Welling 2019, *Buy 4 REINFORCE samples, get a baseline for free!*
    """

    unbiased = True

    def __init__(self, samples: int = 2) -> None:
        super().__init__(samples)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        b = bernoulli(torch.sigmoid(a), single(noise))  # [K, ..., D]
        losses = losses_of(f, b)
        return Estimate(losses.mean(0), rloo(losses.detach(), b))  # p cancels

"""Local expectation gradients: every unit summed out in turn (Titsias & Lázaro-Gredilla 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._flips import flip, unit_by_unit
from hardgate.estimators.bitflip import flip_gradient
from hardgate.functional.surrogates import bernoulli
from hardgate.units._unit import single


class LocalExpectation(Estimator):
    """g_i = p_i(1-p_i) (f(b_{i→1}) - f(b_{i→0})): both values of b_i, the others as sampled.

    One of the two is f(b), so b and its D single flips are evaluated, the flips without a graph
    and in parts: what is kept does not grow with D. The rest of the variance is that of the
    *other* units; a loss that is linear has none. Also IndeCateR with one sample.

    Example:
        >>> import torch, hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, LocalExpectation()).backward()
        >>> a.grad.tolist()
        [0.25, 0.25, 0.25]

    References:
        Titsias & Lázaro-Gredilla 2015, *Local expectation gradients for black box variational
        inference*; De Smet, Sansone & Zuidberg Dos Martires 2023 (IndeCateR).
    """

    unbiased = True
    n_evals = "D + 1"

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        b = bernoulli(torch.sigmoid(a), single(noise))
        losses = losses_of(f, b)
        return Estimate(losses, flip_gradient(a, b, flip_differences(f, b, losses)))


def flip_differences(f: Loss, b: Tensor, losses: Tensor) -> Tensor:
    """f(flip_i b) - f(b) for every unit i: `[..., D]`."""
    return unit_by_unit(lambda e: losses_of(f, flip(b, e)) - losses, b)

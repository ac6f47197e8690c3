"""Finite differences with common random numbers, two evaluations for each unit."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Loss, Noise
from hardgate.estimators._flips import unit_by_unit
from hardgate.estimators._perturbation import Perturbation
from hardgate.functional.surrogates import bernoulli
from hardgate.units._unit import single


class FiniteDifferences(Perturbation):
    """g_i = (f(b⁺ⁱ) - f(b⁻ⁱ)) / 2ε, with b^±ⁱ = 1[u < σ(a ± ε e_i)] and the same u.

    Biased by O(ε²): E f is linear in p_i, so that, whatever f is,

        E[g_i] / (∂E f/∂a_i) = (σ(a_i + ε) - σ(a_i - ε)) / (2ε p_i(1-p_i)) = 1 + O(ε²).

    For a given u, f is a step function of a: g_i is zero unless u_i falls between the two
    probabilities, and then Δf / 2ε. The mean is right to second order, single draws are not.

    Args:
        step: ε. The variance grows as 1/ε.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, FiniteDifferences(step=100)).backward()
        >>> [round(g, 6) for g in a.grad.tolist()]  # a step so long that every unit flips
        [0.005, 0.005, 0.005]

    References:
        Bengio, Léonard & Courville 2013, §1, name them as the estimator to improve upon.
    """

    n_evals = "2·D + 1"  # the last one for the value: b^± are no samples of b

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        u = single(noise)
        losses = losses_of(f, bernoulli(torch.sigmoid(a), u))

        def difference(e: Tensor) -> Tensor:
            moved = torch.stack([a + self.step * e, a - self.step * e])
            apart = losses_of(f, bernoulli(torch.sigmoid(moved), u))
            return apart[0] - apart[1]

        return Estimate(losses, unit_by_unit(difference, a) / (2 * self.step))

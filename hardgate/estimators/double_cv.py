"""Double control variates: leave-one-out, joined with f's own gradient (Titsias & Shi 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.estimators._estimator import (
    Context,
    Estimate,
    Loss,
    ManySamples,
    Noise,
    value_and_gradient,
)
from hardgate.estimators._leave_one_out import leave_one_out, rloo, sum_samples
from hardgate.functional.surrogates import bernoulli
from hardgate.learning.coefficients import Coefficient
from hardgate.units._unit import single


class DoubleCV(ManySamples):
    """RLOO on f_k + α c_k, with c_k = ḡ_{-k}·(b_k - p) whose own gradient is known.

    ḡ_{-k} is the mean of ∇f over the other samples, so that

        g = mean_k (f_k + α c_k - mean_{j≠k}(f_j + α c_j)) (b_k - p) - α mean_k ∇f(b_k) p(1-p).

    It is unbiased for every α, and linear in it: α is the coefficient of least variance.

    Args:
        samples: K ≥ 2.
        per_unit: an α for each unit, an idea of this library.
        adapt: False keeps α where it is (-1 at the start, as if f were linear).

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1).square(), a, DoubleCV()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Titsias & Shi 2022, *Double control variates for gradient estimation in discrete latent
        variable models*.
    """

    unbiased = True
    needs_gradient_of_f = True
    state = ("alpha.numerator", "alpha.denominator")

    def __init__(self, samples: int = 2, *, per_unit: bool = False, adapt: bool = True) -> None:
        super().__init__(samples, adapt=adapt)
        self.alpha = Coefficient(-1.0, per_unit=per_unit)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        p = torch.sigmoid(a)
        b = bernoulli(p, single(noise))  # [K, ..., D]
        losses, gradient = value_and_gradient(f, b)
        score = b - p
        c = (leave_one_out(gradient) * score).sum(-1)
        g, v = rloo(torch.stack([losses.detach(), c]), score)
        known = sum_samples(gradient) * p * torch.sigmoid(-a) / self.samples
        v = v - known  # of mean zero
        alpha = self.alpha.value(a.shape[-1])
        if self.learns_from(losses):
            self.alpha.learn_(g, v)
        return Estimate(losses.mean(0), g + alpha * v)

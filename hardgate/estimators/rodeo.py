"""RODEO: control variates from a Stein operator that flips single units (Shi et al. 2022)."""

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
from hardgate.estimators._leave_one_out import leave_one_out, rloo, sum_samples, weighted
from hardgate.functional.surrogates import bernoulli
from hardgate.learning.coefficients import Coefficients, combine
from hardgate.units._unit import single


class RODEO(ManySamples):
    """RLOO plus Gibbs-Stein control variates of surrogates h, built from f at the other samples.

    For any h, (A_i h)(b) = q(b_i → 1-b_i)(h(flip_i b) - h(b)) has mean zero: both values of b_i,
    weighed by their probability, less the one that was drawn. As q(b_i → 1-b_i) = |b_i - p_i| it
    is -(b_i - p_i)(h(b_{i→1}) - h(b_{i→0})). With the surrogates

        h_k(y) = mean_{j≠k} φ(∇f(b_j)·(y - p)),  φ(t) = t and φ(t) = t²,

    whose flips cost no evaluation of f, the mean over k of each of these is added to RLOO:

    - (A_i (h_k (b_i - p_i)))(b_k), the unit's own flip, for its score times h;
    - Σ_{m≠i} (A_m h_k)(b_k) (b_ki - p_i), the other flips;
    - mean_{j≠k} Σ_m (A_m h_j)(b_j) (b_ki - p_i), for the baseline;

    and the first-order change of the baseline, mean_{j≠k} ∇f(b_j)·(b_j - p) (b_ki - p_i). Their
    coefficients are those of least variance. φ(t) = t alone contains `DoubleCV`, where RODEO
    starts.

    The original has one coefficient for all flips, and a small network in φ's place that is
    trained by gradient descent on ‖g‖². Here the flips are told apart and φ is fixed, so that
    everything that is learnt has a closed form.

    Args:
        samples: K ≥ 2.
        adapt: False keeps the coefficients where they are.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1).square(), a, RODEO()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Shi, Zhou, Hwang, Titsias & Mackey 2022, *Gradient estimation with discrete Stein
        operators*.
    """

    unbiased = True
    needs_gradient_of_f = True
    state = ("alpha.numerator", "alpha.denominator")

    def __init__(self, samples: int = 2, *, adapt: bool = True) -> None:
        super().__init__(samples, adapt=adapt)
        self.alpha = Coefficients((1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0))

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        p = torch.sigmoid(a)
        b = bernoulli(p, single(noise))  # [K, ..., D]
        losses, gradient = value_and_gradient(f, b)
        score, variance = b - p, p * torch.sigmoid(-a)
        t = (gradient * score.unsqueeze(1)).sum(-1)  # ∇f(b_j)·(b_k - p), [k, j, ...]

        estimates = [rloo(losses.detach(), score)]
        for h, change in _surrogates(gradient, t, b):
            flips = score * change
            moved = -flips.sum(-1)  # Σ_m A_m h
            estimates += [
                (sum_samples(change) * variance - weighted(h, score)) / self.samples,
                (sum_samples(flips * score) + weighted(moved, score)) / self.samples,
                weighted(leave_one_out(moved), score) / self.samples,
            ]
        baseline = leave_one_out(t.diagonal().movedim(-1, 0))
        estimates.append(weighted(baseline, score) / self.samples)

        stacked, alpha = torch.stack(estimates), self.alpha.value()
        if self.learns_from(losses):
            self.alpha.learn_(stacked)
        return Estimate(losses.mean(0), combine(stacked, alpha))


def _surrogates(gradient: Tensor, t: Tensor, b: Tensor) -> tuple[tuple[Tensor, Tensor], ...]:
    """h_k(b_k) `[K, ...]` and h_k(b_{k,i→1}) - h_k(b_{k,i→0}) `[K, ..., D]`, for both φ.

    For φ(t) = t² the difference is 2 t ∂_i f ± (∂_i f)², the sign as b_ki is 0 or 1.
    """
    mean = t / (len(t) - 1)
    mean.diagonal().zero_()  # Σ over j is now the mean over j ≠ k
    along, own = weighted(mean, gradient), leave_one_out(gradient.square())
    linear = mean.sum(1), leave_one_out(gradient)
    return linear, ((mean * t).sum(1), 2 * along + (1 - 2 * b) * own)

"""RODEO: control variates from a Stein operator that flips single units (Shi et al. 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.estimators._coefficients import Coefficients, combine
from hardgate.estimators._estimator import (
    Context,
    Estimate,
    Loss,
    ManySamples,
    Noise,
    sample,
    value_and_gradient,
)
from hardgate.estimators._leave_one_out import leave_one_out, rloo, weighted
from hardgate.units._unit import single


class RODEO(ManySamples):
    """RLOO plus Gibbs-Stein control variates of surrogates h, built from f at the other samples.

    For any h, (A_i h)(b) = q(b_i → 1-b_i)(h(flip_i b) - h(b)) has mean zero: both values of b_i,
    weighed by their probability, less the one that was drawn. With the surrogates

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
        b = sample(p, single(noise))  # [K, ..., D]
        losses, gradient = value_and_gradient(f, b)
        score, sign = b - p, 1 - 2 * b
        g = rloo(losses.detach(), score)
        variance, own = p * torch.sigmoid(-a), (gradient * score).sum(-1)
        v = torch.stack(
            [
                *_stein(*_linear(gradient, score, sign), score, sign, variance),
                *_stein(*_square(gradient, score, sign), score, sign, variance),
                weighted(leave_one_out(own), score) / len(b),
            ]
        )
        alpha = self.alpha.value()
        if self.adapting:
            self.alpha.update(g, v)
        return Estimate(losses.mean(0), combine(g, alpha, v))


def _linear(gradient: Tensor, score: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """h_k(b_k) `[K, ...]` and h_k(flip_i b_k) - h_k(b_k) `[K, ..., D]` for φ(t) = t."""
    others = leave_one_out(gradient)
    return (others * score).sum(-1), others * sign


def _square(gradient: Tensor, score: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """The same for φ(t) = t²: (t + δ)² - t² = 2tδ + δ², δ = ∂_i f(b_j)(1 - 2 b_ki)."""
    K = len(score)
    t = (gradient * score.unsqueeze(1)).sum(-1)  # [k, j, ...]
    other = (1 - torch.eye(K, dtype=t.dtype, device=t.device)) / (K - 1)
    mean = other.view(K, K, *[1] * (t.dim() - 2)) * t  # Σ over j is now the mean over j ≠ k
    along = (mean.unsqueeze(-1) * gradient).sum(1)
    return (mean * t).sum(1), 2 * along * sign + leave_one_out(gradient.square())


def _stein(
    h: Tensor, change: Tensor, score: Tensor, sign: Tensor, variance: Tensor
) -> tuple[Tensor, ...]:
    """The three control variates of h, each `[..., D]`."""
    K, moved = len(h), score.abs() * change  # A_i h, as q(b_i → 1-b_i) = |b_i - p_i|
    total = moved.sum(-1)
    # E over b_i of h (b_i - p_i) is p(1-p)(h(b_{i→1}) - h(b_{i→0})), one of the two being h(b)
    own = (sign * change).mean(0) * variance - weighted(h, score) / K
    rest = weighted(total, score) / K - (moved * score).mean(0)
    return own, rest, weighted(leave_one_out(total), score) / K

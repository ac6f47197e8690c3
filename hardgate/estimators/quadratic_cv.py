"""Double control variates on f less a quadratic form, learnt from f's gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.averages import DecayingRatio
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
from hardgate.learning.coefficients import Coefficients, combine
from hardgate.units._unit import single


class QuadraticCV(ManySamples):
    """`DoubleCV` on f - S, S(b) = ½ Σ_{i≠j} M_ij (b_i-p_i)(b_j-p_j), whose own gradient is 0.

    An idea of this library. Products (b_i - p_i)(b_j - p_j) have no part in ∂E f/∂a, but make up
    most of the variance that `DoubleCV` leaves. M is the regression of ∇f on b - p,

        M_ij = E[∂_i f (b_j - p_j)] / E[p_j(1-p_j)],

    an average over past samples, made symmetric. M's diagonal is of use as well: ½ M_ii b_i(b_i-1)
    is zero at every b, yet moves ∂_i f to what the unit's flip will do. And w = E[∇f - ∇S], the
    slope that is left, serves as a linear control variate besides the leave-one-out gradient:

        g = RLOO(f) + α_1 V(∇f) + α_2 V(∇S) + α_3 V(w) + α_4 RLOO(S),
        V(h) = RLOO(h_{-k}·(b_k - p)) - mean_k h_k p(1-p),

    unbiased for all α, which are the coefficients of least variance: what has been learnt badly
    is not used. A loss that is quadratic ends without variance. Per sample it costs two products
    with a D × D matrix more than `DoubleCV`; what M holds is what all examples have in common.

    Args:
        samples: K ≥ 2.
        decay: of the averages behind M and w.
        adapt: False keeps everything where it is (`DoubleCV` with α = -1 at the start).

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1).square(), a, QuadraticCV()).backward()
        >>> tuple(a.grad.shape)
        (3,)
    """

    unbiased = True
    needs_gradient_of_f = True
    state = tuple(f"{name}.{part}" for name in ("M", "w", "alpha") for part in DecayingRatio.state)

    def __init__(self, samples: int = 2, *, decay: float = 0.99, adapt: bool = True) -> None:
        super().__init__(samples, adapt=adapt)
        self.M, self.w = DecayingRatio(decay), DecayingRatio(decay)
        # A short memory: while M is still bad, its control variates are large and outweigh others.
        self.alpha = Coefficients((-1.0, 1.0, 0.0, -1.0), decay=0.95)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        p, D = torch.sigmoid(a), a.shape[-1]
        b = bernoulli(p, single(noise))  # [K, ..., D]
        losses, gradient = value_and_gradient(f, b)
        score, variance = b - p, p * torch.sigmoid(-a)
        M, w = self.M.ratio(D, D).to(a), self.w.ratio(D).to(a)
        M = 0.5 * (M + M.T)
        S, slope = quadratic(M, p, score)

        linear = [(leave_one_out(h) * score).sum(-1) for h in (gradient, slope)]
        estimates = rloo(torch.stack([losses.detach(), *linear, score @ w, S]), score)
        means = (sum_samples(gradient) / self.samples, sum_samples(slope) / self.samples, w)
        for V, h in zip(estimates[1:4], means, strict=True):
            V -= h * variance  # of mean zero from here on
        alpha = self.alpha.value()
        if self.learns_from(losses):
            self.alpha.learn_(estimates)
            self._learn_(gradient - slope, M, w, score, variance)
        return Estimate(losses.mean(0), combine(estimates, alpha))

    def _learn_(self, rest: Tensor, M: Tensor, w: Tensor, score: Tensor, variance: Tensor) -> None:
        """M and w by the gradient that they leave: what they explain adds no noise to them."""
        D = score.shape[-1]
        rows, scores = (rest - w).flatten(0, -2), score.flatten(0, -2)
        spread = self.samples * variance.sum_to_size(D)
        self.M.update_(torch.addmm(M * spread, rows.T, scores), spread)
        self.w.update_(rest.sum_to_size(D), spread.new_full((D,), len(rows)))


def quadratic(M: Tensor, p: Tensor, score: Tensor) -> tuple[Tensor, Tensor]:
    """S and the gradient of S + ½ Σ M_ii b_i(b_i - 1), at every sample, for a symmetric M.

    M's diagonal has no part in S, and M_ii (b_i - ½) = M_ii (b_i - p_i) + M_ii (p_i - ½) in its
    gradient.
    """
    diagonal, product = M.diagonal(), score @ M
    S = 0.5 * ((product - diagonal * score) * score).sum(-1)
    return S, product + diagonal * (p - 0.5)

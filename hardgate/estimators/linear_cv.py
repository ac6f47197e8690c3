"""A linear control variate whose slope is what the estimates themselves add up to."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.averages import DecayingRatio
from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Loss, Noise
from hardgate.estimators._leave_one_out import rloo
from hardgate.estimators._odds import Odds
from hardgate.estimators.arms import Repelled, debias, dirichlet_copula
from hardgate.learning.coefficients import Coefficient
from hardgate.units._unit import single


class LinearCV(Repelled):
    """ARMS on f + α w·(b - p), less α w p(1-p), with w_i = E[g_i] / E[p_i(1-p_i)].

    An idea of this library. w_i is f's mean slope in unit i, found from past estimates: no
    gradient of f is needed. α = -E[g·v] / E[v·v], v being what α multiplies, gives the least
    variance. Corollary 1's baseline of least variance is E f + (1-2p_i) w_i. That baseline removes
    from g_i what unit i itself adds to f's variance; `LinearCV` removes what all units add. It
    helps where the slopes are similar in all examples. Where they are not, α goes to zero, and it
    is `ARMS`.

    Args:
        samples: K ≥ 2.
        decay: of the moving averages behind w and α.
        adapt: False keeps w and α where they are (0 at the start).

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, LinearCV()).backward()
        >>> tuple(a.grad.shape)
        (3,)
    """

    unbiased = True
    state = tuple(f"{name}.{part}" for name in ("w", "alpha") for part in DecayingRatio.state)

    def __init__(self, samples: int = 2, *, decay: float = 0.99, adapt: bool = True) -> None:
        super().__init__(samples, adapt=adapt)
        self.w = DecayingRatio(decay)
        self.alpha = Coefficient(0.0, decay=decay)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        odds, D = Odds.of(a), a.shape[-1]
        b = dirichlet_copula(odds, single(noise))  # [K, ..., D]
        losses = losses_of(f, b)
        w, alpha, variance = self.w.ratio(D).to(a), self.alpha.value(), odds.p * odds.q
        g, v = rloo(torch.stack([losses.detach(), b @ w]), b) * debias(odds, self.samples)
        v = v - w * variance  # of mean zero
        out = g + alpha * v
        if self.learns_from(losses):
            self.alpha.learn_(g, v)
            self.w.update_(out.sum_to_size(D), variance.sum_to_size(D))
        return Estimate(losses.mean(0), out)

"""A linear control variate whose slope is what the estimates themselves add up to."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._coefficient import Coefficient
from hardgate.estimators._estimator import Context, Estimate, Loss, Noise
from hardgate.estimators._leave_one_out import rloo
from hardgate.estimators._odds import Odds
from hardgate.estimators._ratio import Ratio
from hardgate.estimators.arms import Repelled, debias, dirichlet_copula
from hardgate.exact import losses_of
from hardgate.units._unit import single


class LinearCV(Repelled):
    """ARMS on f + α w·(b - p), less α w p(1-p), with w_i = E[g_i] / E[p_i(1-p_i)].

    An idea of this library. w_i is f's mean slope in unit i, found from past estimates: no
    gradient of f is needed. Corollary 1's baseline of least variance is E f + (1-2p_i) w_i: that
    removes from g_i what unit i itself adds to f's variance, this what all units add. It pays
    where the slopes are alike in all examples; where they are not, α goes to zero and it is
    `ARMS`.

    Args:
        samples: K ≥ 2.
        decay: of the moving averages behind w.
        adapt: False keeps w and α where they are (0 and -1 at the start).

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, LinearCV()).backward()
        >>> tuple(a.grad.shape)
        (3,)
    """

    unbiased = True
    state = (
        "slope.numerator",
        "slope.denominator",
        "alpha.numerator",
        "alpha.denominator",
    )

    def __init__(self, samples: int = 2, *, decay: float = 0.99, adapt: bool = True) -> None:
        super().__init__(samples, adapt=adapt)
        self.slope = Ratio(decay)
        self.alpha = Coefficient(-1.0)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        odds = Odds.of(a)
        b = dirichlet_copula(odds, single(noise))  # [K, ..., D]
        losses = losses_of(f, b)
        variance = odds.p * odds.q
        w = self.slope.value(a, a.shape[-1])
        L = torch.stack([losses.detach(), b @ w])
        g, v = rloo(L, b, debias(odds, self.samples))  # two of ARMS; p cancels
        v.addcmul_(w, variance, value=-1)  # of mean zero
        alpha = self.alpha.value()
        out = torch.addcmul(g, alpha, v)
        if self.adapting:
            self.alpha.update(g, v)
            units = a.shape[-1:]
            self.slope.update(out.sum_to_size(units), variance.sum_to_size(units))
        return Estimate(losses.mean(0), out)

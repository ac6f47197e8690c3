"""A linear control variate whose slope is what the estimates themselves add up to."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._across import total
from hardgate._state import decay_, proper_decay
from hardgate.estimators._estimator import Context, Estimate, Loss, Noise
from hardgate.estimators._leave_one_out import rloo
from hardgate.estimators._odds import Odds
from hardgate.estimators._refusals import other_units
from hardgate.estimators.arms import Repelled, debias, dirichlet_copula
from hardgate.exact import losses_of
from hardgate.units._unit import single


class LinearCV(Repelled):
    """ARMS on f + α w·(b - p), less α w p(1-p), with w_i = E[g_i] / E[p_i(1-p_i)].

    An idea of this library. w_i is f's mean slope in unit i, found from past estimates: no
    gradient of f is needed. α = -E[g·v] / E[v·v], v being what α multiplies, gives the least
    variance. Corollary 1's baseline of least variance is E f + (1-2p_i) w_i: that removes from g_i
    what unit i itself adds to f's variance, this what all units add. It pays where the slopes are
    alike in all examples; where they are not, α goes to zero and it is `ARMS`.

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

    sums: Tensor
    unbiased = True
    state = ("sums",)

    def __init__(self, samples: int = 2, *, decay: float = 0.99, adapt: bool = True) -> None:
        super().__init__(samples, adapt=adapt)
        self.decay = proper_decay(decay)
        # Decaying, by unit and, at the end, over all: of g and -g·v; of p(1-p) and v·v. In one
        # buffer, since to move two takes twice as long.
        self.register_buffer("sums", torch.zeros(2, 0))

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        odds = Odds.of(a)
        b = dirichlet_copula(odds, single(noise))  # [K, ..., D]
        losses = losses_of(f, b)
        variance = odds.p * odds.q
        w, alpha = self._ratios(a)
        L = torch.stack([losses.detach(), b @ w])
        g, v = rloo(L, b, debias(odds, self.samples))  # two of ARMS; p cancels
        v = torch.addcmul(v, w, variance, value=-1)  # of mean zero
        out = torch.addcmul(g, alpha, v)
        if self.adapting:
            self._learn(g, v, out, variance)
        return Estimate(losses.mean(0), out)

    def _ratios(self, a: Tensor) -> tuple[Tensor, Tensor]:
        """w and α; zero where nothing is known."""
        sums, units = self.sums, a.shape[-1]
        if sums.numel() == 0:
            return a.new_zeros(units), a.new_zeros(())
        if sums.shape[-1] != units + 1:
            raise other_units(sums.shape[-1] - 1, units)
        ratios = torch.div(*sums.unbind()).nan_to_num_(0.0, 0.0, 0.0).to(a)
        return ratios[:-1], ratios[-1]

    def _learn(self, g: Tensor, v: Tensor, out: Tensor, variance: Tensor) -> None:
        units, v = g.shape[-1:], v.flatten()
        product, square = g.flatten().dot(v), v.dot(v)
        above = [out.sum_to_size(units), -product.view(1)]
        below = [variance.sum_to_size(units), square.view(1)]
        now = total(torch.cat(above + below).view(2, -1), self.synchronised)
        if self.sums.numel() == 0:
            self.sums = torch.zeros_like(now, dtype=self.sums.dtype)
        decay_((self.sums,), (now,), self.decay)

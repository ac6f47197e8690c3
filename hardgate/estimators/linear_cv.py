"""A linear control variate whose slope is what the estimates themselves add up to."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import proper_decay
from hardgate._base.averages import decay_
from hardgate._base.distributed import active, total
from hardgate.estimators._estimator import Context, Estimate, Loss, Noise
from hardgate.estimators._leave_one_out import rloo
from hardgate.estimators._odds import Odds
from hardgate.estimators._refusals import other_units
from hardgate.estimators.arms import Repelled, debias, dirichlet_copula
from hardgate.exact import losses_of
from hardgate.kernels import compiler
from hardgate.units._unit import single

_LITTLE = 2**20  # numbers in the samples, which one thread goes through


class LinearCV(Repelled):
    """ARMS on f + α w·(b - p), less α w p(1-p), with w_i = E[g_i] / E[p_i(1-p_i)].

    An idea of this library. w_i is f's mean slope in unit i, found from past estimates: no
    gradient of f is needed. α = -E[g·v] / E[v·v], v being what α multiplies, gives the least
    variance. Corollary 1's baseline of least variance is E f + (1-2p_i) w_i: that removes from g_i
    what unit i itself adds to f's variance, this what all units add. It pays where the slopes are
    alike in all examples; where they are not, α goes to zero and it is `ARMS`. With two samples one
    kernel (Numba's, compiled on first use) does all that follows the evaluations of f.

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
        self.decay = float(proper_decay(decay))
        # Decaying, by unit and, at the end, over all: of g and -g·v; of p(1-p) and v·v.
        self.register_buffer("sums", torch.zeros(2, 0))

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        odds = Odds.of(a)
        b = dirichlet_copula(odds, single(noise))  # [K, ..., D]
        losses = losses_of(f, b)
        if self.adapting and self.sums.numel() == 0:
            self.sums = self.sums.new_zeros(2, a.shape[-1] + 1, device=a.device)
        way = self._at_once if self._fits(losses, b, *odds) else self._estimated
        return Estimate(losses.mean(0), way(losses.detach(), b, odds))

    def _estimated(self, L: Tensor, b: Tensor, odds: Odds) -> Tensor:
        """g + α v."""
        w, alpha = self._ratios(odds.p)
        variance = odds.p * odds.q
        g, v = rloo(torch.stack([L, b @ w]), b, debias(odds, self.samples))  # p cancels in both
        v = torch.addcmul(v, w, variance, value=-1)  # of mean zero
        out = torch.addcmul(g, alpha, v)
        if self.adapting:
            self._learn(g, v, out, variance)
        return out

    def _ratios(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """w and α; zero where nothing is known."""
        sums, units = self.sums, p.shape[-1]
        if sums.numel() == 0:
            return p.new_zeros(units), p.new_zeros(())
        if sums.shape[-1] != units + 1:
            raise other_units(sums.shape[-1] - 1, units)
        ratios = torch.div(*sums.unbind()).nan_to_num_(0.0, 0.0, 0.0).to(p)
        return ratios[:-1], ratios[-1]

    def _learn(self, g: Tensor, v: Tensor, out: Tensor, variance: Tensor) -> None:
        units, v = g.shape[-1:], v.flatten()
        product, square = g.flatten().dot(v), v.dot(v)
        above = [out.sum_to_size(units), -product.view(1)]
        below = [variance.sum_to_size(units), square.view(1)]
        now = torch.cat(above + below).view(2, -1)
        decay_((self.sums,), (total(now, self.synchronised),), self.decay)

    def _fits(self, losses: Tensor, b: Tensor, p: Tensor, q: Tensor) -> bool:
        """Whether one kernel can do it: two samples, in fp32 on a CPU, nobody to sum with."""
        tensors = (losses, b, p, q, self.sums)
        return (
            b.shape == (2, *p.shape)
            and b.numel() <= _LITTLE
            and self.sums.shape == (2, b.shape[-1] + 1)
            and all(t.dtype is torch.float32 and t.is_contiguous() for t in tensors)
            and compiler.usable(*tensors)
            and not active(self.synchronised)
        )

    def _at_once(self, L: Tensor, b: Tensor, odds: Odds) -> Tensor:
        """`_estimated` by one kernel: torch's operations take ten times as long."""
        out, D = torch.empty_like(odds.p), b.shape[-1]
        addresses = (t.data_ptr() for t in (out, b, *odds, L, self.sums))
        compiler.run("linear_cv", b.dtype, *addresses, L[0].numel(), D, self.decay, self.adapting)
        return out

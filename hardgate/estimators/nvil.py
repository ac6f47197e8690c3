"""NVIL: REINFORCE with a baseline that a network learns from the input (Mnih & Gregor 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import flag
from hardgate._base.averages import DecayingRatio
from hardgate._base.distributed import count
from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._network import Network
from hardgate.functional.surrogates import bernoulli
from hardgate.units._unit import single


class NVIL(Estimator):
    """g = (f(b) - C_ψ(x) - c)(b - p), over max(1, s) where `normalise`.

    C_ψ is a network with one hidden layer, trained on the squared error; without a context it
    stays zero. c and s are the running mean and standard deviation of f - C_ψ(x).

    Args:
        hidden: units of the network's hidden layer.
        rate: of the network's Adam.
        decay: of the running mean and deviation.
        normalise: divide by max(1, s), as in the paper. Where s > 1 the gradient is then shorter
            than the true one, in the right direction: `unbiased` is False.
        adapt: see `Estimator`.

    Example:
        >>> import hardgate
        >>> x, a = torch.ones(5, 2), torch.zeros(5, 3, requires_grad=True)
        >>> value = hardgate.expectation(lambda b: b.sum(-1), a, NVIL(), context=x)
        >>> value.sum().backward()
        >>> tuple(a.grad.shape)
        (5, 3)

    References:
        Mnih & Gregor 2014, *Neural variational inference and learning in belief networks*.
    """

    unbiased = True
    n_evals = 1
    uses_context = True
    state = (
        *(f"moments.{name}" for name in DecayingRatio.state),
        *(f"network.{name}" for name in Network.state),
    )

    def __init__(
        self,
        hidden: int = 32,
        *,
        rate: float = 3e-3,
        decay: float = 0.99,
        normalise: bool = False,
        adapt: bool = True,
    ) -> None:
        super().__init__(adapt=adapt)
        self.normalise = flag("normalise", normalise)
        self.unbiased = not normalise
        self.network = Network(hidden, rate)
        self.moments = DecayingRatio(decay)  # E[r] and E[r²], r = f - C_ψ(x)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        p = torch.sigmoid(a)
        b = bernoulli(p, single(noise))
        losses = losses_of(f, b)
        learns, r = self.learns_from(losses), losses.detach()
        if context is not None:
            x = context.detach().flatten(a.dim() - 1)  # [..., C]
            psi = self.network.psi(x, keep=learns)
            r = r - self.network(x, psi)
        c, square = self.moments.ratio(2)
        rest = r - c
        if learns:
            if context is not None:  # by the mean of rest², whose derivative by C_ψ is -2 rest
                by = rest * (-2 / max(1.0, count(rest, self.synchronised)))
                self.network.learn_(self.network.pullback(x, psi, by))
            sums = torch.stack([r.sum(), r.square().sum()])
            self.moments.update_(sums, sums.new_tensor(r.numel()))
        if self.normalise:
            rest = rest / (square - c * c).clamp(min=1).sqrt()  # over max(1, s)
        return Estimate(losses, rest.unsqueeze(-1) * (b - p))

"""NVIL: REINFORCE with a baseline that a network learns from the input (Mnih & Gregor 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import proper_decay
from hardgate._base.averages import decay_
from hardgate._base.distributed import active, total
from hardgate.estimators._adam import EPSILON, FIRST, SECOND
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise, sample
from hardgate.estimators._network import Network
from hardgate.exact import losses_of
from hardgate.kernels import compiler
from hardgate.units._unit import single

_LITTLE = 2**15  # numbers in the network's inputs, up to which one kernel beats torch's products


class NVIL(Estimator):
    """g = (f(b) - C_ψ(x) - c)(b - p), over max(1, s) where `normalise`.

    C_ψ is a network with one hidden layer, trained on the squared error; without a context it
    stays zero. c and s are the running mean and standard deviation of f - C_ψ(x). On small inputs
    one kernel (Numba's, compiled on first use) predicts and learns.

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
    state = ("sums", *(f"network.{name}" for name in Network.state))
    sums: Tensor

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
        self.decay = proper_decay(decay)
        self.normalise, self.unbiased = normalise, not normalise
        self.network = Network(hidden, rate)
        self.register_buffer("sums", torch.zeros(3))  # decaying, of 1, r and r²; r = f - C_ψ

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        p = torch.sigmoid(a)
        b = sample(p, single(noise))
        losses = losses_of(f, b)
        x = None if context is None else context.detach().flatten(a.dim() - 1)  # [..., C]
        s = self._running()[1] if self.normalise else 0.0
        rest = self._rest(losses.detach(), x)
        if self.normalise:
            rest = rest / max(1.0, s)
        return Estimate(losses, rest.unsqueeze(-1) * (b - p))

    def _rest(self, L: Tensor, x: Tensor | None) -> Tensor:
        """f - C_ψ(x) - c, which C_ψ, c and s then learn from."""
        learns, network = self.learns_from(L), self.network
        psi = network.weights if x is None else network.psi(x, keep=learns)
        if x is None or x.shape[:-1] == L.shape:
            adam = network.adam.started(psi) if learns else network.adam
            state = (psi, adam.first, adam.second, adam.steps, self.sums)
            if self._fits(L, x, *state, learns=learns):
                return self._at_once(L, x, state, learns)
        beyond = L if x is None else L - network(x, psi)
        rest = beyond - self._running()[0]
        if learns:
            if x is not None:
                self._learn(x, rest)
            self._move(beyond)
        return rest

    def _fits(self, L: Tensor, x: Tensor | None, *state: Tensor, learns: bool) -> bool:
        """Whether one kernel can do it: little, in fp32 on a CPU, nobody to sum with."""
        psi, first, second, steps, sums = state
        return (
            (L.numel() if x is None else x.numel()) <= _LITTLE
            and all(t.dtype is torch.float32 and t.is_contiguous() for t in (L, *state))
            # What was loaded may have any size, which torch's operations refuse and no kernel sees.
            and (not learns or psi.numel() == first.numel() == second.numel())
            and (steps.numel(), sums.numel()) == (1, 3)
            and compiler.usable(L, x, *state)
            and not active(self.synchronised)
        )

    def _at_once(
        self, L: Tensor, x: Tensor | None, state: tuple[Tensor, ...], learns: bool
    ) -> Tensor:
        """`_rest` by one kernel: torch's operations take longer to start than to run."""
        H, inputs = (0, L) if x is None else (self.network.hidden, x.to(L.dtype).contiguous())
        rest, N = torch.empty_like(L), inputs.shape[-1] if H else 0
        addresses = (t.data_ptr() for t in (rest, L, inputs, *state))
        rates = (float(self.network.adam.rate), FIRST, SECOND, EPSILON, float(self.decay))
        compiler.run("nvil", L.dtype, *addresses, L.numel(), N, H, *rates, learns)
        return rest

    def _running(self) -> tuple[float, float]:
        """c and s; 0 and 0 before the first update."""
        n, r, square = self.sums.tolist()
        mean = r / max(n, 1e-30)
        return mean, max(0.0, square / max(n, 1e-30) - mean**2) ** 0.5

    def _learn(self, x: Tensor, rest: Tensor) -> None:
        """C_ψ by the mean of rest², rest = f - C_ψ(x) - c."""
        by = rest * (-2 / self.count(rest))
        self.network.learn(self.network.pullback(x, self.network.weights, by))

    def _move(self, rest: Tensor) -> None:
        r = rest.flatten().to(self.sums.dtype)
        now = torch.stack([r.new_tensor(r.numel()), r.sum(), r.dot(r)])
        decay_((self.sums,), (total(now, self.synchronised),), self.decay)

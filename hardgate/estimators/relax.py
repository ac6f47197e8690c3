"""RELAX: REBAR with a network added to its control variate (Grathwohl et al. 2018)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._network import Network
from hardgate.estimators._relaxation import (
    Relaxation,
    Temperature,
    relax,
    relaxed_loss,
    two_uniforms,
)
from hardgate.learning.coefficients import Coefficient


class RELAX(Estimator):
    """g = (f(b) - c(z̃))(b - p) + ∂_a c(z) - ∂_a c(z̃), with c(z) = η f(σ(z/λ)) + r_ρ(z).

    r_ρ is a network with one hidden layer that sees 2σ(z) - 1, trained on ‖g‖²: the variance, as
    the mean does not depend on it. It is zero at the start, where RELAX is `REBAR`. η is the
    coefficient of least variance.

    Args:
        temperature: λ.
        learn_temperature: learn λ, too; see `REBAR`.
        hidden: units of the network's hidden layer.
        rate: of the network's Adam.
        adapt: False keeps η, r_ρ and λ where they are.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1).square(), a, RELAX()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Grathwohl, Choi, Wu, Roeder & Duvenaud 2018, *Backpropagation through the void: optimizing
        control variates for black-box gradient estimation*.
    """

    unbiased = True
    n_evals = 3
    needs_gradient_of_f = True
    needs_relaxed_f = True
    state = (
        "eta.numerator",
        "eta.denominator",
        *(f"network.{name}" for name in Network.state),
    )

    def __init__(
        self,
        temperature: float = 0.5,
        *,
        learn_temperature: bool = False,
        hidden: int = 32,
        rate: float = 3e-3,
        adapt: bool = True,
    ) -> None:
        super().__init__(adapt=adapt)
        self.eta = Coefficient(1.0)
        self.temperature = Temperature(temperature, learn=learn_temperature)
        self.network = Network(hidden, rate)
        self.state += self.temperature.learnt("temperature")

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return two_uniforms(a, generator)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        at = relax(a, noise)
        losses, score = losses_of(f, at.b), at.b - torch.sigmoid(a)
        log = self.temperature.leaf(learning=self.adapting)
        c, slope = relaxed_loss(f, at, log)
        g = losses.detach().unsqueeze(-1) * score  # REINFORCE
        v = at.control(c[1], slope, score)
        learns = self.learns_from(losses)
        psi = self.network.psi(a, keep=learns).clone().requires_grad_()
        r = self._network_control(at, score, psi)
        out = g + self.eta.value() * v + r
        if learns:
            self.eta.learn_(g + r.detach(), v)
            # The variance, and the mean's square, which stays.
            variance = self.share_of_mean(out.square().sum(-1))
            self.temperature.learn_(variance, log)
            self.network.learn_(*torch.autograd.grad(variance, psi))
        return Estimate(losses, out.detach())

    def _network_control(self, at: Relaxation, score: Tensor, psi: Tensor) -> Tensor:
        """The control variate of r_ρ, with the graph of its weights."""
        z = torch.stack([at.z, at.z_tilde]).requires_grad_()
        r = self.network(2 * torch.sigmoid(z) - 1, psi)
        (slope,) = torch.autograd.grad(r.sum(), z, create_graph=self.adapting)
        return at.control(r[1], slope, score)

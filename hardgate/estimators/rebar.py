"""REBAR: the relaxed loss, conditioned on b, as control variate (Tucker et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._relaxation import Temperature, relax, relaxed_loss, two_uniforms
from hardgate.learning.coefficients import Coefficient


class REBAR(Estimator):
    """g = (f(b) - η c(z̃))(b - p) + η (∂_a c(z) - ∂_a c(z̃)), with c(z) = f(σ(z/λ)).

    z = a + logit u is what b = 1[z > 0] was drawn from, and z̃ is drawn again given b: it depends
    on a, too. Unbiased for every η and λ. g is linear in η, which is the coefficient of least
    variance; as c(z̃) stands in for f's baseline as well, it is near 1.

    Args:
        temperature: λ. Small: c is close to f, but its slope varies.
        learn_temperature: learn λ on ‖g‖², as in the paper. f has to be differentiable twice,
            and is differentiated once more. λ may matter by a factor of two or more: few units
            like it near 1, the 200 of a Bernoulli VAE near 0.1.
        adapt: False keeps η (1 at the start) and λ where they are.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1).square(), a, REBAR()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Tucker, Mnih, Maddison, Lawson & Sohl-Dickstein 2017, *REBAR: low-variance, unbiased
        gradient estimates for discrete latent variable models*.
    """

    unbiased = True
    n_evals = 3
    needs_gradient_of_f = True
    needs_relaxed_f = True
    state: tuple[str, ...] = ("eta.numerator", "eta.denominator")

    def __init__(
        self, temperature: float = 0.5, *, learn_temperature: bool = False, adapt: bool = True
    ) -> None:
        super().__init__(adapt=adapt)
        self.eta = Coefficient(1.0)
        self.temperature = Temperature(temperature, learn=learn_temperature)
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
        out = g + self.eta.value() * v
        if self.learns_from(losses):
            self.eta.learn_(g, v)
            self.temperature.learn_(self.share_of_mean(out.square().sum(-1)), log)
        return Estimate(losses, out.detach())

"""SPSA: all logits moved at once, by random signs (Spall 1992)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Loss, Noise
from hardgate.estimators._perturbation import Perturbation
from hardgate.functional.surrogates import bernoulli
from hardgate.noise import uniform


class SPSA(Perturbation):
    """g_i = (f(b⁺) - f(b⁻)) / (2c Δ_i), with b^± = 1[u < σ(a ± cΔ)], the same u, Δ ∈ {±1}^D.

    Biased by O(c²): its mean is that of (F(a + cΔ) - F(a - cΔ)) / (2c Δ_i) over Δ, F = E f(b).
    Two evaluations make the gradient; the third, at a, is the value.

    Args:
        step: c. The variance grows as 1/c.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, SPSA()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Spall 1992, *Multivariate stochastic approximation using a simultaneous perturbation
        gradient approximation*.
    """

    n_evals = 3

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return uniform(a, generator), uniform(a, generator)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        u, signs = noise
        delta = torch.where(signs < 0.5, self.step, -self.step)  # cΔ
        losses = losses_of(f, bernoulli(torch.sigmoid(a), u))
        with torch.no_grad():
            moved = torch.sigmoid(torch.stack([a + delta, a - delta]))
            above, below = losses_of(f, bernoulli(moved, u))
        return Estimate(losses, (above - below).unsqueeze(-1) / (2 * delta))

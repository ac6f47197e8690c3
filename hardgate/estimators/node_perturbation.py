"""Node perturbation: Gaussian noise on the logits, times the loss (Fiete & Seung 2006)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Loss, Noise
from hardgate.estimators._perturbation import Perturbation
from hardgate.functional.surrogates import bernoulli
from hardgate.noise import normal, uniform


class NodePerturbation(Perturbation):
    """g_i = (f(b′) - f(b)) ξ_i/s², with b′ = 1[u < σ(a + ξ)], b = 1[u < σ(a)], ξ ~ N(0, s²).

    Biased by O(s²): its mean is the gradient of E f(b) averaged over logits a + ξ (Stein).

    Args:
        step: s. The variance grows as 1/s.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, NodePerturbation()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Fiete & Seung 2006, *Gradient learning in spiking neural networks by dynamic perturbation
        of conductances*.
    """

    n_evals = 2

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return uniform(a, generator), normal(a, generator)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        u, z = noise
        losses = losses_of(f, bernoulli(torch.sigmoid(a), u))
        with torch.no_grad():
            difference = losses_of(f, bernoulli(torch.sigmoid(a + self.step * z), u)) - losses
        return Estimate(losses, difference.unsqueeze(-1) * z / self.step)  # ξ/s² = z/s

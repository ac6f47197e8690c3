"""bitflip-1: one unit, drawn at random, is flipped (Kunes et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._flips import draw_unit, flip
from hardgate.functional.surrogates import bernoulli
from hardgate.noise import uniform


class BitFlip(Estimator):
    """g_j = D p_j(1-p_j) (-1)^{b_j} (f(flip_j b) - f(b)) for j uniform over the units, else 0.

    E[g_i²] = D p_i²(1-p_i)² E[Δf²]: it falls as p² where units are rare, DisARM's as p only; but it
    grows with D.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, BitFlip()).backward()
        >>> sorted(a.grad.abs().tolist())
        [0.0, 0.0, 0.75]

    References:
        Kunes, Yin, Land, Haviv, Pe'er & Tavaré 2023, *Gradient estimation for binary latent
        variables via gradient variance clipping*.
    """

    unbiased = True
    n_evals = 2

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return uniform(a, generator), uniform(a[..., :1], generator)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        u, v = noise
        b = bernoulli(torch.sigmoid(a), u)
        chosen = draw_unit(torch.ones_like(b), v)
        losses = losses_of(f, b)
        with torch.no_grad():  # flip_j b is no sample of b: it has no part in the value
            difference = losses_of(f, flip(b, chosen)) - losses
        g = a.shape[-1] * chosen * flip_gradient(a, b, difference.unsqueeze(-1))
        return Estimate(losses, g)


def flip_gradient(a: Tensor, b: Tensor, difference: Tensor) -> Tensor:
    """p(1-p) (-1)^b (f(flip_i b) - f(b)) = p(1-p) (f(b_{i→1}) - f(b_{i→0}))."""
    return torch.sigmoid(a) * torch.sigmoid(-a) * (1 - 2 * b) * difference

"""The Bernoulli VAE: linear encoder, linear decoder, learned prior."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from hardgate.estimators import Estimator, expectation
from hardgate.units import Unit


class BernoulliVAE(nn.Module):
    """x → a → b ~ Bernoulli(σ(a)) → x, with independent units b and pixels x.

    - encoder: a = W(x - mean) + c, the logits of q(b|x);
    - decoder: V(2b - 1) + d, the logits of p(x|b);
    - prior: π, the learned logits of p(b).

    The evidence lower bound is split as ELBO = E_q log p(x|b) - KL(q(b|x) ‖ p(b)). Only its first
    term is estimated, f(b) = -log p(x|b); the divergence is a formula, differentiated as such. So
    a relaxed b never meets the density of a binary one, and all estimators have one objective.

    Args:
        mean: of the training images, `[pixels]`; it centres the inputs, and starts d.
        units: D.

    Example:
        >>> from hardgate.estimators import DisARM
        >>> model = BernoulliVAE(torch.full((16,), 0.3), units=4)
        >>> x = torch.ones(5, 16)
        >>> tuple(model.loss(x, DisARM()).shape)
        (5,)
    """

    mean: Tensor

    def __init__(self, mean: Tensor, units: int = 200) -> None:
        super().__init__()
        pixels = mean.numel()
        self.register_buffer("mean", mean.clone())
        self.encoder = nn.Linear(pixels, units)
        self.decoder = nn.Linear(units, pixels)
        self.prior = nn.Parameter(torch.zeros(units))
        with torch.no_grad():  # where V(2b - 1) is 0, each pixel is at its mean
            self.decoder.bias.copy_(torch.logit(mean.clamp(1e-3, 1 - 1e-3)))

    def logits(self, x: Tensor) -> Tensor:
        """The logits a of q(b|x), `[B, pixels]` → `[B, D]`."""
        a: Tensor = self.encoder(x - self.mean)
        return a

    def reconstruction(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """f(b) = -log p(x|b): samples `[..., B, D]` → losses `[..., B]`."""

        def f(b: Tensor) -> Tensor:
            pixels = self.decoder(2 * b - 1)
            target = x.expand_as(pixels)
            return binary_cross_entropy_with_logits(pixels, target, reduction="none").sum(-1)

        return f

    def divergence(self, a: Tensor) -> Tensor:
        """KL(q ‖ p) = Σ_i σ(a_i)(a_i - π_i) - softplus(a_i) + softplus(π_i), `[B]`."""
        each = torch.sigmoid(a) * (a - self.prior) - softplus(a) + softplus(self.prior)
        return each.sum(-1)

    def loss(self, x: Tensor, estimator: Estimator | Unit) -> Tensor:
        """-ELBO of each image, `[B]`, with the gradient that the estimator gives the encoder."""
        a = self.logits(x)
        context = x if isinstance(estimator, Estimator) and estimator.uses_context else None
        value = expectation(self.reconstruction(x), a, estimator, context=context)
        return value + self.divergence(a)

"""The ELBO's mean and standard error, by value."""

from __future__ import annotations

import pytest
import torch

from hardgate_lab.vae.autoencoder import BernoulliVAE
from hardgate_lab.vae.elbo import elbo


def test_the_error_is_that_of_the_mean_over_draws() -> None:
    """√(Σ_i s_i²/K) / n for n images with K draws each, s_i² their scatter over draws."""
    model = BernoulliVAE(torch.full((12,), 0.3), 6)
    images, draws = (torch.rand(40, 12) < 0.5).float(), 5
    found = elbo(model, images, draws, seed=3)
    with torch.no_grad():
        a = model.logits(images)
        p = torch.sigmoid(a).expand(draws, *a.shape)
        b = torch.bernoulli(p, generator=torch.Generator().manual_seed(3))
        losses = model.reconstruction(images)(b) + model.divergence(a)
    assert found.mean == pytest.approx(-losses.mean().item(), rel=1e-5)
    expected = (losses.var(0) / draws).sum().sqrt().item() / len(images)
    assert found.error == pytest.approx(expected, rel=1e-5)

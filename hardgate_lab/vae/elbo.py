"""The ELBO of a model, always with hard samples."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hardgate_lab.vae.autoencoder import BernoulliVAE

_BATCH = 500


class Elbo(NamedTuple):
    """In nats per image: the mean over images and draws, and its standard error over draws."""

    mean: float
    error: float


@torch.no_grad()
def elbo(model: BernoulliVAE, images: Tensor, draws: int, seed: int) -> Elbo:
    """The ELBO on images, each with `draws` samples b ~ q(b|x).

    The images count as given: the standard error is that of the draws alone, from the scatter of
    the draws of each image.

    Args:
        model: its units are sampled, whatever it was trained with.
        images: `[n, pixels]`, 0 or 1.
        draws: at least 2.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    total, variance = 0.0, 0.0
    for chunk in images.split(_BATCH):
        x = chunk.float()
        a = model.logits(x)
        f = model.reconstruction(x)
        p = torch.sigmoid(a).expand(draws, *a.shape)
        losses = f(torch.bernoulli(p, generator=generator)) + model.divergence(a)  # [draws, B]
        total -= losses.mean(0).sum().item()
        variance += losses.var(0).sum().item() / draws
    return Elbo(total / len(images), variance**0.5 / len(images))

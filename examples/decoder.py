"""A decoder of 100 binary units: the loss of one 14 × 14 image, in nats."""

# A problem for `hardgate compare --problem examples/decoder.py`: any Python file with `logits` [D]
# and `f`, from samples [..., D] to one loss each, [...].

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, linear

_random = torch.Generator().manual_seed(0)


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_random)


W1, W2 = _normal(100, 100) / 10, _normal(196, 100) / 10
image = (torch.rand(196, generator=_random) < 0.3).float()
logits = _normal(100)


def f(b: Tensor) -> Tensor:
    """-log p(image | b) under a decoder 100-100-196."""
    pixels = linear(torch.tanh(linear(2 * b - 1, W1)), W2)
    target = image.expand_as(pixels)
    return binary_cross_entropy_with_logits(pixels, target, reduction="none").sum(-1)

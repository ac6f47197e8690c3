"""p and 1-p of every unit, each exact where it is small."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Odds(NamedTuple):
    """p = σ(a) and q = σ(-a) = 1-p, which 1 - p would round to zero from a = 17 on."""

    p: Tensor
    q: Tensor

    @staticmethod
    def of(a: Tensor) -> Odds:
        """Of logits."""
        return Odds(torch.sigmoid(a), torch.sigmoid(-a))

    @property
    def rarer(self) -> Tensor:
        """The probability of the value that is rarer: σ(-|a|)."""
        return torch.minimum(self.p, self.q)

    @property
    def commoner(self) -> Tensor:
        """The probability of the other: σ(|a|)."""
        return torch.maximum(self.p, self.q)

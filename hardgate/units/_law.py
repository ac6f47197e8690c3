"""What the laws of the units share: points for quadrature, and the Bernoulli law."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_GRID = 2**20  # points of the product over D units: as many nodes for each as that allows


def nodes_per_unit(a: Tensor) -> int:
    """How many values a law over the units of `a` `[D]` may have."""
    return min(100, round(math.exp(math.log(_GRID) / a.shape[-1])))


def unit_interval(n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """n Gauss-Legendre nodes in (0, 1) and their weights, as columns `[n, 1]` like `like`."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return column((nodes + 1) / 2, like), column(weights / 2, like)


def column(numbers: np.ndarray | list[float], like: Tensor) -> Tensor:
    """The numbers as a column `[n, 1]` in the dtype of `like`."""
    return torch.as_tensor(numbers).to(like).unsqueeze(-1)


def bernoulli_law(a: Tensor) -> tuple[Tensor, Tensor]:
    """0 and 1 with the probabilities σ(-a) and σ(a)."""
    ones = torch.ones_like(a)
    return torch.stack([0 * ones, ones]), torch.stack([torch.sigmoid(-a), torch.sigmoid(a)])

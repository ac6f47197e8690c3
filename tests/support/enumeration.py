"""Exact means and variances of a binary unit's gradient: every outcome, handed in as noise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hardgate import Unit
from hardgate.units._unit import NoiseTensors

A = torch.tensor([0.4, -0.8, 1.2, -0.3], dtype=torch.float64)


def outcomes(D: int) -> Tensor:
    """All binary vectors `[2^D, D]`."""
    return torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * D).reshape(-1, D)


def outcome_noise(b: Tensor) -> Tensor:
    """Uniform noise u that makes 1[u < σ(a)] equal b, unless σ(a) rounds to 0 or 1."""
    return torch.where(b > 0, 0.0, 1 - 2.0**-24)


def slope(unit: Unit, a: Tensor, noise: NoiseTensors) -> Tensor:
    """∂h/∂a."""
    x = a.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(unit(x, noise).sum(), x)
    return g


def outcome_gradients(
    unit: Unit, f: Callable[[Tensor], Tensor], a: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradient at `a` `[D]` for every outcome, `[2^D, D]`, and its probability, `[2^D, 1]`."""
    b = outcomes(len(a))
    points = a.detach().expand(b.shape).clone().requires_grad_()
    h = unit(points, outcome_noise(b))
    assert torch.equal(h, b)
    (g,) = torch.autograd.grad(f(h).sum(), points)
    p = torch.sigmoid(a.detach())
    return g, torch.where(b > 0, p, 1 - p).prod(-1, keepdim=True)


def expected(unit: Unit, f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """E[g], exactly, for a unit whose slope depends on its outcome alone."""
    g, q = outcome_gradients(unit, f, a)
    return (q * g).sum(0)


def variance(unit: Unit, f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """Var(g_i), exactly."""
    g, q = outcome_gradients(unit, f, a)
    return (q * (g - (q * g).sum(0)).square()).sum(0)

"""The exact law of each unit's output, and with it the exact value of E f(h)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch

import numpy as np
import torch
from torch import Tensor

from hardgate.functional.neurons import sqrt_sigmoid
from hardgate.noise import Gaussian
from hardgate.units import (
    BinaryConcrete,
    HardConcrete,
    NoisyRectifier,
    Rectifier,
    Sigmoid,
    SlopeAnnealed,
    StochasticBinary,
    StochasticTimesSmooth,
    StraightThrough,
    Unit,
)
from hardgate.units._bernoulli import BernoulliUnit

Law = tuple[Tensor, Tensor]  # values [K, D] and their probabilities [K, D], differentiable in a

_GRID = 2**20  # points of the product of D quadratures: as many nodes each as that allows


@singledispatch
def law(unit: Unit, a: Tensor) -> Law:
    """Values that h takes and their probabilities, given `a` of shape `[D]`.

    Continuous parts are Gauss quadratures. For the hard threshold, whose own objective is
    constant by parts, it is the law that its gradient stands in for: Bernoulli(σ(a)).
    """
    raise TypeError(f"no law is known for {type(unit).__name__}: register it with law.register.")


@law.register(BernoulliUnit)
@law.register(SlopeAnnealed)
@law.register(StochasticBinary)
@law.register(StraightThrough)
def _(unit: Unit, a: Tensor) -> Law:
    p, ones = torch.sigmoid(a), torch.ones_like(a)
    return torch.stack([0 * ones, ones]), torch.stack([torch.sigmoid(-a), p])


@law.register
def _(unit: StochasticTimesSmooth, a: Tensor) -> Law:
    if unit.noise is not None:
        raise TypeError("the law of StochasticTimesSmooth is known without input noise only.")
    root = sqrt_sigmoid(a)
    return torch.stack([0 * root, root]), torch.stack([1 - root, root])


@law.register
def _(unit: NoisyRectifier, a: Tensor) -> Law:
    scale = unit.noise.scale
    gaussian = isinstance(unit.noise, Gaussian)
    reach = 9.0 if gaussian else 36.0
    nodes, weights = np.polynomial.legendre.leggauss(_count(a) - 1)
    # x = h on (0, a + reach); denser near 0 and the mode by the square of the node.
    t = torch.from_numpy((nodes + 1) / 2).to(a).unsqueeze(-1)
    top = (a.detach() / scale).clamp(min=0) + reach
    x = top * t.square()
    jacobian = top * 2 * t * torch.from_numpy(weights / 2).to(a).unsqueeze(-1)
    z = x - a / scale
    if gaussian:
        density = torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
    else:
        density = torch.sigmoid(z) * torch.sigmoid(-z)
    off = unit.inactive_probability(a)
    values = torch.cat([torch.zeros_like(a)[None], scale * x])
    return values, torch.cat([off[None], density * jacobian])


@law.register
def _(unit: Rectifier, a: Tensor) -> Law:
    return torch.relu(a)[None], torch.ones_like(a)[None]


@law.register
def _(unit: Sigmoid, a: Tensor) -> Law:
    if unit.noise is None:
        return torch.sigmoid(a)[None], torch.ones_like(a)[None]
    nodes, weights = unit.noise.quadrature(2 if unit.noise.multiplicative else _count(a))
    z = torch.tensor(nodes).to(a).unsqueeze(-1)
    w = torch.tensor(weights).to(a).unsqueeze(-1).expand(len(nodes), *a.shape)
    return (torch.sigmoid(a) * z if unit.noise.multiplicative else torch.sigmoid(a + z)), w


@law.register
def _(unit: BinaryConcrete, a: Tensor) -> Law:
    nodes, weights = np.polynomial.legendre.leggauss(_count(a))
    t = (nodes + 1) / 2
    # u = P(z < its node), denser towards 0 and 1, where h changes as a power of u.
    z = torch.from_numpy(np.log(t**2 * (3 - 2 * t)) - np.log((1 - t) ** 2 * (1 + 2 * t)))
    w = torch.from_numpy(weights * 3 * t * (1 - t)).to(a).unsqueeze(-1)
    values = torch.sigmoid((a + z.to(a).unsqueeze(-1)) / unit.temperature)
    return values, w.expand_as(values)


@law.register
def _(unit: HardConcrete, a: Tensor) -> Law:
    gamma, zeta, scale = unit.gamma, unit.zeta, unit.temperature
    low, high = math.log(-gamma / zeta), math.log((1 - gamma) / (zeta - 1))  # h = 0, h = 1
    nodes, weights = np.polynomial.legendre.leggauss(_count(a) - 2)
    x = torch.from_numpy(low + (high - low) * (nodes + 1) / 2).to(a).unsqueeze(-1)  # (a + z)/λ
    dx = torch.from_numpy((high - low) / 2 * weights).to(a).unsqueeze(-1)
    density = scale * torch.sigmoid(scale * x - a) * torch.sigmoid(a - scale * x)
    values = (torch.sigmoid(x) * (zeta - gamma) + gamma).expand_as(density)
    ends = torch.stack([torch.sigmoid(scale * low - a), torch.sigmoid(a - scale * high)])
    zeros, ones = torch.zeros_like(a)[None], torch.ones_like(a)[None]
    return torch.cat([zeros, values, ones]), torch.cat([ends[:1], density * dx, ends[1:]])


def _count(a: Tensor) -> int:
    return min(100, round(math.exp(math.log(_GRID) / a.shape[-1])))


def exact_objective(unit: Unit, f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """E f(h) for h ~ unit(a), over all K^D combinations of values; differentiable in `a` `[D]`."""
    values, probabilities = law(unit, a)
    K, D = values.shape
    grid = torch.cartesian_prod(*[torch.arange(K)] * D).reshape(-1, D)  # [K^D, D]
    unit_index = torch.arange(D)
    return (probabilities[grid, unit_index].prod(-1) * f(values[grid, unit_index])).sum()


def exact_unit_gradient(unit: Unit, f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """∂E f(h)/∂a of the unit's own objective, at `a` `[D]`."""
    a = a.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(exact_objective(unit, f, a), a)
    return gradient

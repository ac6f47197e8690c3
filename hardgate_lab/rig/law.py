"""The exact value of E f(h) and its gradient, from the law of each unit's output."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hardgate.units._unit import Unit


def exact_objective(unit: Unit, f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """E f(h) for h ~ unit(a), over all K^D combinations of values; differentiable in `a` `[D]`."""
    values, probabilities = unit.law(a)
    K, D = values.shape
    grid = torch.cartesian_prod(*[torch.arange(K)] * D).reshape(-1, D)  # [K^D, D]
    unit_index = torch.arange(D)
    return (probabilities[grid, unit_index].prod(-1) * f(values[grid, unit_index])).sum()


def exact_unit_gradient(unit: Unit, f: Callable[[Tensor], Tensor], a: Tensor) -> Tensor:
    """∂E f(h)/∂a of the unit's own objective, at `a` `[D]`."""
    a = a.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(exact_objective(unit, f, a), a)
    return gradient

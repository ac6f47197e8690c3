"""Toy losses f(h) of a few units, small enough that every true gradient is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus


@dataclass(frozen=True)
class GradientProblem:
    """A loss f: `[..., D]` → `[...]` and the point `logits` `[D]` at which it is differentiated."""

    about: str
    logits: Tensor
    f: Callable[[Tensor], Tensor]


def _numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


_W = _numbers(1.5, -1.0, 0.7, 2.0)
_MIX = torch.stack([_W, _W.flip(0), _W.roll(1), -_W.roll(2), _W * _W])  # [5, 4]
_C = _numbers(1.0, -0.5, 0.8, 1.2, -0.3)
_PAIR = torch.triu(_W.outer(_W.flip(0)), diagonal=1)


def _multilinear(h: Tensor) -> Tensor:
    """Σ w_i h_i + Σ_{i<j} v_ij h_i h_j + 2: linear in each h_i."""
    return (_W.to(h) * h).sum(-1) + ((h @ _PAIR.to(h)) * h).sum(-1) + 2


def _quadratic(h: Tensor) -> Tensor:
    """(w·h - 1)²."""
    return ((h * _W.to(h)).sum(-1) - 1).square()


def _smooth(h: Tensor) -> Tensor:
    """Σ_j c_j softplus(w_j·h + ½) + 3."""
    return (_C.to(h) * softplus(h @ _MIX.to(h).T + 0.5)).sum(-1) + 3


def _kinked(h: Tensor) -> Tensor:
    """|w·h - ¼| + 1: not differentiable where w·h = ¼; three units, as quadratures feel kinks."""
    return ((h * _W[:3].to(h)).sum(-1) - 0.25).abs() + 1


_A = _numbers(0.4, -0.8, 1.2, -0.3)

PROBLEMS = {
    "multilinear": GradientProblem("linear in each unit", _A, _multilinear),
    "quadratic": GradientProblem("quadratic in each unit", _A, _quadratic),
    "smooth": GradientProblem("a sum of softplus units", _A, _smooth),
    "kinked": GradientProblem("an absolute value", _A[:3], _kinked),
    "sparse": GradientProblem("the smooth loss with units on 10 % of the time", _A - 2.3, _smooth),
}

# Kept apart: with few draws nothing about p = 1e-4 can be told by a z-score (N p < 20), so that
# only estimators whose noise is integrated exactly, or drawn often enough, are held against it.
EXTREME = {
    "extreme": GradientProblem(
        "the smooth loss with units at p = 1e-4 and 1 - 1e-4",
        torch.logit(_numbers(1e-4, 0.4, 0.7, 1 - 1e-4)),
        _smooth,
    ),
}

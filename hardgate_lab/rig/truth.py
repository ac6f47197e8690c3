"""The gradient that draws are held against: enumerated, integrated, or averaged for long."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardgate.enumeration import exact_gradient
from hardgate.units import Unit
from hardgate_lab.rig.law import exact_unit_gradient
from hardgate_lab.rig.problems import GradientProblem

MOST_UNITS = 20  # 2^20 evaluations of f; beyond, the truth is a long average


@dataclass(frozen=True)
class Truth:
    """∂E f(b)/∂a, `[D]` in fp64, and how well it is known.

    - `error`: the standard error of each component; zero where it is exact;
    - `how`: it was found, as a reader is told.
    """

    gradient: Tensor
    error: Tensor
    how: str


def enumerated(problem: GradientProblem) -> Truth:
    """Exact, over all 2^D values of b. Needs values of f only."""
    gradient = exact_gradient(problem.f, problem.logits).double()
    return Truth(gradient, torch.zeros_like(gradient), f"2^{len(gradient)} values of b enumerated")


def own(unit: Unit, problem: GradientProblem) -> Truth:
    """Exact, of the unit's own objective E f(h): for outputs that are not Bernoulli(σ(a))."""
    gradient = exact_unit_gradient(unit, problem.f, problem.logits).double()
    return Truth(gradient, torch.zeros_like(gradient), "the unit's own law integrated")

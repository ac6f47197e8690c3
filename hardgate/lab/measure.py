"""Measure a unit's gradient: bias with its z-score, variance, cost."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hardgate.lab.law import exact_unit_gradient
from hardgate.lab.problems import Problem
from hardgate.score import score_loss
from hardgate.units import Unit

_WARM_UP = (50, 1000)  # batches and their size, for baselines that learn from past samples
_FLOOR = 1e-7  # differences below this, relative to the gradient, are rounding or quadrature


@dataclass(frozen=True)
class Measurement:
    """How far the mean gradient is from the truth, and how much single draws scatter.

    - `bias`: ‖mean - truth‖ / ‖truth‖; `z`: the largest |z-score| over the units;
    - `variance`: Σ_i Var(g_i); `cosine`: between the mean gradient and the truth;
    - `evals`: evaluations of the loss per gradient.
    """

    bias: float
    z: float
    variance: float
    cosine: float
    evals: int
    samples: int


def gradient_samples(
    unit: Unit,
    f: Callable[[Tensor], Tensor],
    a: Tensor,
    n: int,
    generator: torch.Generator | None = None,
    *,
    update_baselines: bool = False,
) -> Tensor:
    """n independent draws `[n, D]` of the unit's gradient at `a` `[D]`."""
    points = a.detach().expand(n, -1).clone().requires_grad_()
    losses = f(unit(points, unit.sample_noise(points, generator)))
    surrogate = losses.sum()
    if unit.needs_loss:
        surrogate = surrogate + n * score_loss(unit, losses, update_baselines=update_baselines)
    (gradient,) = torch.autograd.grad(surrogate, points)
    return gradient


def measure(unit: Unit, problem: Problem, n: int = 200_000, seed: int = 0) -> Measurement:
    """Bias, z-score and variance of the unit's gradient on a problem with a known answer."""
    unit = copy.deepcopy(unit).double().train()
    generator = torch.Generator().manual_seed(seed)
    f, a = problem.f, problem.logits
    if unit.needs_loss and unit.baseline is not None:
        for _ in range(_WARM_UP[0]):
            gradient_samples(unit, f, a, _WARM_UP[1], generator, update_baselines=True)
    draws = gradient_samples(unit, f, a, n, generator)
    truth = exact_unit_gradient(unit, f, a)
    mean = draws.mean(0)
    scale = truth.norm().clamp(min=1e-12)  # a rectifier with all units off has no gradient
    error = mean - truth
    z = error / (draws.std(0) / n**0.5).clamp(min=_FLOOR * scale.item())
    return Measurement(
        bias=(error.norm() / scale).item(),
        z=z.abs().max().item(),
        variance=draws.var(0).sum().item(),
        cosine=torch.cosine_similarity(mean, truth, dim=0).item(),
        evals=1,
        samples=n,
    )


def microseconds(unit: Unit, shape: tuple[int, int] = (32, 2000), repeats: int = 30) -> float:
    """The median time of one forward and backward pass of the unit, noise included."""
    unit = copy.deepcopy(unit).train()
    a = torch.randn(shape, requires_grad=True)
    times = []
    for _ in range(repeats):
        a.grad = None
        start = time.perf_counter()
        losses = unit(a).sum(-1)
        loss = losses.mean()
        if unit.needs_loss:
            loss = loss + score_loss(unit, losses)
        loss.backward()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)

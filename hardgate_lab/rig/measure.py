"""Measure the gradient of a unit or an estimator: bias with its z-score, variance, evaluations."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hardgate.estimators import Estimator, expectation
from hardgate.estimators._estimator import Loss
from hardgate.learning.score_loss import score_loss
from hardgate.units import Unit
from hardgate_lab.rig.candidates import learns
from hardgate_lab.rig.problems import GradientProblem
from hardgate_lab.rig.truth import Truth

_WARM_UP = (200, 500)  # batches and their size, at most, for what is learnt from past samples
_BLOCKS = 50  # at least; the jackknife leaves out one at a time
_NUMBERS = 2**21  # samples times units at a time, so that memory stays bounded
_FLOOR = 1e-7  # differences below this, relative to the gradient, are rounding or quadrature
_RARE = 20  # a unit that was on, or off, fewer times than this has no meaningful z-score


@dataclass(frozen=True)
class Measurement:
    """How far the mean gradient is from the truth, and how much single draws scatter.

    - `bias`: ‖mean - truth‖ / ‖truth‖, less what sampling alone would show;
    - `noise`: what sampling alone would show, so that a bias below it is not seen;
    - `z`: the largest |z-score| over the units; nan where all of them are too rarely on or off;
    - `variance`: Σ_i Var(g_i), and `variance_error`, its standard error (jackknife over blocks);
    - `cosine`: of one draw to the truth, on average; `cosine_of_mean`: of the mean gradient;
    - `evals`: evaluations of f per gradient, counted;
    - `draws`: gradients that were drawn.
    """

    bias: float
    noise: float
    z: float
    variance: float
    variance_error: float
    cosine: float
    cosine_of_mean: float
    evals: int
    draws: int


class Counted:
    """f, and how many losses it has given."""

    def __init__(self, f: Loss) -> None:
        self.f, self.losses = f, 0

    def __call__(self, b: Tensor) -> Tensor:
        """f(b), counted."""
        losses = self.f(b)
        self.losses += losses.numel()
        return losses


def gradient_samples(
    estimator: Estimator | Unit,
    f: Loss,
    a: Tensor,
    n: int,
    generator: torch.Generator | None = None,
    *,
    update_baselines: bool = False,
) -> Tensor:
    """n draws `[n, D]` of the gradient at `a` `[D]`, of an estimator or of a unit.

    Units that learn from the loss go through `score_loss`, everything else through `expectation`.
    """
    points = a.detach().expand(n, -1).clone().requires_grad_()
    if isinstance(estimator, Unit) and estimator.needs_loss:
        losses = f(estimator(points, estimator.sample_noise(points, generator)))
        score = score_loss(estimator, losses, update_baselines=update_baselines)
        total = losses.sum() + n * score
    else:
        total = expectation(f, points, estimator, generator=generator).sum()
    (gradient,) = torch.autograd.grad(total, points)
    return gradient


def taught(
    estimator: Estimator | Unit,
    problem: GradientProblem,
    generator: torch.Generator,
    warm_up: tuple[int, int] = _WARM_UP,
) -> Estimator | Unit:
    """A copy in the problem's precision that has learnt what it learns, and learns no more."""
    estimator = copy.deepcopy(estimator).to(problem.logits.dtype).train()
    if learns(estimator):
        batches, size = warm_up
        size = max(10, min(size, _NUMBERS // (100 * problem.logits.numel())))
        for _ in range(batches):
            gradient_samples(
                estimator, problem.f, problem.logits, size, generator, update_baselines=True
            )
    return frozen(estimator)


def frozen(estimator: Estimator | Unit) -> Estimator | Unit:
    """The same object, which samples as before but learns no more."""
    if isinstance(estimator, Estimator):
        estimator.adapt = False
    else:
        for child in estimator.children():
            child.eval()
    return estimator


def measure(
    estimator: Estimator | Unit,
    problem: GradientProblem,
    truth: Truth,
    n: int = 200_000,
    seed: int = 0,
) -> Measurement:
    """Bias, variance and cost of the gradient on a problem whose true gradient is known.

    Args:
        estimator: an estimator, or a unit; what it learns is learnt beforehand.
        problem: f and the logits.
        truth: what the mean gradient is held against; see `hardgate_lab.rig.truth`.
        n: draws; fewer where one draw takes more than 4 evaluations, at least 1000.
        seed: of the draws.
    """
    sums = draw(estimator, problem, truth.gradient, n, seed)
    scale = truth.gradient.norm().clamp(min=1e-12).item()  # rectifiers, all off: no gradient
    error, variance = sums.mean, sums.variance
    variance = variance.where(variance > (_FLOOR * scale) ** 2, 0)
    spread = variance / sums.n + truth.error.square()
    z = (error / spread.sqrt().clamp(min=_FLOOR * scale)).abs()
    rare = _rare(estimator, problem.logits.double(), sums.n)
    noise = spread.sum().item()
    return Measurement(
        bias=math.sqrt(max(0.0, error.square().sum().item() - noise)) / scale,
        noise=math.sqrt(noise) / scale,
        z=z[~rare].max().item() if not rare.all() else math.nan,
        variance=variance.sum().item(),
        variance_error=sums.variance_error,
        cosine=sums.aligned / sums.n,
        cosine_of_mean=torch.cosine_similarity(error + truth.gradient, truth.gradient, 0).item(),
        evals=sums.evals,
        draws=sums.n,
    )


def _rare(estimator: Estimator | Unit, a: Tensor, n: int) -> Tensor:
    """Units that chance has switched on, or off, too seldom in n draws."""
    on, off = torch.sigmoid(a), torch.sigmoid(-a)
    if isinstance(estimator, Unit):
        on, off = estimator.active_probability(a), estimator.inactive_probability(a)
    seldom = torch.minimum(on, off)
    return (seldom > 0) & (seldom * n < _RARE)


@dataclass(frozen=True)
class Sums:
    """Sums over blocks of draws of g - centre, and of its square, both `[blocks, D]`.

    - `aligned`: the sum of the cosines of g and the centre;
    - `size`: draws in a block;
    - `evals`: of f per draw.
    """

    first: Tensor
    second: Tensor
    aligned: float
    size: int
    evals: int

    @property
    def n(self) -> int:
        """Draws."""
        return self.size * len(self.first)

    @property
    def mean(self) -> Tensor:
        """Of g - centre."""
        return self.first.sum(0) / self.n

    @property
    def variance(self) -> Tensor:
        """Of each component of g."""
        return _variance(self.first.sum(0), self.second.sum(0), self.n)

    @property
    def variance_error(self) -> float:
        """The standard error of Σ_i Var(g_i), by leaving out one block at a time."""
        first, second = self.first.sum(0) - self.first, self.second.sum(0) - self.second
        left_out = _variance(first, second, self.n - self.size).sum(-1)
        return math.sqrt((len(self.first) - 1) * left_out.var(correction=0).item())


def draw(
    estimator: Estimator | Unit,
    problem: GradientProblem,
    centre: Tensor,
    n: int,
    seed: int,
    *,
    teach: bool = True,
) -> Sums:
    """Draw n gradients block by block and keep their sums; see `measure`."""
    generator = torch.Generator().manual_seed(seed)
    estimator = taught(estimator, problem, generator, _WARM_UP if teach else (0, 0))
    a = problem.logits
    evals = evaluations(estimator, problem)
    n = max(1000, n if evals <= 4 else 4 * n // evals)
    blocks = max(_BLOCKS, math.ceil(n * a.numel() * evals / _NUMBERS))
    size = math.ceil(n / blocks)
    first, second, aligned = [], [], 0.0
    for _ in range(blocks):
        g = gradient_samples(estimator, problem.f, a, size, generator).double()
        first.append((g - centre).sum(0))
        second.append((g - centre).square().sum(0))
        aligned += torch.cosine_similarity(g, centre, dim=-1).sum().item()
    return Sums(torch.stack(first), torch.stack(second), aligned, size, evals)


def evaluations(estimator: Estimator | Unit, problem: GradientProblem) -> int:
    """Evaluations of f for one gradient, counted; what the estimator learns is left alone."""
    counted = Counted(problem.f)
    gradient_samples(copy.deepcopy(estimator), counted, problem.logits, 1)
    return counted.losses


def _variance(first: Tensor, second: Tensor, n: int) -> Tensor:
    """From the sums of n numbers and of their squares."""
    return ((second - first.square() / n) / (n - 1)).clamp(min=0)

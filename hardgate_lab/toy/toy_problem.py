"""The toy of Titsias & Shi (2022): a landscape so flat that only low variance finds its way up."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hardgate.estimators import Estimator, expectation
from hardgate.units import Unit
from hardgate_lab.rig.candidates import Candidate
from hardgate_lab.rig.measure import frozen, gradient_samples

# Objective after 2000 steps with K = 2, as published.
PUBLISHED = {"DoubleCV(2)": 0.2510, "DisARM()": 0.2506, "RLOO(2)": 0.2505, "REINFORCE()": 0.2500}


@dataclass(frozen=True)
class Toy:
    """max_a E[mean_i (b_i - t)²], b ~ Bernoulli(σ(a)): b = 1 is best, by very little."""

    units: int = 200  # D
    t: float = 0.499
    evals: int = 2  # K: evaluations of f per step, the same for every candidate
    steps: int = 2000
    lr: float = 0.01  # of RMSprop
    every: int = 50  # steps between two looks at the objective and the variance
    draws: int = 200  # gradients at every look

    def f(self, b: Tensor) -> Tensor:
        """The loss, to be minimised."""
        return -(b - self.t).square().mean(-1)

    def objective(self, a: Tensor) -> float:
        """E[mean_i (b_i - t)²], exactly."""
        p = torch.sigmoid(a.detach().double())
        return (p * (1 - self.t) ** 2 + (1 - p) * self.t**2).mean().item()

    @property
    def start(self) -> float:
        """The objective of p = ½."""
        return self.objective(torch.zeros(1))

    @property
    def optimum(self) -> float:
        """Where all units are on."""
        return (1 - self.t) ** 2


@dataclass(frozen=True)
class Curve:
    """One estimator's ascents: the mean over the seeds at `steps`, and each seed's end."""

    estimator: str
    unbiased: bool
    steps: list[int]
    objective: list[float]
    variance: list[float]
    final: list[float]


def takes_part(candidate: Candidate, toy: Toy) -> bool:
    """Whether K evaluations are a whole number of its estimates."""
    made = candidate.make()
    if isinstance(made, Unit):
        return not made.needs_loss and not candidate.own_objective
    return isinstance(made.n_evals, int) and toy.evals % made.n_evals == 0


def ascend(candidate: Candidate, toy: Toy, seeds: Sequence[int]) -> Curve:
    """Climb once for each seed."""
    runs = [list(_climb(candidate.make(), toy, seed)) for seed in seeds]
    looks = [list(zip(*at, strict=True)) for at in zip(*runs, strict=True)]
    return Curve(
        candidate.name,
        candidate.unbiased,
        [steps[0] for steps, _, _ in looks],
        [statistics.fmean(objective) for _, objective, _ in looks],
        [statistics.fmean(variance) for _, _, variance in looks],
        [run[-1][1] for run in runs],
    )


def _climb(estimator: Estimator | Unit, toy: Toy, seed: int) -> Iterator[tuple[int, float, float]]:
    """Step, objective and variance of the step's gradient, at every look."""
    generator = torch.Generator().manual_seed(seed)
    eyes = torch.Generator().manual_seed(seed)  # looking does not change the way
    each = estimator.n_evals if isinstance(estimator, Estimator) else 1
    assert isinstance(each, int)
    copies = toy.evals // each  # estimates that a step averages
    a = torch.zeros(toy.units, requires_grad=True)
    optimiser = torch.optim.RMSprop([a], lr=toy.lr)
    for step in range(toy.steps + 1):
        if step % toy.every == 0 or step == toy.steps:
            yield step, toy.objective(a), _variance(estimator, toy, a, eyes) / copies
        optimiser.zero_grad()
        value = expectation(toy.f, a.expand(copies, -1), estimator, generator=generator)
        value.mean().backward()
        optimiser.step()


def _variance(
    estimator: Estimator | Unit, toy: Toy, a: Tensor, generator: torch.Generator
) -> float:
    """Σ_i Var(g_i) at this point; the look leaves the estimator as it was."""
    looked_at = frozen(copy.deepcopy(estimator))
    return gradient_samples(looked_at, toy.f, a, toy.draws, generator).var(0).sum().item()

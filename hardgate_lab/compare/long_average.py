"""The true gradient where nobody can enumerate it: a long average, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hardgate.estimators import RLOO
from hardgate_lab.rig.candidates import Candidate
from hardgate_lab.rig.measure import draw
from hardgate_lab.rig.problems import GradientProblem
from hardgate_lab.rig.truth import Truth

_PILOT = 1000  # draws, to find out who scatters least
_LONGER = 10  # times the draws that a candidate gets


def long_run(
    candidates: Sequence[Candidate], problem: GradientProblem, samples: int, seed: int
) -> Truth:
    """The mean of many draws of the unbiased candidate with the least variance per evaluation.

    Args:
        candidates: of which the unbiased ones are tried; RLOO(4), which needs values of f only,
            if there is none.
        problem: f and the logits.
        samples: draws of a candidate; the average is over ten times as many.
        seed: of the draws.
    """
    tried = [c for c in candidates if c.unbiased and not c.own_objective]
    tried = tried or [Candidate("RLOO(4)", lambda: RLOO(4))]
    origin = torch.zeros(problem.logits.shape, dtype=torch.float64)

    def scatter(candidate: Candidate) -> float:
        pilot = draw(candidate.make(), problem, origin, _PILOT, seed, teach=False)
        spread = pilot.variance.sum().item() * pilot.evals
        return spread if math.isfinite(spread) else math.inf  # NaN would win

    best = min(tried, key=scatter)
    sums = draw(best.make(), problem, origin, _LONGER * samples, seed + 1)
    error = (sums.variance / sums.n).sqrt()
    how = f"the mean of {sums.n:,} draws of {best.name}"
    return Truth(sums.mean, error, how)

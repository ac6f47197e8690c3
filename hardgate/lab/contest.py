"""`hardgate compare`: estimators and units on the same problems, as rows."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hardgate.lab import truth as truths
from hardgate.lab.contestants import Contestant
from hardgate.lab.long_run import long_run
from hardgate.lab.measure import Measurement, evaluations, gradient_samples, measure
from hardgate.lab.problems import Problem
from hardgate.lab.timing import Run, interleave
from hardgate.lab.truth import Truth

# Some 1500 z-scores are looked at; one beyond 5.5 among them has probability below 1e-4.
Z_LEVEL = 5.5
BATCH = 100  # gradients at a time, when they are timed
_MOST_EVALS = 2048  # per gradient: enumeration of 11 units
_SECONDS = 1.0  # of timing, per problem, all contestants taking turns


@dataclass(frozen=True)
class Row:
    """One estimator or unit on one problem: its facts and what was measured."""

    problem: str
    estimator: str
    unbiased: bool
    needs_gradient: bool
    needs_relaxed: bool
    learns: bool
    grows: bool
    own_objective: bool
    measured: Measurement
    microseconds: float

    @property
    def contradicts(self) -> bool:
        """Declared unbiased, but measured otherwise."""
        return self.unbiased and self.measured.z > Z_LEVEL

    @property
    def per_evaluation(self) -> float:
        """Variance at equal evaluations: n estimates averaged have 1/n of it, at n times evals."""
        return self.measured.variance * self.measured.evals

    @property
    def per_microsecond(self) -> float:
        """Variance at equal seconds: what is left after a microsecond's worth of averaging."""
        return self.measured.variance * self.microseconds

    def error(self, evaluations: float, scale: float) -> float:
        """√(bias² + variance/n) / ‖truth‖, n estimates averaged within so many evaluations."""
        variance = self.per_evaluation / evaluations / scale**2
        return math.sqrt(self.measured.bias**2 + variance)


@dataclass(frozen=True)
class LeftOut:
    """Who could not take part, and why."""

    problem: str
    estimator: str
    why: str


@dataclass(frozen=True)
class Round:
    """One problem's contest: the true gradient, and all that was measured."""

    problem: str
    about: str
    units: int
    differentiable: bool
    truth: str
    scale: float  # ‖truth‖
    rows: list[Row]
    left_out: list[LeftOut]

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Round:
        """The inverse of `asdict`, for results that were written as JSON."""
        rows = [
            Row(**{**row, "measured": Measurement(**_numbers(row["measured"]))})
            for row in record["rows"]
        ]
        left_out = [LeftOut(**each) for each in record["left_out"]]
        return Round(**{**record, "rows": rows, "left_out": left_out})

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no nan."""
        record = asdict(self)
        for row in record["rows"]:
            row["measured"] = {k: _finite(v) for k, v in row["measured"].items()}
        return record


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _numbers(measured: dict[str, float | None]) -> dict[str, Any]:
    return {k: math.nan if v is None else v for k, v in measured.items()}


Step = tuple[str, Round | None]  # what was done just now, and the round when it is over


def contest(
    name: str, problem: Problem, contestants: Sequence[Contestant], samples: int, seed: int
) -> Iterator[Step]:
    """Run one problem's contest, one step per contestant and one for the timing.

    Args:
        name: of the problem.
        problem: f and the logits.
        contestants: those with an objective of their own take part only where it can be
            integrated, on problems of at most 4 units.
        samples: draws for each, see `measure`.
        seed: of all draws; rows do not share their luck.

    Yields:
        what was done, and with the last step the `Round`.
    """
    differentiable = has_gradient(problem)
    present, left_out = [], []
    for contestant in contestants:
        why = refusal(contestant, problem, differentiable)
        if why is None:
            present.append(contestant)
        else:
            left_out.append(LeftOut(name, contestant.name, why))
            yield f"{contestant.name} on {name}: left out", None
    truth = _truth(problem, present, samples, seed)
    times = _microseconds(present, problem)
    yield f"timing on {name}", None
    rows = []
    for contestant in present:
        made = contestant.make()
        own = truths.own(made, problem) if contestant.own_objective else truth  # type: ignore[arg-type]
        luck = zlib.crc32(f"{seed} {name} {contestant.name}".encode())
        measured = measure(made, problem, own, samples, luck)
        rows.append(_row(name, contestant, measured, times[contestant.name]))
        yield f"{contestant.name} on {name}", None
    scale = truth.gradient.norm().item()
    D = problem.logits.numel()
    yield (
        f"{name} done",
        Round(name, problem.about, D, differentiable, truth.how, scale, rows, left_out),
    )


def _row(problem: str, contestant: Contestant, measured: Measurement, microseconds: float) -> Row:
    return Row(
        problem,
        contestant.name,
        contestant.unbiased,
        contestant.needs_gradient,
        contestant.needs_relaxed,
        contestant.learns,
        contestant.grows,
        contestant.own_objective,
        measured,
        microseconds,
    )


def _truth(problem: Problem, present: list[Contestant], samples: int, seed: int) -> Truth:
    if problem.logits.numel() <= truths.MOST_UNITS:
        return truths.enumerated(problem)
    return long_run(present, problem, samples, seed)


def _microseconds(contestants: list[Contestant], problem: Problem) -> dict[str, float]:
    """The time of one gradient, in batches of 100, learning included; all take turns."""
    runs: dict[str, Run] = {}
    for contestant in contestants:
        made = contestant.make().to(problem.logits.dtype).train()
        runs[contestant.name] = partial(
            gradient_samples, made, problem.f, problem.logits, BATCH, update_baselines=True
        )
    return {name: 1e3 * ms / BATCH for name, ms in interleave(runs, _SECONDS).items()}


def has_gradient(problem: Problem) -> bool:
    """Whether f can be differentiated in b."""
    b: Tensor = torch.zeros_like(problem.logits).requires_grad_()
    loss = problem.f(b.unsqueeze(0)).sum()
    if not loss.requires_grad:
        return False
    return torch.autograd.grad(loss, b, allow_unused=True)[0] is not None


def refusal(contestant: Contestant, problem: Problem, differentiable: bool) -> str | None:
    """Why this contestant cannot take part, or None."""
    if contestant.needs_gradient and not differentiable:
        return "f has no gradient in b"
    if contestant.own_objective and problem.logits.numel() > 4:
        return "its objective is its own, and of more than 4 units is not integrated"
    try:
        made = contestant.make().to(problem.logits.dtype)
        evals = evaluations(made, problem)
    except Exception as error:  # whatever a user's f does at points that are not binary
        return f"{type(error).__name__}: {str(error).partition('. ')[0]}"
    if evals > _MOST_EVALS:
        return f"{evals:,} evaluations of f per gradient"
    return None

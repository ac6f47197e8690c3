"""One problem, and what each estimator and unit makes of it: a comparison of rows."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hardgate_lab.compare.long_average import long_run
from hardgate_lab.compare.user_problem import NotBinaryError, UserProblemError
from hardgate_lab.rig import truth as truths
from hardgate_lab.rig.candidates import Candidate
from hardgate_lab.rig.checkpoint import json_number
from hardgate_lab.rig.measure import Measurement, evaluations, gradient_samples, measure
from hardgate_lab.rig.problems import GradientProblem
from hardgate_lab.rig.timing import Call, interleave
from hardgate_lab.rig.truth import Truth

# Some 1500 z-scores are looked at; one beyond 5.5 among them has probability below 1e-4.
Z_LEVEL = 5.5
BATCH = 100  # gradients at a time, when they are timed
_MOST_EVALS = 2048  # per gradient: enumeration of 11 units
_SECONDS = 1.0  # of timing, per problem, all candidates taking turns
_NOT_FINITE = "its gradient is not finite, as f has none at some b"
_LEAST_SCALE = 1e-12  # as in `measure`, where the gradient vanishes
_NO_TRUTH = Truth(torch.zeros(1), torch.zeros(1), "not sought, as nobody took part")


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
        """√(bias² + variance/n) / ‖truth‖, n estimates averaged within so many evaluations.

        nan where the truth vanishes, as the bias is.
        """
        variance = self.per_evaluation / evaluations / scale**2
        return math.sqrt(self.measured.bias**2 + variance)


@dataclass(frozen=True)
class LeftOut:
    """Who could not take part, and why."""

    problem: str
    estimator: str
    why: str


@dataclass(frozen=True)
class Comparison:
    """All that was measured on one problem, beside the true gradient."""

    problem: str
    about: str
    units: int
    differentiable: bool
    truth: str
    scale: float  # ‖truth‖
    rows: list[Row]
    left_out: list[LeftOut]

    @staticmethod
    def from_dict(record: dict[str, Any]) -> Comparison:
        """The inverse of `asdict`, for results that were written as JSON."""
        rows = [
            Row(**{**row, "measured": Measurement(**_numbers(row["measured"]))})
            for row in record["rows"]
        ]
        left_out = [LeftOut(**each) for each in record["left_out"]]
        return Comparison(**{**record, "rows": rows, "left_out": left_out})

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no nan."""
        record = asdict(self)
        for row in record["rows"]:
            row["measured"] = {k: json_number(v) for k, v in row["measured"].items()}
        return record


def _numbers(measured: dict[str, float | None]) -> dict[str, Any]:
    return {k: math.nan if v is None else v for k, v in measured.items()}


Step = tuple[str, Comparison | None]  # what was done just now, and the comparison when it is over


def compare(
    name: str, problem: GradientProblem, candidates: Sequence[Candidate], samples: int, seed: int
) -> Iterator[Step]:
    """Compare candidates on one problem, one step per candidate and one for the timing.

    Args:
        name: of the problem.
        problem: f and the logits.
        candidates: those with an objective of their own take part only where it can be
            integrated, on problems of at most 4 units.
        samples: draws for each, see `measure`.
        seed: of all draws; rows do not share their luck.

    Yields:
        what was done, and with the last step the `Comparison`.
    """
    differentiable = has_gradient(problem)
    present, left_out = [], []
    for candidate in candidates:
        why = refusal(candidate, problem, differentiable)
        if why is None:
            present.append(candidate)
        else:
            left_out.append(LeftOut(name, candidate.name, why))
            yield f"{candidate.name} on {name}: left out", None
    rows: list[Row] = []
    truth = _truth(problem, present, samples, seed) if present else _NO_TRUTH
    times = _microseconds(present, problem) if present else {}
    yield f"timing on {name}", None
    for candidate in present:
        luck = zlib.crc32(f"{seed} {name} {candidate.name}".encode())
        try:
            measured = _measured(candidate, problem, truth, samples, luck)
        except (NotBinaryError, _NotFiniteError) as error:  # at a b that `refusal` did not see
            left_out.append(LeftOut(name, candidate.name, str(error)))
        else:
            rows.append(_row(name, candidate, measured, times[candidate.name]))
        yield f"{candidate.name} on {name}", None
    scale = truth.gradient.norm().clamp(min=_LEAST_SCALE).item()
    D = problem.logits.numel()
    yield (
        f"{name} done",
        Comparison(name, problem.about, D, differentiable, truth.how, scale, rows, left_out),
    )


class _NotFiniteError(ValueError):
    """A gradient that is infinite or nan at some b."""


def _measured(
    candidate: Candidate, problem: GradientProblem, truth: Truth, samples: int, seed: int
) -> Measurement:
    made = candidate.make()
    own = truths.own(made, problem) if candidate.own_objective else truth  # type: ignore[arg-type]
    measured = measure(made, problem, own, samples, seed)
    if not math.isfinite(measured.cosine):  # the mean over all draws
        raise _NotFiniteError(_NOT_FINITE)
    if own is truth and _vanishes(truth):
        return replace(measured, bias=math.nan, noise=math.nan)  # both are relative to it
    return measured


def _row(problem: str, candidate: Candidate, measured: Measurement, microseconds: float) -> Row:
    return Row(
        problem,
        candidate.name,
        candidate.unbiased,
        candidate.needs_gradient,
        candidate.needs_relaxed,
        candidate.learns,
        candidate.grows,
        candidate.own_objective,
        measured,
        microseconds,
    )


def _truth(problem: GradientProblem, present: list[Candidate], samples: int, seed: int) -> Truth:
    if problem.logits.numel() <= truths.MOST_UNITS:
        truth = _enumerated(problem)
    else:
        truth = long_run(present, problem, samples, seed)
    if _vanishes(truth):
        how = f"{truth.how}, and zero: bias and error, relative to it, are not defined"
        return replace(truth, how=how)
    return truth


def _enumerated(problem: GradientProblem) -> Truth:
    """Exact but for rounding, which is that of the largest loss: all of it, where f is constant."""
    largest = 0.0

    def f(b: Tensor) -> Tensor:
        nonlocal largest
        losses = problem.f(b)
        largest = max(largest, losses.abs().max().item())
        return losses

    truth = truths.enumerated(replace(problem, f=f))
    rounding = torch.finfo(problem.logits.dtype).eps * largest
    return replace(truth, error=torch.full_like(truth.gradient, rounding))


def _vanishes(truth: Truth) -> bool:
    """Whether the gradient cannot be told from zero."""
    return bool(truth.gradient.norm() <= truth.error.norm())


def _microseconds(candidates: list[Candidate], problem: GradientProblem) -> dict[str, float]:
    """The time of one gradient, in batches of 100, learning included; all take turns."""
    runs: dict[str, Call] = {}
    for candidate in candidates:
        made = candidate.make().to(problem.logits.dtype).train()
        runs[candidate.name] = partial(
            gradient_samples, made, problem.f, problem.logits, BATCH, update_baselines=True
        )
    return {name: 1e3 * ms / BATCH for name, ms in interleave(runs, _SECONDS).items()}


def has_gradient(problem: GradientProblem) -> bool:
    """Whether f can be differentiated in b."""
    b: Tensor = torch.zeros_like(problem.logits).requires_grad_()
    loss = problem.f(b.unsqueeze(0)).sum()
    if not loss.requires_grad:
        return False
    return torch.autograd.grad(loss, b, allow_unused=True)[0] is not None


def refusal(candidate: Candidate, problem: GradientProblem, differentiable: bool) -> str | None:
    """Why this candidate cannot take part, or None."""
    if candidate.needs_gradient and not differentiable:
        return "f has no gradient in b"
    if candidate.own_objective and problem.logits.numel() > 4:
        return "its objective is its own, and of more than 4 units is not integrated"
    try:
        made = candidate.make().to(problem.logits.dtype)
        evals = evaluations(made, problem)
        if evals > _MOST_EVALS:
            return f"{evals:,} evaluations of f per gradient"
        generator = torch.Generator().manual_seed(0)
        tried = gradient_samples(made, problem.f, problem.logits, BATCH, generator)
    except NotBinaryError as error:
        return str(error)
    except UserProblemError:  # at b of zeros and ones: nobody can do without them
        raise
    except Exception as error:  # what the estimator asks for, and f or the problem does not allow
        return f"{type(error).__name__}: {str(error).partition('. ')[0]}"
    return None if tried.isfinite().all() else _NOT_FINITE

"""Which estimator to take, and why: from what was measured and from the declared facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hardgate_lab.compare.comparison import Comparison, Row

_EQUAL = 1.15  # times apart: two timings on one machine differ by so much


def recommend(comparison: Comparison) -> str:
    """A sentence or two on one problem.

    The unbiased candidate with the least variance at equal seconds; of those that are as good
    within 15 % (and two standard errors) the one that asks least of f. Where it asks for
    something that another f may lack, the best without it is named too, and where a biased one
    has the smaller error at few evaluations, that one, and up to how many.
    """
    candidates = [r for r in comparison.rows if not r.own_objective and not r.contradicts]
    unbiased = [r for r in candidates if r.unbiased]
    if not candidates:
        return (
            "No recommendation: none of the candidates estimates this gradient. Add "
            "--estimator RLOO, which needs values of f only."
        )
    if not unbiased:
        least_biased = _least_biased(candidates)
        return f"No unbiased estimator was compared. {least_biased}Add --estimator RLOO."
    all_unbiased, best = unbiased, least(unbiased)
    said = [_first(best, unbiased, comparison)]
    for asks, otherwise in _WITHOUT:
        others = [r for r in unbiased if not asks(r)]
        if asks(best) and others:
            unbiased, best = others, least(others)
            said.append(f"{otherwise}: {best.estimator}.")
    biased = [r for r in candidates if not r.unbiased]
    said += _biased(least(all_unbiased), biased, comparison.scale)
    return " ".join(said)


# What the winner may ask for, and how the sentence on who wins without it begins.
_WITHOUT: tuple[tuple[Callable[[Row], bool], str], ...] = (
    (lambda row: row.grows, "With many more units"),
    (lambda row: row.needs_gradient or row.needs_relaxed, "If f has no gradient"),
)


def least(rows: Sequence[Row]) -> Row:
    """The least variance at equal seconds, or one as good that asks less."""
    best = min(rows, key=lambda r: r.per_microsecond)
    return min((r for r in rows if _as_good(r, best)), key=_demands)


def _as_good(row: Row, best: Row) -> bool:
    """Within what timings and sampling leave open."""
    errors = [r.measured.variance_error * r.microseconds for r in (row, best)]
    return row.per_microsecond <= _EQUAL * best.per_microsecond + 2 * math.hypot(*errors)


def _demands(row: Row) -> tuple[bool, bool, bool, bool, int, float]:
    """What the row asks for, the most awkward first."""
    facts = (row.grows, row.needs_relaxed, row.needs_gradient, row.learns)
    return (*facts, row.measured.evals, row.per_microsecond)


def _first(best: Row, unbiased: Sequence[Row], comparison: Comparison) -> str:
    others = [r for r in unbiased if r is not best]
    if not others:
        return f"{best.estimator}: the only unbiased one that was compared."
    what = "least variance at equal seconds" if best.measured.variance else "no variance"
    text = f"{best.estimator}: {what} among {len(unbiased)} unbiased"
    second = min(others, key=lambda r: r.per_microsecond)
    if _as_good(second, best):
        text += f", with {second.estimator} as good within the error"
    elif best.per_microsecond > 0:
        ratio = second.per_microsecond / best.per_microsecond
        text += f", {ratio:.2g} times less than {second.estimator}"
    facts = []
    if best.needs_gradient:
        facts.append("f is differentiable")
    if best.needs_relaxed:
        facts.append("f takes points between 0 and 1")
    if best.grows:
        facts.append(
            f"{comparison.units} units are few enough for {best.measured.evals} evaluations"
        )
    if not facts:
        facts.append("it needs values of f only")
    return f"{text}; {', '.join(facts)}."


def _least_biased(biased: Sequence[Row]) -> str:
    """Nobody, where the gradient is zero and no bias is defined."""
    best = min(biased, key=lambda r: r.measured.bias)
    if math.isnan(best.measured.bias):
        return ""
    return f"Least biased: {best.estimator} ({_percent(best.measured.bias)}). "


def _biased(best: Row, biased: Sequence[Row], scale: float) -> list[str]:
    """The biased candidate that errs less for longest, if any: up to N evaluations, where

    bias² + V_b e_b / N = V e / N, all relative to ‖truth‖².
    """
    found = [
        ((best.per_evaluation - r.per_evaluation) / (r.measured.bias * scale) ** 2, r)
        for r in biased
        if r.measured.bias > r.measured.noise and best.per_evaluation > r.per_evaluation
    ]
    exact = [r for r in biased if r.measured.bias <= r.measured.noise]
    exact = [r for r in exact if r.per_evaluation < best.per_evaluation]
    if exact:
        row = min(exact, key=lambda r: r.per_evaluation)
        return [f"Biased in general, but not seen to be here, with less variance: {row.estimator}."]
    if not found:
        return []
    evaluations, row = max(found, key=lambda pair: pair[0])
    if evaluations < 1:
        return []
    return [
        f"Biased by {_percent(row.measured.bias)}, but nearer the truth up to {evaluations:.2g} "
        f"evaluations per step: {row.estimator}."
    ]


def _percent(x: float) -> str:
    return f"{100 * x:.2g} %"

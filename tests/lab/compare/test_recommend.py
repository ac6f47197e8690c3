"""The recommendation, on measurements made up for it."""

from __future__ import annotations

import math
from dataclasses import replace

from hardgate_lab.compare.comparison import Comparison, Row
from hardgate_lab.compare.recommend import recommend
from hardgate_lab.rig.measure import Measurement

M = Measurement(
    bias=0.0,
    noise=0.001,
    z=1.0,
    variance=1.0,
    variance_error=0.001,
    cosine=0.5,
    cosine_of_mean=1.0,
    evals=2,
    draws=1000,
)
PLAIN = Row("p", "Plain()", True, False, False, False, False, False, M, 10.0)


def row(name: str, variance: float = 1.0, **changes: object) -> Row:
    """A row with some facts or measurements changed, by their names."""
    measured = {k: v for k, v in changes.items() if hasattr(M, k)}
    facts = {k: v for k, v in changes.items() if k not in measured}
    m = replace(M, variance=variance, **measured)  # type: ignore[arg-type]
    return replace(PLAIN, estimator=name, measured=m, **facts)  # type: ignore[arg-type]


def said(*rows: Row, scale: float = 1.0, units: int = 30) -> str:
    return recommend(Comparison("p", "about", units, True, "known", scale, list(rows), []))


def test_the_least_variance_at_equal_seconds_with_its_reason() -> None:
    text = said(row("A()", 1.0), row("B()", 0.1), row("C()", 0.2))
    assert text.startswith("B(): least variance at equal seconds among 3 unbiased, 2 times less")
    assert "than C()" in text
    assert "values of f only" in text


def test_seconds_count_not_evaluations() -> None:
    slow = row("Slow()", 0.1, microseconds=1000.0, evals=1)
    assert said(slow, row("Quick()", 1.0, evals=9)).startswith("Quick():")


def test_where_it_needs_a_gradient_the_best_without_is_named() -> None:
    best = row("Grad()", 0.01, needs_gradient=True)
    text = said(best, row("Values()", 0.5), row("Worse()", 0.9))
    assert text.startswith("Grad():")
    assert "f is differentiable" in text
    assert "If f has no gradient: Values()." in text
    assert "If f has no gradient" not in said(row("Values()", 0.01), best)
    assert "If f has no gradient" not in said(best, row("Too()", 0.02, needs_gradient=True))


def test_conditions_are_given_up_one_after_the_other() -> None:
    text = said(
        row("All()", 0.0, grows=True, evals=16, variance_error=0.0),
        row("Grad()", 0.1, needs_gradient=True),
        row("Relaxed()", 0.2, needs_relaxed=True),
        row("Values()", 0.5),
        units=4,
    )
    assert text.startswith("All(): no variance among 4 unbiased; 4 units are few enough for 16")
    assert "With many more units: Grad(). If f has no gradient: Values()." in text


def test_of_equals_the_one_that_asks_less() -> None:
    best, equal = row("Learns()", 1.0, learns=True), row("Simple()", 1.1)
    assert said(best, equal).startswith("Simple():")
    assert "with Learns() as good within the error" in said(best, equal)
    assert said(best, row("Simple()", 1.4)).startswith("Learns():")
    unsure = row("Simple()", 1.4, variance_error=0.3)  # not known to be worse
    assert said(best, unsure).startswith("Simple():")


def test_what_contradicts_its_claim_is_never_recommended() -> None:
    assert said(row("Wrong()", 0.01, z=50.0), row("Right()", 1.0)).startswith("Right():")
    assert said(row("Rare()", 0.01, z=math.nan), row("Right()", 1.0)).startswith("Rare():")


def test_another_objective_is_no_rival() -> None:
    text = said(row("Other()", 0.001, own_objective=True), row("Rival()", 1.0))
    assert text.startswith("Rival(): the only unbiased one")
    assert "Other" not in text


def test_a_biased_one_that_errs_less_is_named_with_its_limit() -> None:
    biased = row("Biased()", 0.1, unbiased=False, bias=0.1, evals=1)
    text = said(row("A()", 1.0), row("B()", 2.0), biased)
    # 0.1² + 0.1·1/N = 1.0·2/N at N = 190
    assert "Biased by 10 %, but nearer the truth up to 1.9e+02 evaluations per step" in text
    assert "Biased()" in text
    assert "Biased()" in said(row("A()", 1.0), biased, scale=10.0)  # N = 1.9
    assert "Biased()" not in said(row("A()", 1.0), biased, scale=100.0)  # N < 1
    assert "Biased()" not in said(row("A()", 0.01), biased)


def test_a_bias_that_was_not_seen_is_not_called_none() -> None:
    lucky = row("Lucky()", 0.1, unbiased=False, bias=0.0005)
    assert "Biased in general, but not seen to be here" in said(row("A()", 1.0), lucky)
    assert "Lucky" not in said(row("A()", 0.01), lucky)


def test_nothing_unbiased_and_nothing_at_all() -> None:
    text = said(row("X()", unbiased=False, bias=0.3), row("Y()", unbiased=False, bias=0.1))
    assert text.startswith("No unbiased estimator was compared. Least biased: Y() (10 %)")
    assert "--estimator RLOO" in text
    assert said().startswith("No recommendation")
    assert said(row("O()", own_objective=True)).startswith("No recommendation")
    assert said(row("W()", z=99.0)).startswith("No recommendation")

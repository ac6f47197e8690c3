"""The tables of numbers: errors beside the paper's, and what the gates do and cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from hardgate_lab.reproduce.report.curves import TOLERANCE
from hardgate_lab.reproduce.report.html import Html, element, join, table
from hardgate_lab.reproduce.report.runs import Experiment, Result, over_seeds
from hardgate_lab.reproduce.table import PAPER, short

_NONE = "–"
_PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
_SLASH = "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}"
_TEST_IMAGES = 10_000


def errors(experiment: Experiment) -> Html:
    """Ours, the paper's below it, and whether that was reached."""
    heads = ("Gater", "Training criterion", "Validation error, %", "Test error, %", "Gates on, %")
    rows = [_errors(experiment, row) for row in experiment.rows]
    return table((*heads, "Against the paper"), rows)


def above(experiment: Experiment) -> dict[str, float]:
    """By row of the paper: how far our mean test error is above the paper's, in points."""
    means = {row: _mean(results, "test_error") for row, results in experiment.rows.items()}
    return {
        row: round(ours - PAPER[row].test, 4)
        for row, ours in means.items()
        if row in PAPER and ours is not None and experiment.comparable
    }


def chance(experiment: Experiment) -> float | None:
    """The standard error of one test error of the paper's experiment, in points."""
    values = over_seeds(experiment.results, "test_error")
    if not values or not experiment.comparable:
        return None
    share = statistics.fmean(values) / 100
    return 100 * math.sqrt(max(0.0, share * (1 - share)) / _TEST_IMAGES)


def gates(experiment: Experiment) -> Html:
    """Dead units, decisiveness, multiplications, seconds."""
    heads = ("Gater", "Dead", "Always on", "Decisiveness", "Multiplications", "Without skipping")
    more = ("Criterion without noise", "Seconds")
    rows = [
        (
            element("b", results[0].label),
            _spread(results, "dead", _plain),
            _spread(results, "always_on", _plain),
            _spread(results, "decisiveness", _two),
            _spread(results, "needed", _thousands),
            _without_skipping(results),
            _spread(results, "train_loss_deterministic", short),
            _spread(results, "seconds", _whole),
        )
        for results in experiment.rows.values()
    ]
    return table((*heads, *more), rows)


# Errors


def _errors(experiment: Experiment, row: str) -> tuple[str, ...]:
    results, paper = experiment.rows[row], PAPER.get(row)
    theirs = [short(paper.train), _two(paper.valid), _two(paper.test)] if paper else [""] * 3
    ours = (
        _spread(results, "train_loss", short),
        _spread(results, "valid_error", _two),
        _spread(results, "test_error", _two),
    )
    pairs = [
        join(one, element("small", f"paper {other}")) if other else one
        for one, other in zip(ours, theirs, strict=True)
    ]
    return _name(results), *pairs, _density(results), _verdict(experiment, row)


def _name(results: Sequence[Result]) -> Html:
    seeds = f"{len(results)} seeds" if len(results) > 1 else f"seed {results[0].seed}"
    best, epochs = _range(results, "best_epoch"), _range(results, "epochs")
    which = f", epoch {best} of {epochs}" if best and epochs else ""
    return join(element("b", results[0].label), element("small", seeds + which))


def _range(results: Sequence[Result], name: str) -> str:
    values = over_seeds(results, name)
    if not values:
        return ""
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g}–{high:g}"


def _density(results: Sequence[Result]) -> str:
    found = [_mean(results, name) for name in ("density_train", "density_test")]
    if all(value == 1 for value in found):
        return "all"
    shown = _SLASH.join(_NONE if value is None else f"{100 * value:.1f}" for value in found)
    shown = join(shown, element("small", f"training{_SLASH}test"))
    rate = results[0].settings.get("rate")
    if not results[0].sparse or not isinstance(rate, float):
        return shown
    rounding = 1e-9
    inside = all(v is not None and abs(v - rate) <= TOLERANCE + rounding for v in found)
    return shown if inside else join(shown, _mark(False, f"not within {100 * rate:g} ± 1"))


def _verdict(experiment: Experiment, row: str) -> str:
    points = above(experiment).get(row)
    if points is None:
        return "not comparable" if row in PAPER else "not in the paper"
    if points > 0:
        return _mark(False, f"not reached: {points:.2f} above")
    return _mark(True, f"{-points:.2f} below" if points else "equal")


def _mark(good: bool, words: str) -> Html:
    """In words and by a sign as well as in colour."""
    return element("span", f"{'✓' if good else '✗'} {words}", class_="good" if good else "bad")


# Numbers


def _mean(results: Sequence[Result], name: str) -> float | None:
    values = over_seeds(results, name)
    return statistics.fmean(values) if values else None


def _spread(results: Sequence[Result], name: str, style: Callable[[float], str]) -> str:
    """Mean ± standard deviation over seeds; a dash where no record has it."""
    values = over_seeds(results, name)
    if not values:
        return _NONE
    mean = style(statistics.fmean(values))
    if len(values) == 1:
        return mean
    deviation = statistics.stdev(values)
    return f"{mean}{_PLUS_MINUS}{style(deviation) if deviation else 0}"


def _without_skipping(results: Sequence[Result]) -> str:
    needed, dense = _mean(results, "needed"), _mean(results, "dense")
    if not needed or dense is None:
        return _NONE
    return f"{_thousands(dense)} ({dense / needed:.1f}×)"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _plain(value: float) -> str:
    return f"{value:.4g}"


def _thousands(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")

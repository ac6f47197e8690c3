"""The tables of numbers: errors beside the paper's, and what the gates do and cost."""

from __future__ import annotations

from collections.abc import Sequence

from hardgate_lab.reproduce.report.curves import TOLERANCE
from hardgate_lab.reproduce.report.html import Html, element, join, table
from hardgate_lab.reproduce.report.numbers import NONE, mean, percent, span, spread, two
from hardgate_lab.reproduce.report.runs import Experiment, Result
from hardgate_lab.reproduce.table import PAPER, short

_SLASH = "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}"


def errors(experiment: Experiment) -> Html:
    """Training loss, errors and gates of each row, with the paper's figures below them."""
    heads = ("Gater", "Training loss", "Validation error, %", "Test error, %")
    gates_on = f"Gates on, %: training{_SLASH}test"
    rows = [_errors(experiment, row) for row in experiment.rows]
    return table((*heads, gates_on), rows, class_="numbers")


def gates(experiment: Experiment) -> Html:
    """Dead units, decisiveness, multiplications, seconds."""
    heads = ("Gater", "Dead", "Always on", "Decisiveness", "Multiplications", "Without skipping")
    more = ("Loss without noise", "Seconds")
    rows = [
        (
            results[0].label,
            span(results, "dead") or NONE,
            span(results, "always_on") or NONE,
            spread(results, "decisiveness", two),
            spread(results, "needed", _thousands),
            _without_skipping(results),
            spread(results, "train_loss_deterministic", short),
            spread(results, "seconds", _whole),
        )
        for results in experiment.rows.values()
    ]
    return table((*heads, *more), rows, class_="numbers")


# Errors


def _errors(experiment: Experiment, row: str) -> tuple[str, ...]:
    results, paper = experiment.rows[row], PAPER.get(row)
    theirs = [""] * 3
    if paper is not None and experiment.comparable:
        theirs = [short(paper.train), two(paper.valid), two(paper.test)]
    ours = (
        spread(results, "train_loss", short),
        spread(results, "valid_error", two),
        spread(results, "test_error", two),
    )
    pairs = [
        join(one, element("small", f"paper {other}")) if other else one
        for one, other in zip(ours, theirs, strict=True)
    ]
    return _name(results), *pairs, _density(results)


def _name(results: Sequence[Result]) -> Html:
    seeds = f"{len(results)} seeds" if len(results) > 1 else f"seed {results[0].seed}"
    best, epochs = span(results, "best_epoch"), span(results, "epochs")
    which = f", epoch {best} of {epochs}" if best and epochs else ""
    return join(results[0].label, element("small", seeds + which))


def _density(results: Sequence[Result]) -> str:
    found = [mean(results, name) for name in ("density_train", "density_test")]
    if all(value == 1 for value in found):
        return "all"
    shown = _SLASH.join(map(percent, found))
    rate = results[0].settings.get("rate")
    if not results[0].sparse or not isinstance(rate, float):
        return shown
    rounding = 1e-9
    inside = all(v is not None and abs(v - rate) <= TOLERANCE + rounding for v in found)
    return shown if inside else join(shown, element("small", f"not within {100 * rate:g} ± 1"))


# Gates


def _without_skipping(results: Sequence[Result]) -> str:
    needed, dense = mean(results, "needed"), mean(results, "dense")
    if not needed or dense is None:
        return NONE
    return f"{_thousands(dense)} ({dense / needed:.1f}×)"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _thousands(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")

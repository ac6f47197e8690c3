"""The candidates of `hardgate vae`: estimators and units, by the code that makes them."""

from __future__ import annotations

from collections.abc import Iterable

from hardgate.estimators import ESTIMATORS, Estimator
from hardgate.units import Unit
from hardgate_lab.rig.candidates import (
    Candidate,
    UnknownEstimatorError,
    all_candidates,
    candidates_named,
)

# What is trained if nothing is named. Variances are measured along the first one's training.
QUICK = ("ReinMax()", "DoubleCV(2)", "RLOO(2)", "DisARM()", "BinaryConcrete()")
MOST_EVALS = 4
_SAMPLES = 2  # of a bare RLOO, ARMS, …
_FORMS = ("DoubleCV(2, per_unit=True)",)  # besides those that `hardgate compare` has
_GATES = ("sample=False", "off_units")  # arguments of units that gate experts: not part of `all`


def trainable(named: Iterable[str]) -> dict[str, Candidate]:
    """The candidates that a user named, by their code; `all`: those of at most 4 evaluations.

    Example:
        >>> list(trainable(["RLOO", "RLOO(4)"]))
        ['RLOO(2)', 'RLOO(4)']
    """
    found = [candidate for text in named for candidate in _meant(text)]
    return {_checked(candidate).name: candidate for candidate in found}


def n_evals(made: Estimator | Unit) -> int:
    """Evaluations of f per gradient; a unit back-propagates through one."""
    return int(made.n_evals) if isinstance(made, Estimator) else 1


def slug(code: str) -> str:
    """A file name for it.

    Example:
        >>> slug('REINFORCE("optimal")')
        'REINFORCE-optimal'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in code).split())


def _meant(text: str) -> list[Candidate]:
    if text != "all":
        return candidates_named(text, [_SAMPLES])
    forms = [candidate for form in _FORMS for candidate in candidates_named(form, [_SAMPLES])]
    return [
        candidate
        for candidate in [*all_candidates([_SAMPLES]), *forms]
        if _few(candidate) and _fits(candidate)
    ]


def _few(candidate: Candidate) -> bool:
    if candidate.grows or any(argument in candidate.name for argument in _GATES):
        return False
    return n_evals(candidate.make()) <= MOST_EVALS


def _fits(candidate: Candidate) -> bool:
    """Samples b ~ Bernoulli(σ(a)), or relaxes it, and leaves the whole gradient to f."""
    made = candidate.make()
    return not candidate.own_objective and not (isinstance(made, Unit) and made.needs_loss)


def _checked(candidate: Candidate) -> Candidate:
    if candidate.grows:
        raise UnknownEstimatorError(
            f"expected an estimator whose evaluations do not grow with the 200 units, got "
            f"{candidate.name}. Type hardgate compare --estimator '{candidate.name}'."
        )
    if not _fits(candidate):
        raise UnknownEstimatorError(
            f"expected an estimator of {', '.join(ESTIMATORS)}, or a unit that samples or relaxes "
            f"b ~ Bernoulli(σ(a)), got {candidate.name}. Instead of a unit that learns from the "
            "loss, type --estimator 'REINFORCE(\"optimal\")'."
        )
    return candidate

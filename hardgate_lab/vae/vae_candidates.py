"""Who is trained by `hardgate vae`: estimators and units, by the code that makes them."""

from __future__ import annotations

from collections.abc import Iterable

from hardgate.estimators import ESTIMATORS, Estimator
from hardgate.units import Unit
from hardgate_lab.rig.candidates import Contestant, UnknownEstimatorError, contestants, everybody

# If nothing is named: the classics, and the best of ours. The first one's path is the trajectory.
QUICK = ("ReinMax()", "DoubleCV(2)", "RLOO(2)", "DisARM()", "BinaryConcrete()")
MOST_EVALS = 4
_SAMPLES = 2  # of a bare RLOO, ARMS, …
_FORMS = ("DoubleCV(2, per_unit=True)",)  # besides those that `hardgate compare` has
_GATES = ("sample=False", "off_units")  # arguments of units that gate experts: not part of `all`


def rivals(named: Iterable[str]) -> dict[str, Contestant]:
    """What a user has named, each once, by its code; `all` is every one of at most 4 evaluations.

    Example:
        >>> list(rivals(["RLOO", "RLOO(4)"]))
        ['RLOO(2)', 'RLOO(4)']
    """
    found = [rival for text in named for rival in _meant(text)]
    return {_checked(rival).name: rival for rival in found}


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


def _meant(text: str) -> list[Contestant]:
    if text != "all":
        return contestants(text, [_SAMPLES])
    forms = [rival for form in _FORMS for rival in contestants(form, [_SAMPLES])]
    return [rival for rival in [*everybody([_SAMPLES]), *forms] if _few(rival) and _fits(rival)]


def _few(rival: Contestant) -> bool:
    if rival.grows or any(argument in rival.name for argument in _GATES):
        return False
    return n_evals(rival.make()) <= MOST_EVALS


def _fits(rival: Contestant) -> bool:
    """Samples b ~ Bernoulli(σ(a)), or relaxes it, and leaves the whole gradient to f."""
    made = rival.make()
    return not rival.own_objective and not (isinstance(made, Unit) and made.needs_loss)


def _checked(rival: Contestant) -> Contestant:
    if rival.grows:
        raise UnknownEstimatorError(
            f"expected an estimator whose evaluations do not grow with the 200 units, got "
            f"{rival.name}. Type hardgate compare --estimator '{rival.name}'."
        )
    if not _fits(rival):
        raise UnknownEstimatorError(
            f"expected an estimator of {', '.join(ESTIMATORS)}, or a unit that samples or relaxes "
            f"b ~ Bernoulli(σ(a)), got {rival.name}. Type --estimator 'REINFORCE(\"optimal\")' for "
            "a unit that learns from the loss."
        )
    return rival

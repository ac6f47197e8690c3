"""The property tables of the units and of the estimators, read from their attributes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator

from hardgate.estimators import ESTIMATORS, Estimator, ManySamples
from hardgate.units import UNITS, Unit
from hardgate_lab.rig import markers
from hardgate_lab.rig.text_tables import markdown_table

COLUMNS = ("unit", "unbiased", "binary", "needs the loss", "gradient of an off unit")
ESTIMATOR_COLUMNS = (
    "estimator",
    "unbiased",
    "evaluations of f",
    "gradient of f",
    "relaxed f",
    "learns",
    "what it is",
)

_OFF = {
    "zero": "zero",
    "score": "from the loss alone",
    "expert": "needs what the unit gates",
}


def facts() -> Iterator[tuple[str, ...]]:
    """One row per form of each unit, in the order of COLUMNS."""
    for name, make in UNITS.items():
        yield (name, *_facts(make()))


def _facts(unit: Unit) -> tuple[str, ...]:
    flags = (unit.unbiased, unit.binary, unit.needs_loss)
    return (*map(_yes_no, flags), _OFF[unit.off_gradient])


def estimator_facts() -> Iterator[tuple[str, ...]]:
    """One row per estimator, in the order of ESTIMATOR_COLUMNS."""
    for name, cls in ESTIMATORS.items():
        made = cls()
        evals = "K" if isinstance(made, ManySamples) else str(made.n_evals)
        needs = map(_yes_no, (made.needs_gradient_of_f, made.needs_relaxed_f, bool(made.state)))
        yield (name, _yes_no(made.unbiased), evals, *needs, _about(name, cls))


def _yes_no(flag: bool) -> str:
    return "yes" if flag else "no"


def _about(name: str, cls: type[Estimator]) -> str:
    """The first line of its file, less its name."""
    line = (sys.modules[cls.__module__].__doc__ or "").strip().partition("\n")[0]
    return line.removeprefix(f"{name}: ").rstrip(".")


def markdown() -> str:
    """The units, as the README shows them."""
    return _table(COLUMNS, facts())


def estimators_markdown() -> str:
    """The estimators, as docs/estimators.md shows them."""
    return _table(ESTIMATOR_COLUMNS, estimator_facts())


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    cells = [(f"`{name}`", *(cell.replace("|", "\\|") for cell in rest)) for name, *rest in rows]
    return markdown_table(columns, cells)


# What a page may hold, by the name of its markers.
_BLOCKS: dict[str, Callable[[], str]] = {"facts": markdown, "estimators": estimators_markdown}


def write(page: str) -> str:
    """`page` with the tables that it has markers for written anew."""
    return markers.write(page, _BLOCKS)

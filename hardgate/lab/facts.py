"""The property table of the units, read from their attributes."""

from __future__ import annotations

from collections.abc import Iterator

from hardgate.lab.page import embed
from hardgate.units import UNITS, Unit

COLUMNS = ("unit", "unbiased", "binary", "needs the loss", "gradient of an off unit")

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
    return (*("yes" if flag else "no" for flag in flags), _OFF[unit.off_gradient])


def markdown() -> str:
    """The table as Markdown, as the README shows it."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += [f"| `{name}` | " + " | ".join(rest) + " |" for name, *rest in facts()]
    return "\n".join(lines)


def write(page: str) -> str:
    """`page` with the table written anew."""
    return embed(page, "facts", markdown())

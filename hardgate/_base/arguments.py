"""Checks of arguments: each returns the value, or raises and says what was expected."""

from __future__ import annotations

from typing import TypeVar

_S = TypeVar("_S", bound=str)


def one_of(name: str, value: _S, allowed: tuple[_S, ...]) -> _S:
    """`value`, or an error that lists what is allowed."""
    if value not in allowed:
        choices = ", ".join(repr(v) for v in allowed)
        raise ValueError(f"{name} expected one of {choices}, got {value!r}.")
    return value


def flag(name: str, value: bool) -> bool:
    """`value`, or an error if it is neither True nor False: an argument in the wrong place."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} expected True or False, got {value!r}.")
    return value


def positive(name: str, value: float, like: float | None = None) -> float:
    """`value`, or an error if it is not a positive number; `like` is an example."""
    if not 0 < value < float("inf"):
        hint = "" if like is None else f", like {like}"
        raise ValueError(f"{name} expected a positive number{hint}, got {value!r}.")
    return float(value)


def fraction(name: str, value: float) -> float:
    """`value`, or an error if it is not inside (0, 1)."""
    if not 0 < value < 1:
        raise ValueError(f"{name} expected a number between 0 and 1, like 0.1, got {value!r}.")
    return float(value)


def at_least_one(name: str, size: int) -> int:
    """`size`, or an error if it is not a positive whole number."""
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"{name} expected a whole number of at least 1, got {size!r}.")
    return size


def proper_decay(decay: float, like: float = 0.9) -> float:
    """`decay`, or an error if sums that decay so would grow or change their sign."""
    if not (isinstance(decay, int | float) and 0 <= decay < 1):
        raise ValueError(f"decay expected a number in [0, 1), like {like}, got {decay!r}.")
    return decay

"""Checks of arguments: each returns the value, or raises and says what was expected."""

from __future__ import annotations

import math
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


def positive(name: str, value: float, like: float = 1.0) -> float:
    """`value`, or an error if it is not a positive number; `like` is an example."""
    if not (_number(value) and 0 < value < math.inf):
        raise _expected("a positive number", name, value, like)
    return float(value)


def not_negative(name: str, value: float, like: float = 1.0) -> float:
    """`value`, or an error if it is not a number of at least 0; `like` is an example."""
    if not (_number(value) and 0 <= value < math.inf):
        raise _expected("a number of at least 0", name, value, like)
    return float(value)


def fraction(name: str, value: float, like: float = 0.1) -> float:
    """`value`, or an error if it is not inside (0, 1)."""
    if not (_number(value) and 0 < value < 1):
        raise _expected("a number between 0 and 1", name, value, like)
    return float(value)


def proper_decay(decay: float, like: float = 0.9) -> float:
    """`decay`, or an error if sums that decay so would grow or change their sign."""
    if not (_number(decay) and 0 <= decay < 1):
        raise _expected("a number in [0, 1)", "decay", decay, like)
    return float(decay)


def at_least(name: str, value: int, least: int) -> int:
    """`value`, or an error if it is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} expected a whole number of at least {least}, got {value!r}.")
    return value


def at_least_one(name: str, value: int) -> int:
    """`value`, or an error if it is not a whole number of at least 1."""
    return at_least(name, value, 1)


def _number(value: object) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool)


def _expected(what: str, name: str, got: object, like: float) -> ValueError:
    return ValueError(f"{name} expected {what}, got {got!r}. Write {name}={like:g}.")

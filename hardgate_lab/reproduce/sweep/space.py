"""What a sweep varies: the settings that the paper left open, and how far."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from hardgate_lab.reproduce.settings import Settings, change


@dataclass(frozen=True)
class Range:
    """A number between two ends, drawn on a logarithmic scale where `log`."""

    low: float
    high: float
    log: bool = True


class Suggest(Protocol):
    """What of an Optuna trial is used here."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool) -> float:
        """A value for `name`."""


_SHARED = {
    "lr": Range(0.02, 1.0),
    "expert_init": Range(0.2, 2.0),
    "out_init": Range(0.5, 6.0),
    "input_dropout": Range(0.0, 0.4, log=False),
}
_GATED = {
    "gater_lr": Range(0.005, 3.0),
    "gater_init": Range(0.5, 8.0),
    "bottleneck_max_norm": Range(0.7, 4.0),
    "gate_max_norm": Range(1.0, 8.0),
}
_CONTROLLED = {
    "kl": {"sparsity_weight": Range(1e-4, 1.0), "target": Range(0.09, 0.105, log=False)},
    "l1": {"sparsity_weight": Range(1e-6, 1e-3)},
    "rate": {"sparsity_weight": Range(1e-3, 1.0)},
    "none": {},
}
# Dropout is not among what the paper left open: only our own rows may use it.
_OURS_ONLY = {"input_dropout"}


def space(row: str, settings: Settings, fixed: Collection[str] = ()) -> dict[str, Range]:
    """What is varied for a row, from its settings; not what is `fixed`, nor norms without limit."""
    ranges = {**_SHARED, **_CONTROLLED[settings.sparsity]}
    if settings.unit != "none":
        ranges |= _GATED
    if row not in ("best", "dense"):
        fixed = {*fixed, *_OURS_ONLY}
    off = {name for name, each in ranges.items() if each.log and not getattr(settings, name)}
    return {name: each for name, each in ranges.items() if name not in {*fixed, *off}}


def suggest(trial: Suggest, row: str, settings: Settings, fixed: Collection[str] = ()) -> Settings:
    """The settings with what is varied as the trial has it."""
    drawn = {
        name: trial.suggest_float(name, each.low, each.high, log=each.log)
        for name, each in space(row, settings, fixed).items()
    }
    return change(settings, {name: rounded(value) for name, value in drawn.items()})


def start(row: str, settings: Settings, fixed: Collection[str] = ()) -> dict[str, float]:
    """The row's own settings as a first trial: the sweep must beat them."""
    return {name: getattr(settings, name) for name in space(row, settings, fixed)}


def rounded(value: float) -> float:
    """Three digits: what is printed is what was run."""
    return float(f"{value:.3g}") if math.isfinite(value) else value


def command(row: str, preset: str, best: dict[str, Any], options: list[str]) -> str:
    """The `hardgate reproduce` that runs these settings."""
    sets = [f"--set {name}={rounded(value):g}" for name, value in best.items()]
    return " ".join(["hardgate reproduce", f"--preset {preset}", f"--row {row}", *options, *sets])

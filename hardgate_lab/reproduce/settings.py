"""Every number of the experiment: one frozen dataclass, the table's rows as changes to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any


class SettingsError(ValueError):
    """A setting, row or preset that does not exist, or a value it cannot have."""


PRECISIONS = ("float32", "bfloat16")
STARTS = ("uniform", "differences")
_ALMOST_ONE = 1 - 1e-9
_RANGES = (
    ("hidden bottleneck batch epochs", 1, 10**9),
    ("momentum_epochs decay_start", 0, 10**9),
    ("rate target", 1e-9, _ALMOST_ONE),
    ("momentum momentum_start input_dropout hidden_dropout average", 0.0, _ALMOST_ONE),
    ("lr gater_lr gater_init bottleneck_init expert_init out_init", 1e-12, 1e6),
    ("decay", 0.0, 1.0),
    ("noise beta sparsity_weight rho", 0.0, 1e6),
    ("max_norm bottleneck_max_norm gate_max_norm out_max_norm", 0.0, 1e6),
)


@dataclass(frozen=True)
class Settings:
    """The network of Fig. 1 and its training. The defaults are what the paper's rows share."""

    # The network
    unit: str = "straight_through"  # the gates' unit, a name in `network.UNITS`; "none": no gates
    hidden: int = 2000  # experts, one gate each
    bottleneck: int = 400  # the gater's hidden layer
    activation: str = "linear"  # of the experts: "linear", as in the paper, or "relu"
    rate: float = 0.1  # the fraction of gates that are on, at the start and at test time
    gater_init: float = 1.0  # times the authors' initial weights of the gater's output layer
    bottleneck_init: float = 1.0  # times those of its hidden layer
    bottleneck_start: str = "uniform"  # these: the authors', or "differences" of training images
    expert_init: float = 1.0  # times those of the experts
    out_init: float = 1.0  # times those of the output layer

    # The unit
    noise: float = 0.0  # standard deviation of Gaussian noise at the unit's input; 0: none
    beta: float = 0.0  # β of the noise of App. A.2 at the input of the STS unit; 0: none
    placement: str = "both"  # halves of STS that see that noise: "both" (A.2), "stochastic" (A.4)
    corrected: bool = False  # STS: pass the gradient straight through b too (erratum 2)
    sigmoid_derivative: bool = False  # ST: multiply the gradient by σ'(a)
    off_units: str = "exact"  # ST: gradient of gates that are off: "exact", "sampled", "ignore"
    off_rate: float = 0.1  # ST: the fraction of them that "sampled" keeps
    baseline: str = "optimal"  # SBN: L̄_i of Corollary 1: "optimal" or "mean"
    baseline_decay: float = 0.9  # SBN: of the baseline's moving averages

    # Sparsity
    sparsity: str = "kl"  # controller: "kl" (A.1), "l1" (A.1, rectifiers), "rate" (§2.1), "none"
    target: float = 0.1  # the fraction of gates that it wants on in training
    sparsity_weight: float = 1e-3  # its weight λ; for "l1" where λ starts, for "rate" the strength

    # Regularisation inside the network
    max_norm: float = 2.1  # largest norm of an expert's incoming weights (A.4); 0: no limit
    bottleneck_max_norm: float = 2.1  # the same for the gater's hidden layer
    gate_max_norm: float = 2.1  # the same for the gates
    out_max_norm: float = 2.1  # the same for the classes
    input_dropout: float = 0.0  # fraction of the pixels set to zero in training
    hidden_dropout: float = 0.0  # fraction of the gated experts set to zero in training
    average: float = 0.0  # moving average of the weights, per step, that is evaluated; 0: none

    # Optimisation
    batch: int = 32  # examples per step
    epochs: int = 100  # passes over the training images
    lr: float = 0.1  # learning rate
    gater_lr: float = 1.0  # the gater's learning rate, times `lr`
    bottleneck_learns: bool = True  # else the gater's hidden layer stays as it was drawn
    decay_start: int = 50  # epochs at the full learning rate
    decay: float = 0.97  # then its factor per epoch; 0: it falls linearly, to 0 at the end
    momentum: float = 0.0  # of SGD, from `momentum_epochs` on
    momentum_start: float = 0.5  # in the first epoch, where `momentum` is not 0; it rises linearly
    momentum_epochs: int = 20  # the epochs of that rise
    rho: float = 0.0  # ρ of sharpness-aware minimisation, two passes a step; 0: plain SGD
    precision: str = "float32"  # of the products in training: "float32", or "bfloat16" by autocast

    def __post_init__(self) -> None:
        for names, low, high in _RANGES:
            for name in names.split():
                if not low <= getattr(self, name) <= high:
                    got = getattr(self, name)
                    raise SettingsError(f"{name} expected a value in [{low}, {high}], got {got!r}.")
        for name, words in (("precision", PRECISIONS), ("bottleneck_start", STARTS)):
            if getattr(self, name) not in words:
                got = getattr(self, name)
                raise SettingsError(f"{name} expected one of {', '.join(words)}, got {got!r}.")

    def learning_rate(self, epoch: float) -> float:
        """The learning rate when this many epochs are done; the fraction is that of the next."""
        if self.decay:
            return self.lr * self.decay ** max(0, math.floor(epoch) - self.decay_start + 1)
        falling = max(self.epochs - self.decay_start, 1e-9)
        return self.lr * min(1.0, (self.epochs - epoch) / falling)

    def momentum_in(self, epoch: int) -> float:
        """The momentum in an epoch, counted from 0."""
        risen = min(1.0, epoch / self.momentum_epochs) if self.momentum_epochs else 1.0
        start = min(self.momentum_start, self.momentum)
        return start + risen * (self.momentum - start)


def change(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """`settings` with these changes; strings are read as the field's type.

    Args:
        settings: what to start from.
        changes: by field name; the values may be strings, as typed on a command line.

    Returns:
        the new settings.

    Example:
        >>> change(Settings(), {"lr": "0.05", "corrected": "true"}).lr
        0.05
    """
    known = [field.name for field in fields(Settings)]
    for name in changes:
        if name not in known:
            raise SettingsError(f"{name!r} is not a setting; expected one of {', '.join(known)}.")
    read = {name: _read(name, value, getattr(settings, name)) for name, value in changes.items()}
    return replace(settings, **read)


def read_changes(texts: Sequence[str]) -> dict[str, str]:
    """The changes of `--set NAME=VALUE`, by name; none may be given twice."""
    changes: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set expected NAME=VALUE, like --set lr=0.05, got {text!r}.")
        if name in changes:
            raise SettingsError(f"{name} expected one value, got {changes[name]} and {value}.")
        changes[name] = value
    return changes


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


_READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (_boolean, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a word"),
}


def _read(name: str, value: Any, old: Any) -> Any:
    """`value` in the type of the field, whose present value is `old`."""
    kind = type(old)
    if type(value) is kind or (kind is float and type(value) is int):
        return kind(value)
    reader, expected = _READERS[kind]
    try:
        if not isinstance(value, str):
            raise ValueError
        return reader(value)
    except (ValueError, KeyError):
        raise SettingsError(f"{name} expected {expected}, got {value!r}.") from None


# What the search on validation found for the gated rows, and the paper left open: experts that
# start small behind an output that starts large and is not limited, high rates, and an average
# of the weights over the last of many noisy steps.
_GATED = Settings(
    lr=0.3,
    gater_lr=0.5,
    expert_init=0.5,
    out_init=3.0,
    bottleneck_max_norm=1.2,
    out_max_norm=0.0,
    average=0.9995,
    decay=0.0,
)
_RECTIFIER = replace(_GATED, unit="rectifier", sparsity="l1", sparsity_weight=1e-5, lr=0.2)
_SIGMOID = Settings(
    unit="sigmoid",
    hidden=200,
    sparsity="none",
    lr=0.3,
    max_norm=0.0,
    bottleneck_max_norm=0.0,
    gate_max_norm=0.0,
    out_max_norm=0.0,
    average=0.9995,
    epochs=24,
    decay_start=12,
    decay=0.0,
)
_STRAIGHT_THROUGH = replace(
    _GATED,
    sigmoid_derivative=True,
    sparsity_weight=0.01,
    target=0.096,
    gater_lr=2.0,
    gater_init=1.5,
    gate_max_norm=3.0,
    bottleneck_max_norm=1.5,
    epochs=30,
    decay_start=15,
)

# The rows of the paper's table in its order, then ours.
ROWS: dict[str, Settings] = {
    "noisy_rectifier": replace(
        _RECTIFIER, unit="noisy_rectifier", noise=1.0, epochs=30, decay_start=15
    ),
    "straight_through": replace(_STRAIGHT_THROUGH, rho=0.6),
    "stochastic_times_smooth": replace(
        _GATED,
        unit="stochastic_times_smooth",
        sparsity_weight=0.01,
        gater_lr=1.0,
        gater_init=6.0,
        gate_max_norm=0.0,
        epochs=14,
        decay_start=5,
    ),
    "stochastic_binary": replace(
        _GATED,
        unit="stochastic_binary",
        sparsity_weight=0.02,
        target=0.097,
        gater_lr=0.03,
        bottleneck_learns=False,
        bottleneck_start="differences",
        gater_init=3.0,
        out_init=1.0,
        gate_max_norm=0.0,
        bottleneck_max_norm=0.0,
        out_max_norm=3.0,
        average=0.9998,
        lr=0.8,
        epochs=36,
        decay_start=18,
    ),
    "rectifier": replace(_RECTIFIER, epochs=20, decay_start=10),
    "sigmoid_noise": replace(_SIGMOID, noise=1.0),
    "sigmoid": _SIGMOID,
    "best": replace(_STRAIGHT_THROUGH, input_dropout=0.2, rho=0.3, epochs=40, decay_start=20),
    "dense": Settings(
        unit="none",
        sparsity="none",
        input_dropout=0.2,
        hidden_dropout=0.5,
        out_max_norm=0.0,
        average=0.9995,
        lr=0.2,
        epochs=72,
        decay_start=36,
        decay=0.0,
    ),
}
PAPER_ROWS = tuple(ROWS)[:7]

# What a preset changes in every row.
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        **{"epochs": 4, "decay_start": 1, "decay": 0.0},
        **{"average": 0.995, "beta": 0.0, "rho": 0.0},
    },
    "paper": {},
}


def settings_of(row: str, preset: str, changes: Mapping[str, Any] | None = None) -> Settings:
    """The settings of a row in a preset, with further changes on top."""
    if row not in ROWS:
        raise SettingsError(f"{row!r} is not a row; expected one of {', '.join(ROWS)}.")
    if preset not in PRESETS:
        raise SettingsError(f"{preset!r} is not a preset; expected one of {', '.join(PRESETS)}.")
    return change(change(ROWS[row], PRESETS[preset]), changes or {})

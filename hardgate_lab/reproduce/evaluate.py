"""What a network does with deterministic gates: error, loss, density, gates used by each class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from hardgate import calibrate_thresholds, gate_statistics
from hardgate_lab.reproduce.network import Dense, Gated, Network
from hardgate_lab.rig.checkpoint import json_number

if TYPE_CHECKING:
    from hardgate_lab.rig.mnist import Split

_BATCH = 500
_CALIBRATE = 5000  # training images on which the thresholds are tuned (App. A.3)
_DECISIVE = 2000  # images on which the decisiveness is measured
_HEAT = 100  # gates shown in the heat map: those whose use differs most between classes
BINS = 20
DIGITS = 4  # of a number in a record


@dataclass(frozen=True)
class Evaluation:
    """One pass over a split, with deterministic gates."""

    error: float  # percent
    loss: float  # mean cross-entropy
    density: float  # fraction of gates on


def calibrate(model: Network, train: Split, rate: float) -> None:
    """Tune the test-time threshold on training images, so that a fraction `rate` is on (A.3)."""
    if isinstance(model, Gated) and model.layer.gater.sparsity is not None:
        calibrate_thresholds(model.layer.gater, train.x[:_CALIBRATE].split(_BATCH), rate)


@torch.no_grad()
def evaluate(model: Network, split: Split) -> Evaluation:
    """Error, loss and density on a split; the model is left in evaluation mode."""
    model.eval()
    wrong, loss, density = 0, 0.0, 0.0
    for x, y in zip(split.x.split(_BATCH), split.y.split(_BATCH), strict=True):
        logits = model(x)
        wrong += int((logits.argmax(1) != y).sum())
        loss += cross_entropy(logits, y, reduction="sum").item()
        density += len(y) * _density(model)
    n = len(split.y)
    return Evaluation(100 * wrong / n, loss / n, density / n)


@torch.no_grad()
def gate_use(model: Network, split: Split) -> dict[str, Any]:
    """Firing rates, dead gates, decisiveness, and use per class, with deterministic gates."""
    if isinstance(model, Dense):
        return {}
    model.eval()
    gater, classes = model.layer.gater, int(split.y.max()) + 1
    use = torch.zeros(classes, gater.output.out_features)
    for x, y in zip(split.x.split(_BATCH), split.y.split(_BATCH), strict=True):
        use += one_hot(y, classes).float().T @ (gater(x) != 0).float()
    counts = torch.bincount(split.y, minlength=classes)
    rates, firing = use / counts.clamp(min=1).unsqueeze(1), use.sum(0) / len(split.y)
    a = gater.pre_activation(split.x[:_DECISIVE])
    statistics = gate_statistics(gater.unit, a, gater.unit(a))
    return {
        "dead": int((firing == 0).sum()),
        "always_on": int((firing == 1).sum()),
        "decisiveness": json_number(statistics.decisiveness, DIGITS),
        "firing_rates": torch.histc(firing, BINS, 0, 1).int().tolist(),
        "class_use": _most_varied(rates),
    }


def multiplications(model: Network) -> dict[str, float]:
    """Per example of the last pass: those of what was on, gater included, and without skipping."""
    if isinstance(model, Dense):
        dense = sum(p.numel() for p in model.parameters() if p.dim() == 2)
        return {"needed": dense, "dense": dense}
    telemetry = model.layer.telemetry()
    return {
        "needed": round(telemetry.needed / telemetry.examples),
        "dense": round(telemetry.dense / telemetry.examples),
    }


def _density(model: Network) -> float:
    return 1.0 if isinstance(model, Dense) else model.layer.telemetry().density


def _most_varied(rates: Tensor) -> dict[str, Any]:
    """The columns of `[classes, gates]` that vary most, sorted by the class that uses them most."""
    chosen = rates.var(0, unbiased=False).topk(min(_HEAT, rates.shape[1])).indices
    chosen = chosen[rates[:, chosen].argmax(0).argsort(stable=True)]
    rows = [[round(value, 2) for value in row] for row in rates[:, chosen].tolist()]
    return {"gates": chosen.tolist(), "rates": rows}

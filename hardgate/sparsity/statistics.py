"""What a layer of gates is doing, in one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hardgate._base.precision import widen
from hardgate.sparsity._controller import examples
from hardgate.units._unit import Unit


@dataclass(frozen=True)
class GateStatistics:
    """A layer of gates over a batch.

    - `density`: the fraction of h that is not zero.
    - `firing_rate`: the same for each unit, `[D]`.
    - `dead`, `always_on`: how many units were never on, and never off.
    - `decisiveness`: Var(p) / p̄(1-p̄) with p = P(h ≠ 0 | a), over examples: the share of a
      gate's on/off variance that the input explains. 0: the gates do not depend on the input;
      1: the input alone decides. The KL penalty tends to make gates indecisive (App. A.2).
    """

    density: float
    firing_rate: Tensor
    dead: int
    always_on: int
    decisiveness: float


@torch.no_grad()
def gate_statistics(unit: Unit, a: Tensor, h: Tensor) -> GateStatistics:
    """Density, firing rates, dead and always-on units, decisiveness of one layer.

    Args:
        unit: the unit that produced h.
        a: its pre-activations `[..., D]`.
        h: its output.

    Returns:
        a `GateStatistics`; NaN where the batch is empty.

    Example:
        >>> from hardgate import StraightThrough
        >>> unit, a = StraightThrough(), torch.tensor([[40.0, -40.0], [-40.0, -40.0]])
        >>> stats = gate_statistics(unit, a, unit(a))
        >>> stats.density, stats.dead, round(stats.decisiveness, 3)
        (0.25, 1, 1.0)
    """
    if a.shape != h.shape:
        raise TypeError(
            "gate_statistics expected a and h of one shape, got "
            f"{tuple(a.shape)} and {tuple(h.shape)}. Write gate_statistics(unit, a, unit(a))."
        )
    on = examples((h != 0).float())
    firing = on.mean(0)
    p = examples(unit.active_probability(widen(a)))
    mean = p.mean(0)
    possible = (mean * (1 - mean)).sum()
    decided = (p - mean).square().mean(0).sum()  # var() warns where the batch is empty
    return GateStatistics(
        density=on.mean().item(),
        firing_rate=firing,
        dead=int((firing == 0).sum()),
        always_on=int((firing == 1).sum()),
        decisiveness=(decided / possible).item() if possible > 0 else float("nan"),
    )

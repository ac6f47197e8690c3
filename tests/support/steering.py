"""Which controller can steer which unit: the others are refused (`tests/test_sparsity.py`)."""

from __future__ import annotations

from hardgate import UNITS

STEPS = {"Rectifier()", "StraightThrough(sample=False)"}  # their P(h ≠ 0) has no slope for the KL


def steers(controller: str, unit: str) -> bool:
    made = UNITS[unit]()
    refused = {"KLTarget": unit in STEPS, "AdaptiveL1": made.needs_loss}
    return not made.never_off and not refused.get(controller, False)

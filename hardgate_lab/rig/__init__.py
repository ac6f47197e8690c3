"""The lab: toy problems with known answers, and what each gradient makes of them."""

from hardgate_lab.rig.law import exact_objective, exact_unit_gradient
from hardgate_lab.rig.measure import Measurement, gradient_samples, measure
from hardgate_lab.rig.problems import EXTREME, PROBLEMS, Problem

__all__ = [
    "EXTREME",
    "PROBLEMS",
    "Measurement",
    "Problem",
    "exact_objective",
    "exact_unit_gradient",
    "gradient_samples",
    "measure",
]

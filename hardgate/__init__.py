"""Networks that make hard decisions, and compute only what they decide to.

The stochastic neurons, gradient estimators and training tools of Bengio, Léonard & Courville
(2013), *Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
Computation*.
"""

from hardgate import baselines, functional, noise
from hardgate.conditional import (
    ConditionalLinear,
    ConditionalMLP,
    FusedSGD,
    Gater,
    Telemetry,
    start_gates_,
)
from hardgate.exact import exact_expectation, exact_gradient
from hardgate.kernels.memory import reuse_memory
from hardgate.kernels.op import Path, last_path
from hardgate.score import clear_scores, score_loss
from hardgate.sparsity import (
    AdaptiveL1,
    Controller,
    FiringRate,
    GateStatistics,
    KLTarget,
    calibrate_thresholds,
    gate_statistics,
    max_norm_,
    sparsity_loss,
)
from hardgate.units import (
    UNITS,
    NoisyRectifier,
    Rectifier,
    Sigmoid,
    StochasticBinary,
    StochasticTimesSmooth,
    StraightThrough,
    Unit,
)

__version__ = "0.1.0"

__all__ = [
    "UNITS",
    "AdaptiveL1",
    "ConditionalLinear",
    "ConditionalMLP",
    "Controller",
    "FiringRate",
    "FusedSGD",
    "GateStatistics",
    "Gater",
    "KLTarget",
    "NoisyRectifier",
    "Path",
    "Rectifier",
    "Sigmoid",
    "StochasticBinary",
    "StochasticTimesSmooth",
    "StraightThrough",
    "Telemetry",
    "Unit",
    "baselines",
    "calibrate_thresholds",
    "clear_scores",
    "exact_expectation",
    "exact_gradient",
    "functional",
    "gate_statistics",
    "last_path",
    "max_norm_",
    "noise",
    "reuse_memory",
    "score_loss",
    "sparsity_loss",
    "start_gates_",
]

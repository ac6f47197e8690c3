"""Networks that make hard decisions, and compute only what they decide to.

The stochastic neurons, gradient estimators and training tools of Bengio, Léonard & Courville
(2013), *Estimating or Propagating Gradients Through Stochastic Neurons for Conditional
Computation*.
"""

from hardgate import estimators, functional, noise
from hardgate.conditional import (
    ConditionalLinear,
    ConditionalMLP,
    FusedSGD,
    Gater,
    Telemetry,
    start_gates_,
)
from hardgate.enumeration import exact_expectation, exact_gradient
from hardgate.estimators import ESTIMATORS, expectation
from hardgate.kernels.dispatch import ExecutionPath
from hardgate.learning import baselines
from hardgate.learning.score_loss import clear_scores, score_loss
from hardgate.saving import LoadError, load, save
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
from hardgate.synchronise import synchronise_
from hardgate.units import (
    GRMCK,
    UNITS,
    BinaryConcrete,
    GappedST,
    HardConcrete,
    NoisyRectifier,
    Rectifier,
    ReinMax,
    Sigmoid,
    SlopeAnnealed,
    STGumbel,
    StochasticBinary,
    StochasticTimesSmooth,
    StraightThrough,
    Unit,
)

__version__ = "0.1.0"

__all__ = [
    "ESTIMATORS",
    "GRMCK",
    "UNITS",
    "AdaptiveL1",
    "BinaryConcrete",
    "ConditionalLinear",
    "ConditionalMLP",
    "Controller",
    "ExecutionPath",
    "FiringRate",
    "FusedSGD",
    "GappedST",
    "GateStatistics",
    "Gater",
    "HardConcrete",
    "KLTarget",
    "LoadError",
    "NoisyRectifier",
    "Rectifier",
    "ReinMax",
    "STGumbel",
    "Sigmoid",
    "SlopeAnnealed",
    "StochasticBinary",
    "StochasticTimesSmooth",
    "StraightThrough",
    "Telemetry",
    "Unit",
    "baselines",
    "calibrate_thresholds",
    "clear_scores",
    "estimators",
    "exact_expectation",
    "exact_gradient",
    "expectation",
    "functional",
    "gate_statistics",
    "load",
    "max_norm_",
    "noise",
    "save",
    "score_loss",
    "sparsity_loss",
    "start_gates_",
    "synchronise_",
]

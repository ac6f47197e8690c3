"""Sparsity: how many gates are on, and how to hold them there."""

from hardgate.sparsity._controller import Controller
from hardgate.sparsity.adaptive_l1 import AdaptiveL1
from hardgate.sparsity.collect import Steered, sparsity_loss
from hardgate.sparsity.firing_rate import FiringRate
from hardgate.sparsity.kl_target import KLTarget
from hardgate.sparsity.max_norm import max_norm_
from hardgate.sparsity.statistics import GateStatistics, gate_statistics
from hardgate.sparsity.thresholds import calibrate_thresholds

__all__ = [
    "AdaptiveL1",
    "Controller",
    "FiringRate",
    "GateStatistics",
    "KLTarget",
    "Steered",
    "calibrate_thresholds",
    "gate_statistics",
    "max_norm_",
    "sparsity_loss",
]

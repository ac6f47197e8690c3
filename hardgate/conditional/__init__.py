"""Conditional computation (§5, Fig. 1): which experts to compute, and only those."""

from hardgate.conditional.fused_sgd import FusedSGD
from hardgate.conditional.gater import Gater, start_gates_
from hardgate.conditional.linear import ConditionalLinear
from hardgate.conditional.mlp import ConditionalMLP
from hardgate.conditional.telemetry import Telemetry

__all__ = ["ConditionalLinear", "ConditionalMLP", "FusedSGD", "Gater", "Telemetry", "start_gates_"]

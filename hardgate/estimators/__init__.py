"""Gradients of E f(b), b binary, that evaluate f again: one estimator per file.

For an estimator of your own: `Estimator` (or `ManySamples`), `Estimate`, `losses_of` and, where f
is differentiated, `value_and_gradient`.
"""

from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Estimate, Estimator, ManySamples, value_and_gradient
from hardgate.estimators.arm import ARM
from hardgate.estimators.arms import ARMS
from hardgate.estimators.bitflip import BitFlip
from hardgate.estimators.disarm import DisARM
from hardgate.estimators.double_cv import DoubleCV
from hardgate.estimators.exact import Exact
from hardgate.estimators.expectation import expectation
from hardgate.estimators.finite_differences import FiniteDifferences
from hardgate.estimators.linear_cv import LinearCV
from hardgate.estimators.local_expectation import LocalExpectation
from hardgate.estimators.muprop import MuProp
from hardgate.estimators.node_perturbation import NodePerturbation
from hardgate.estimators.nvil import NVIL
from hardgate.estimators.quadratic_cv import QuadraticCV
from hardgate.estimators.rebar import REBAR
from hardgate.estimators.reinforce import REINFORCE
from hardgate.estimators.relax import RELAX
from hardgate.estimators.rloo import RLOO
from hardgate.estimators.rodeo import RODEO
from hardgate.estimators.spsa import SPSA
from hardgate.estimators.stochastic_ad import StochasticAD
from hardgate.estimators.ugc import UGC

# By name; each can be constructed without arguments.
ESTIMATORS: dict[str, type[Estimator]] = {
    cls.__name__: cls
    for cls in (
        Exact,
        REINFORCE,
        NVIL,
        RLOO,
        ARM,
        DisARM,
        ARMS,
        BitFlip,
        UGC,
        LinearCV,
        MuProp,
        DoubleCV,
        RODEO,
        QuadraticCV,
        REBAR,
        RELAX,
        LocalExpectation,
        StochasticAD,
        FiniteDifferences,
        SPSA,
        NodePerturbation,
    )
}

__all__ = [
    "ARM",
    "ARMS",
    "ESTIMATORS",
    "NVIL",
    "REBAR",
    "REINFORCE",
    "RELAX",
    "RLOO",
    "RODEO",
    "SPSA",
    "UGC",
    "BitFlip",
    "DisARM",
    "DoubleCV",
    "Estimate",
    "Estimator",
    "Exact",
    "FiniteDifferences",
    "LinearCV",
    "LocalExpectation",
    "ManySamples",
    "MuProp",
    "NodePerturbation",
    "QuadraticCV",
    "StochasticAD",
    "expectation",
    "losses_of",
    "value_and_gradient",
]

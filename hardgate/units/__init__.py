"""Stochastic neurons, one per file."""

from collections.abc import Callable

from hardgate.units._unit import Unit
from hardgate.units.binary_concrete import BinaryConcrete
from hardgate.units.gapped_st import GappedST
from hardgate.units.gr_mck import GRMCK
from hardgate.units.hard_concrete import HardConcrete
from hardgate.units.noisy_rectifier import NoisyRectifier
from hardgate.units.rectifier import Rectifier
from hardgate.units.reinmax import ReinMax
from hardgate.units.sigmoid import Sigmoid
from hardgate.units.slope_annealed import SlopeAnnealed
from hardgate.units.st_gumbel import STGumbel
from hardgate.units.stochastic_binary import StochasticBinary
from hardgate.units.stochastic_times_smooth import StochasticTimesSmooth
from hardgate.units.straight_through import StraightThrough

__all__ = [
    "GRMCK",
    "UNITS",
    "BinaryConcrete",
    "GappedST",
    "HardConcrete",
    "NoisyRectifier",
    "Rectifier",
    "ReinMax",
    "STGumbel",
    "Sigmoid",
    "SlopeAnnealed",
    "StochasticBinary",
    "StochasticTimesSmooth",
    "StraightThrough",
    "Unit",
]

# Every unit in each form whose facts differ, by the code that makes it: the property table, the
# claims tests and `hardgate compare` go through this.
UNITS: dict[str, Callable[[], Unit]] = {
    'NoisyRectifier("gaussian")': lambda: NoisyRectifier("gaussian"),
    'NoisyRectifier("logistic")': lambda: NoisyRectifier("logistic"),
    "StochasticTimesSmooth()": lambda: StochasticTimesSmooth(),
    "StochasticTimesSmooth(corrected=True)": lambda: StochasticTimesSmooth(corrected=True),
    "StochasticBinary(None)": lambda: StochasticBinary(None),
    'StochasticBinary("mean")': lambda: StochasticBinary("mean"),
    'StochasticBinary("optimal")': lambda: StochasticBinary("optimal"),
    "StraightThrough()": lambda: StraightThrough(),
    "StraightThrough(sigmoid_derivative=True)": lambda: StraightThrough(sigmoid_derivative=True),
    "StraightThrough(sample=False)": lambda: StraightThrough(sample=False),
    'StraightThrough(off_units="sampled")': lambda: StraightThrough(off_units="sampled"),
    'StraightThrough(off_units="ignore")': lambda: StraightThrough(off_units="ignore"),
    "Rectifier()": lambda: Rectifier(),
    "Sigmoid()": lambda: Sigmoid(),
    'Sigmoid("gaussian")': lambda: Sigmoid("gaussian"),
    "SlopeAnnealed()": lambda: SlopeAnnealed(),
    "STGumbel()": lambda: STGumbel(),
    "GRMCK()": lambda: GRMCK(),
    "GappedST()": lambda: GappedST(),
    "ReinMax()": lambda: ReinMax(),
    "ReinMax(control_variate=True)": lambda: ReinMax(control_variate=True),
    "BinaryConcrete()": lambda: BinaryConcrete(),
    "HardConcrete()": lambda: HardConcrete(),
}

"""Every unit, and some with other noise, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from hardgate import UNITS, Sigmoid, StochasticTimesSmooth, Unit
from hardgate.noise import Beta, Binomial

CASES: dict[str, Callable[[], Unit]] = {
    **UNITS,
    "StochasticTimesSmooth(noise=Beta(40.1))": lambda: StochasticTimesSmooth(noise=Beta(40.1)),
    'StochasticTimesSmooth(noise=Beta(40.1), placement="stochastic")': lambda: (
        StochasticTimesSmooth(noise=Beta(40.1), placement="stochastic")
    ),
    "Sigmoid(Binomial(0.7))": lambda: Sigmoid(Binomial(0.7)),
}
# Units newer than the paper share their arithmetic (`hardgate/_detach.py`): compiled in training as
# they are in the quick run, in every other way by `make test-all`.
NEWER = ("BinaryConcrete", "GRMCK", "GappedST", "HardConcrete", "ReinMax", "STGumbel", "SlopeAnn")
slow = pytest.mark.slow
each_unit = pytest.mark.parametrize("name", CASES)
each_unit_newer_slow = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[slow] if n.startswith(NEWER) else []) for n in CASES]
)


def samples(unit: Unit) -> bool:
    return len(unit.sample_noise(torch.zeros(1))) > 0  # () where there is no noise

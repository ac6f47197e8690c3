"""Stochastic neurons and the conditional layer as pure functions of tensors and explicit noise."""

from hardgate.functional.conditional import conditional_linear, conditional_mlp
from hardgate.functional.neurons import (
    noisy_rectifier,
    rectifier,
    sigmoid,
    sqrt_sigmoid,
    stochastic_binary,
    stochastic_times_smooth,
    straight_through,
    threshold,
)
from hardgate.functional.relaxations import (
    binary_concrete,
    gapped_straight_through,
    gr_mck,
    hard_concrete,
    reinmax,
    slope_annealed,
    st_gumbel,
)
from hardgate.functional.surrogates import bernoulli, surrogate

__all__ = [
    "bernoulli",
    "binary_concrete",
    "conditional_linear",
    "conditional_mlp",
    "gapped_straight_through",
    "gr_mck",
    "hard_concrete",
    "noisy_rectifier",
    "rectifier",
    "reinmax",
    "sigmoid",
    "slope_annealed",
    "sqrt_sigmoid",
    "st_gumbel",
    "stochastic_binary",
    "stochastic_times_smooth",
    "straight_through",
    "surrogate",
    "threshold",
]

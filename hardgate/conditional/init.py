"""Where a gater starts: the paper's initial weights, and biases at the target rate."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.precision import widen
from hardgate.units._unit import Unit

_STEPS = 30  # of bisection
_REACH = 2.0**20  # no bias beyond this is tried


@torch.no_grad()
def sparse_(weight: Tensor, nonzero: int = 15) -> Tensor:
    """In place: `nonzero` incoming N(0, 1) weights for each unit, the others zero.

    Args:
        weight: `[units, inputs]`; all inputs are used where there are no more than `nonzero`.
        nonzero: how many; 15 in the authors' runs.

    Returns:
        `weight`.

    Example:
        >>> (sparse_(torch.empty(3, 100)) != 0).sum(1).tolist()
        [15, 15, 15]
    """
    score = torch.rand(weight.shape, device=weight.device)
    chosen = score.topk(min(nonzero, weight.shape[1]), dim=1).indices
    drawn = torch.randn(chosen.shape, dtype=weight.dtype, device=weight.device)
    return weight.zero_().scatter_(1, chosen, drawn)


@torch.no_grad()
def starting_bias(unit: Unit, a: Tensor, rate: float) -> Tensor:
    """The bias of each unit at which P(h ≠ 0 | a + bias) averages to `rate`, by bisection.

    Where that probability is a step (`Rectifier`, the hard threshold), it is the bias that leaves
    a fraction `rate` of the examples on. Where it does not depend on `a` (`Sigmoid`, never off),
    no bias does it, and the result is zero.

    Args:
        unit: the unit that is to be started; its probability must not fall with `a`.
        a: pre-activations without the bias, `[examples, D]`.
        rate: the target, in (0, 1).

    Returns:
        the biases, `[D]`.

    Example:
        >>> from hardgate import StraightThrough
        >>> round(starting_bias(StraightThrough(), torch.zeros(1, 1), 0.1).item(), 4)  # log(1/9)
        -2.1972
    """
    x = widen(a)

    def too_low(bias: Tensor) -> Tensor:
        return unit.active_probability(x + bias).mean(0) < rate

    high = torch.ones_like(x[0])
    while not (too_low(-high).all() and not too_low(high).any()):
        high = 2 * high
        if high.max() > _REACH:
            return torch.zeros_like(a[0])
    low = -high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        below = too_low(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return high.to(a.dtype)

"""The warning that evaluation mode closes gates which are on when sampled: where it begins."""

from __future__ import annotations

import warnings

import pytest
import torch

from hardgate import Gater, StraightThrough


def gater(open_share: float) -> Gater:
    """Gates that are on 10 % of the time when sampled; so many of them have a > 0."""
    made, gates = Gater(4, 1000, 2, StraightThrough()), 1000
    count = round(open_share * gates)
    closed = (0.1 * gates - count * 0.5) / (gates - count)  # the probability of the others
    with torch.no_grad():
        made.output.weight.zero_()
        made.output.bias.fill_(torch.logit(torch.tensor(closed)))
        made.output.bias[:count] = 1e-3
    return made.eval()


def test_below_half_of_the_sampled_density() -> None:
    with pytest.warns(UserWarning, match=r"4 % of the gates are on .* 10 % of the time"):
        gater(0.04)(torch.randn(5, 4))


def test_above_half_of_it_nothing_is_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gater(0.06)(torch.randn(5, 4))

"""Two stochastic layers, each with a unit or an estimator of its own, against enumeration.

The network: h1 ~ unit1(a1), a2 = link(h1), h2 ~ unit2(a2), and a cost of each layer, L1(h1) and
L2(h2, h1). What is exact, and what is not:

- a score term is unbiased for the logits it multiplies, given the cost of everything downstream;
- it also carries the gradient of log q(h2 | h1) back to h1, so that a straight-through layer below
  it sees an unbiased ∂E[L | h1]/∂h1: exact as a whole where E[L | h1] is linear in each h1_i;
- what a layer is *not* charged with has to lie upstream, or its gradient is wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hardgate
from hardgate import StochasticBinary, StraightThrough, Unit, expectation, score_loss
from hardgate.estimators import RLOO, DisARM
from tests.support.enumeration import outcomes
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

N, D = 100_000, 3
W = torch.tensor([[1.5, -1.0, 0.7], [-0.8, 1.2, 1.0], [0.6, 0.9, -1.4]], dtype=torch.float64)
C = torch.tensor([1.0, -2.0, 1.5], dtype=torch.float64)
A1 = torch.tensor([0.4, -0.8, 0.2], dtype=torch.float64)

Link = Callable[[Tensor, Tensor], Tensor]  # h1, the layer's bias → a2


def mixing(h1: Tensor, bias: Tensor) -> Tensor:
    """a2 = h1 Wᵀ + bias, an ordinary layer: E[L | h1] is not linear in h1."""
    return h1 @ W.T + bias


def linear_in_probability(h1: Tensor, bias: Tensor) -> Tensor:
    """P(h2_i = 1 | h1) = 0.3 + 0.4 h1_i at bias 0: E[L | h1] is linear in each h1_i."""
    return torch.logit(0.3 + 0.4 * h1) + bias


def steep(h1: Tensor, bias: Tensor) -> Tensor:
    """a2 = ±6, flat at both of its ends: nothing that a derivative at h1 = 0 or 1 could see."""
    return 6 * (2 * h1 - 1) + bias


def cost1(h1: Tensor) -> Tensor:
    """Of the first layer alone, linear in each unit."""
    return 2 * (h1 * C).sum(-1) + 3 * h1[..., 0] * h1[..., 1] + 4


def cost2(h1: Tensor, h2: Tensor) -> Tensor:
    """Of the second layer: curved in h2, linear in each h1_i."""
    curved = nn.functional.softplus(h2 @ W + 0.5).sum(-1)
    return curved * (1 + 0.5 * h1[..., 2]) + 2 * (h2 * C).sum(-1)


def multilinear2(h1: Tensor, h2: Tensor) -> Tensor:
    """Of the second layer, linear in each of all units."""
    return (h2 * C).sum(-1) * (1 + h1[..., 2]) - 2 * h2[..., 0] * h2[..., 1]


Cost2 = Callable[[Tensor, Tensor], Tensor]


def truth(link: Link, second: Cost2 = cost2) -> tuple[Tensor, Tensor]:
    """∂E[L1 + L2]/∂a1 and ∂/∂bias over the 2^6 states of both layers."""
    a1, bias = A1.clone().requires_grad_(), torch.zeros(D, dtype=torch.float64, requires_grad=True)
    h = outcomes(2 * D)
    h1, h2 = h[:, :D], h[:, D:]

    def q(b: Tensor, a: Tensor) -> Tensor:
        return torch.where(b > 0, a.sigmoid(), (-a).sigmoid()).prod(-1)

    total = (q(h1, a1) * q(h2, link(h1, bias)) * (cost1(h1) + second(h1, h2))).sum()
    g1, g2 = torch.autograd.grad(total, (a1, bias))
    return g1, g2


class Net(nn.Module):
    """Both layers; n copies of a1 and of the bias, so that every draw has its own gradient."""

    def __init__(self, unit1: Unit, unit2: Unit, link: Link, second: Cost2 = cost2) -> None:
        super().__init__()
        self.unit1, self.unit2, self.link, self.second = unit1, unit2, link, second
        self.a1 = A1.expand(N, D).clone().requires_grad_()
        self.bias = torch.zeros(N, D, dtype=torch.float64, requires_grad=True)

    def forward(self) -> tuple[Tensor, Tensor]:
        """The costs L1 and L2 of every draw."""
        torch.manual_seed(0)
        h1 = self.unit1(self.a1)
        h2 = self.unit2(self.link(h1, self.bias))
        return cost1(h1), self.second(h1, h2)

    def gradients(self, total: Tensor) -> tuple[Tensor, Tensor]:
        """Of a mean over draws, as N single ones."""
        g1, g2 = torch.autograd.grad(total, (self.a1, self.bias))
        return N * g1, N * g2


def gradients(unit1: Unit, unit2: Unit, link: Link, second: Cost2 = cost2) -> tuple[Tensor, Tensor]:
    """Draws `[N, D]` of both gradients, the whole cost charged to every score term."""
    net = Net(unit1, unit2, link, second)
    L1, L2 = net()
    total = (L1 + L2).mean()
    if unit1.needs_loss or unit2.needs_loss:
        total = total + score_loss(net, L1 + L2)
    return net.gradients(total)


def score() -> StochasticBinary:
    return StochasticBinary(None)


def straight() -> StraightThrough:
    return StraightThrough(sigmoid_derivative=True)


# --- which gradients are exact --------------------------------------------------------------


@pytest.mark.parametrize("link", [mixing, linear_in_probability])
def test_two_score_layers_are_unbiased(link: Link) -> None:
    """Whatever the link and the costs: Theorem 1, for the vector of all decisions."""
    for draws, exact in zip(gradients(score(), score(), link), truth(link), strict=True):
        assert largest_z(draws, exact) < Z_LEVEL


def test_two_score_layers_with_their_baselines() -> None:
    """Each unit's own minimum-variance baseline, learnt from an earlier pass over the same net."""
    units = StochasticBinary("optimal"), StochasticBinary("optimal")
    gradients(*units, mixing)  # L̄ = 0 in this first one
    before = [draws.var(0) for draws in gradients(score(), score(), mixing)]
    for draws, exact, plain in zip(gradients(*units, mixing), truth(mixing), before, strict=True):
        assert largest_z(draws, exact) < Z_LEVEL
        assert (draws.var(0) < plain).all()


def test_straight_through_below_a_score_layer() -> None:
    """The score term's own gradient at h1 makes ∂E[L | h1]/∂h1; linear in h1_i, so exact."""
    for draws, exact in zip(
        gradients(straight(), score(), linear_in_probability),
        truth(linear_in_probability),
        strict=True,
    ):
        assert largest_z(draws, exact) < Z_LEVEL


def test_straight_through_below_a_score_layer_is_biased_for_a_curved_link() -> None:
    """Negative control: σ(a2) is far from linear in h1. The layer above stays unbiased."""
    (below, above), (exact1, exact2) = gradients(straight(), score(), steep), truth(steep)
    assert largest_z(below, exact1) > Z_WRONG
    assert largest_z(above, exact2) < Z_LEVEL


def test_a_score_layer_below_straight_through() -> None:
    """Both exact where L2 is linear in each h2_i; the lower one whatever the upper one does."""
    for draws, exact in zip(
        gradients(score(), straight(), mixing, multilinear2),
        truth(mixing, multilinear2),
        strict=True,
    ):
        assert largest_z(draws, exact) < Z_LEVEL
    (below, above), (exact1, exact2) = gradients(score(), straight(), mixing), truth(mixing)
    assert largest_z(below, exact1) < Z_LEVEL
    assert largest_z(above, exact2) > Z_WRONG  # negative control: L2 is curved in h2


# --- each layer charged with its own downstream cost ----------------------------------------


def test_each_layer_is_charged_with_what_is_downstream_of_it() -> None:
    """L1 + L2 to the first, L2 to the second: unbiased, and less noise than the sum for both."""
    net = Net(score(), score(), mixing)
    L1, L2 = net()
    terms = score_loss(net.unit1, L1 + L2) + score_loss(net.unit2, L2)
    below, above = net.gradients((L1 + L2).mean() + terms)
    exact1, exact2 = truth(mixing)
    assert largest_z(below, exact1) < Z_LEVEL
    assert largest_z(above, exact2) < Z_LEVEL
    charged_with_all = gradients(score(), score(), mixing)[1]
    assert above.var(0).sum() < 0.7 * charged_with_all.var(0).sum()


def test_one_unit_for_both_layers_takes_a_list() -> None:
    """The k-th cost to go is charged to the k-th call."""
    unit = score()
    net = Net(unit, unit, mixing)
    L1, L2 = net()
    draws = net.gradients((L1 + L2).mean() + score_loss(net, [L1 + L2, L2]))
    for got, exact in zip(draws, truth(mixing), strict=True):
        assert largest_z(got, exact) < Z_LEVEL


def test_a_cost_that_is_upstream_is_the_wrong_one() -> None:
    """Negative controls: without L2 the first layer is off; L1 teaches the second nothing."""
    net = Net(score(), score(), mixing)
    L1, L2 = net()
    terms = score_loss(net.unit1, L1) + score_loss(net.unit2, L1)
    below, above = net.gradients((L1 + L2).mean() + terms)
    exact1, exact2 = truth(mixing)
    assert largest_z(below, exact1) > Z_WRONG
    assert largest_z(above, exact2) > Z_WRONG
    assert largest_z(above, 0.0) < Z_LEVEL


@pytest.mark.parametrize("charged", ["unit1", "unit2"])
def test_a_layer_without_a_cost_is_refused(charged: str) -> None:
    net = Net(score(), score(), mixing)
    L1, L2 = net()
    term = score_loss(net.get_submodule(charged), L1 + L2)
    with pytest.raises(RuntimeError, match="without the term that score_loss gives"):
        ((L1 + L2).mean() + term).backward()


# --- estimators that evaluate the loss again ------------------------------------------------


@pytest.mark.parametrize("unit", [score(), straight()], ids=["score", "straight-through"])
def test_an_estimator_above_a_unit(unit: Unit) -> None:
    """`expectation` gives E[L2 | h1], an estimate: a cost for what is below, with its gradient."""
    net = Net(unit, score(), linear_in_probability)
    torch.manual_seed(0)
    h1 = unit(net.a1)
    a2 = net.link(h1, net.bias)
    L2 = expectation(lambda b: cost2(h1, b), a2, DisARM())
    total = (cost1(h1) + L2).mean()
    if unit.needs_loss:
        total = total + score_loss(unit, cost1(h1) + L2)
    for draws, exact in zip(net.gradients(total), truth(net.link), strict=True):
        assert largest_z(draws, exact) < Z_LEVEL


def test_estimators_nest() -> None:
    """f of the outer one draws the inner layer anew for each of its samples."""
    net = Net(score(), score(), mixing)
    torch.manual_seed(0)

    def rest(h1: Tensor) -> Tensor:
        a2 = net.link(h1, net.bias)
        return cost1(h1) + expectation(lambda b: cost2(h1, b), a2, DisARM())

    total = expectation(rest, net.a1, RLOO(2)).mean()
    for draws, exact in zip(net.gradients(total), truth(mixing), strict=True):
        assert largest_z(draws, exact) < Z_LEVEL


def test_nothing_is_left_to_charge() -> None:
    net = Net(score(), score(), mixing)
    L1, L2 = net()
    score_loss(net, L1 + L2)
    with pytest.raises(RuntimeError, match="no forward pass to charge"):
        hardgate.score_loss(net, L1 + L2)

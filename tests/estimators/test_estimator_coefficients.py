"""What estimators learn, by value: the coefficient or baseline of least variance, of what is left.

A control variate that learns the wrong thing stays unbiased; only its variance says so. So what is
learnt from one batch is compared with its formula.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hardgate.estimators import REBAR, RELAX, Estimator, MuProp
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.estimator_cases import seeded

F, A = PROBLEMS["smooth"].f, PROBLEMS["smooth"].logits
ROWS = 400


def gradient(estimator: Estimator, noise: Tensor | tuple[Tensor, ...]) -> Tensor:
    return estimator.estimate(F, A.expand(ROWS, -1), noise).gradient.detach()


@pytest.mark.parametrize("make", [REBAR, lambda: RELAX(rate=0.05)], ids=["REBAR", "RELAX"])
def test_eta_is_the_coefficient_of_least_variance(make: type[REBAR] | type[RELAX]) -> None:
    """η = -Σ r·v / Σ v·v, of the rest r, the network's part included: g = r + η v."""
    estimator = make().double()
    generator = seeded(0)
    for _ in range(30):  # so that RELAX's network has a part
        gradient(estimator, estimator.sample_noise(A.expand(ROWS, -1), generator))
    noise = estimator.sample_noise(A.expand(ROWS, -1), generator)
    estimator.adapt = False

    def at(eta: float) -> Tensor:
        """g with another η; g is linear in it, which gives r and v apart."""
        estimator.eta.numerator.fill_(eta)
        estimator.eta.denominator.fill_(1.0)
        return gradient(estimator, noise)

    rest = at(0.0)
    v = at(1.0) - rest
    estimator.adapt = True
    estimator.eta.decay = 0.0  # of this batch alone
    at(1.0)
    assert estimator.eta.value().item() == pytest.approx(
        -(rest * v).sum().item() / v.square().sum().item(), rel=1e-6
    )


def test_the_network_is_a_part_of_what_relax_has_left() -> None:
    """Else the test above could not tell its η from REBAR's."""
    estimator, generator = RELAX(rate=0.05).double(), seeded(0)
    for _ in range(30):
        gradient(estimator, estimator.sample_noise(A.expand(ROWS, -1), generator))
    noise = estimator.sample_noise(A.expand(ROWS, -1), generator)
    plain = REBAR().double()
    plain.eta.load_state_dict(estimator.eta.state_dict())
    estimator.adapt = plain.adapt = False
    difference = gradient(estimator, noise) - gradient(plain, noise)
    assert difference.norm() > 0.1 * gradient(plain, noise).norm()


@pytest.mark.parametrize("kind", ["mean", "optimal"])
def test_the_baseline_of_muprop_is_that_of_what_the_expansion_leaves(kind: str) -> None:
    """L̄ = Σ w·rest / Σ w, rest = f(b) - f(p) - f′(p)(b - p), w = 1 or (b - p)²; not of f(b)."""
    estimator = MuProp(kind, decay=0.0).double()  # type: ignore[arg-type]
    a = A.expand(ROWS, -1)
    u = torch.rand(ROWS, len(A), generator=seeded(0), dtype=torch.float64)
    estimator.estimate(F, a, u)
    p = torch.sigmoid(A).requires_grad_()
    mean_field = F(p)
    (slope,) = torch.autograd.grad(mean_field, p)
    b = (u < p).double()
    score = b - p.detach()
    rest = F(b) - mean_field.detach() - (slope * score).sum(-1)
    weight = score.square() if kind == "optimal" else torch.ones(ROWS, 1, dtype=torch.float64)
    expected = (weight * rest.unsqueeze(-1)).sum(0) / weight.sum(0)
    assert estimator.baseline is not None
    torch.testing.assert_close(estimator.baseline.value(), expected)
    assert (expected - F(b).mean()).abs().min() > 0.1  # what the baseline of f(b) would be

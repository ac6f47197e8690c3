"""What the estimators' learnt parts are made of: Adam, a small network, coefficients."""

from __future__ import annotations

import pytest
import torch

from hardgate.estimators._adam import Adam
from hardgate.estimators._network import Network
from hardgate.learning.coefficients import Coefficients
from tests.support.estimator_cases import seeded


def test_adam_is_torchs() -> None:
    x = torch.randn(5, generator=seeded(0))
    y = x.clone().requires_grad_()
    ours, theirs = Adam(0.1), torch.optim.Adam([y], 0.1)
    for step in range(20):
        gradient = torch.randn(5, generator=seeded(step))
        ours.step_(x, gradient)
        y.grad = gradient
        theirs.step()
    torch.testing.assert_close(x, y.detach())


@pytest.mark.parametrize("batch", [(), (5,), (2, 3), (0,)])
def test_the_networks_own_derivatives_are_autograds(batch: tuple[int, ...]) -> None:
    network = Network(4, rate=0.1).double()
    x = torch.randn(*batch, 3, dtype=torch.float64, generator=seeded(0))
    network.psi(x, keep=True)
    network.weights += torch.randn(len(network.weights), generator=seeded(1))  # w starts at zero
    by = torch.randn(batch, dtype=torch.float64, generator=seeded(2))
    psi = network.psi(x, keep=True).clone().requires_grad_()
    (expected,) = torch.autograd.grad((by * network(x, psi)).sum(), psi)
    torch.testing.assert_close(network.pullback(x, psi.detach(), by), expected)


def test_coefficients_are_least_squares() -> None:
    """Correlated control variates, one of them zero: that one keeps its start."""
    v = torch.randn(3, 500, 4, dtype=torch.float64, generator=seeded(0))
    v[1] += v[0]
    v[2] = 0
    g = torch.randn(500, 4, dtype=torch.float64, generator=seeded(1)) - 2 * v[0] + v[1]
    coefficients = Coefficients([1.0, 1.0, 5.0]).double()
    assert coefficients.value().tolist() == [1.0, 1.0, 5.0]
    coefficients.learn_(torch.cat([g.unsqueeze(0), v]))
    best = torch.linalg.lstsq(v[:2].flatten(1).T, -g.flatten()).solution
    torch.testing.assert_close(coefficients.value()[:2], best, rtol=1e-3, atol=1e-3)
    assert coefficients.value()[2] == 5.0


def test_control_variates_that_say_nothing_keep_their_start() -> None:
    """One that is always zero; of two that are the same, only the sum is known."""
    alpha, v = Coefficients((0.5, -1.0, 2.0)), torch.randn(100, generator=seeded(0))
    alpha.learn_(torch.stack([-3 * v, v, torch.zeros(100), v]))
    found = alpha.value()
    assert found[1] == -1.0
    torch.testing.assert_close(found[0] + found[2], torch.tensor(3.0), rtol=1e-3, atol=0)
    assert found.isfinite().all()

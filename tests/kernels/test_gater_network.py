"""The gater as one node of the graph: its gradients and its steps are those of the formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate.kernels import op, sparse
from hardgate.kernels.op import gate_linear, gater_network
from hardgate.kernels.update import Step, Update

B, IN, BOTTLENECK, GATES, LR = 20, 6, 5, 40, 0.1


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "SMALL", 0)  # kernels at the sizes of a test


def problem(density: float) -> tuple[list[Tensor], Tensor]:
    """x, U, c, V, d as leaves in fp64, and ∂L/∂a, of which this share is not zero."""
    r = torch.Generator().manual_seed(0)
    shapes = ((B, IN), (BOTTLENECK, IN), (BOTTLENECK,), (GATES, BOTTLENECK), (GATES,))
    leaves = [torch.randn(s, generator=r, dtype=torch.float64).requires_grad_() for s in shapes]
    da = torch.randn(B, GATES, generator=r, dtype=torch.float64)
    return leaves, da * (torch.rand(B, GATES, generator=r) < density)


def expected(leaves: list[Tensor], da: Tensor) -> tuple[Tensor, ...]:
    """By the chain rule, written out: of x, U, c, V, d."""
    x, U, c, V, _ = (t.detach() for t in leaves)
    z = torch.tanh(x @ U.T + c)
    ds = da @ V / torch.cosh(x @ U.T + c).square()
    return ds @ U, ds.T @ x, ds.sum(0), da.T @ z, da.sum(0)


@pytest.mark.parametrize("density", [0.1, 0.9])  # by kernels, densely
def test_gradients_are_those_of_the_formula(density: float) -> None:
    leaves, da = problem(density)
    x, U, c, V, d = leaves
    found = torch.autograd.grad(gater_network(x, U, c, V, d), leaves, da)
    for ours, theirs in zip(found, expected(leaves, da), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("density", [0.1, 0.9])
@pytest.mark.parametrize("most", [0.0, 1.0])
def test_a_step_goes_down_the_gradient_and_limits_each_units_inputs(
    density: float, most: float
) -> None:
    leaves, da = problem(density)
    for k in (1, 3):  # within the limit at the start, as kernels pass by gates without a gradient
        leaves[k].data.renorm_(2, 0, 0.999)
    gradients = expected(leaves, da)
    wanted = [t.detach() - LR * g for t, g in zip(leaves, gradients, strict=True)]
    if most:
        for k in (1, 3):  # U and V: a row is what goes into one unit
            norms = wanted[k].norm(dim=1, keepdim=True)
            assert (norms > most).any()
            wanted[k] *= (most / norms).clamp(max=1)
    x, U, c, V, d = leaves
    gater_network(x, U, c, V, d, Update(lambda: Step(LR, most))).backward(da)
    torch.testing.assert_close(leaves[0].grad, gradients[0], rtol=1e-10, atol=1e-10)
    for ours, theirs in zip(leaves[1:], wanted[1:], strict=True):
        assert ours.grad is None
        torch.testing.assert_close(ours.detach(), theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "percent", "skips"),
    [(8, 100, True), (9, 60, True), (9, 61, False), (128, 35, True), (128, 36, False)],
)
def test_it_skips_up_to_the_density_at_which_dense_products_win(
    batch: int, percent: int, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    kernel = sparse.gate_gradients

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return kernel(*arguments)

    monkeypatch.setattr(sparse, "gate_gradients", counted)
    z, w, da = (
        torch.randn(batch, 3),
        torch.randn(100, 3, requires_grad=True),
        torch.ones(batch, 100),
    )
    da[:, percent:] = 0
    gate_linear(z, w, torch.zeros(100)).backward(da)
    assert bool(calls) == skips
    assert w.grad is not None
    torch.testing.assert_close(w.grad, da.T @ z, rtol=1e-5, atol=1e-5)
    assert torch.equal(gate_linear(z, w, torch.zeros(100)), linear(z, w))

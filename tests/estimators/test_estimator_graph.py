"""An expectation in torch's graph: changed in place, differentiated again, traced, compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hardgate import ESTIMATORS, Gater, NoisyRectifier, StraightThrough, expectation
from hardgate.estimators import REINFORCE, RLOO
from hardgate.noise import FEW

MANY = FEW + 1  # numbers from which on they are drawn by the kernels
# Those that neither differentiate f themselves, as Exact does with its sum, nor learn.
DIFFERENTIATE = {"Exact"} | {n for n, cls in ESTIMATORS.items() if cls.needs_gradient_of_f}
PLAIN = [n for n, cls in ESTIMATORS.items() if n not in DIFFERENTIATE and not cls().state]


def weighted(b: Tensor) -> Tensor:
    return (b * torch.arange(1.0, 4.0)).sum(-1)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_value_can_be_changed_in_place(name: str) -> None:
    a = torch.zeros(5, 3, requires_grad=True)
    value = expectation(weighted, a, ESTIMATORS[name]())
    value += 1.0  # what a user adds: a KL, a penalty
    value.sum().backward()
    assert a.grad is not None
    assert a.grad.isfinite().all()


@pytest.mark.parametrize("wanted", [True, False])
def test_a_gradient_penalty_inside_f(wanted: bool) -> None:
    """First derivatives only at the logits; f's parameters may have all that f has."""
    w = torch.ones(3, requires_grad=True)
    a = torch.full((4, 3), 0.5, requires_grad=wanted)
    value = expectation(lambda b: ((b + 1) * w).sum(-1).square(), a, RLOO())
    (first,) = torch.autograd.grad(value.sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), w)
    assert second.abs().min() > 0


def test_the_gradient_is_narrowed_last() -> None:
    """g itself is beyond fp16, its mean over the batch is not."""
    a = torch.zeros(1000, 2, dtype=torch.float16, requires_grad=True)
    expectation(lambda b: 3e5 * b[..., 0], a, REINFORCE()).mean().backward()
    assert a.grad is not None
    assert a.grad.dtype is torch.float16
    assert a.grad.isfinite().all()
    assert a.grad.abs().max() == pytest.approx(150.0)


# Tracing warns that the trace is of one run.
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit")
@pytest.mark.parametrize("name", ["REINFORCE", "RLOO", "DisARM"])
def test_a_trace_draws_anew(name: str) -> None:
    """Not memory that nobody fills: the kernels' numbers are none of torch's operations."""

    def on(a: Tensor) -> Tensor:
        return expectation(lambda b: b.mean(-1), a, ESTIMATORS[name]())

    a = torch.full((2, MANY), -2.0)
    traced = torch.jit.trace(on, (a,), check_trace=False)
    first, second = traced(a), traced(a)
    assert not torch.equal(first, second)
    for density in (*first.tolist(), *second.tolist()):
        assert density == pytest.approx(torch.sigmoid(a[0, 0]).item(), abs=0.02)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit")
@pytest.mark.parametrize("unit", [StraightThrough(), NoisyRectifier()])
def test_a_traced_gater_draws_anew(unit: Any) -> None:
    gater, x = Gater(3, 400, 4, unit), torch.randn(MANY // 400 + 1, 3)
    traced = torch.jit.trace(gater, (x,), check_trace=False)
    first, second = traced(x) != 0, traced(x) != 0
    assert not torch.equal(first, second)
    for on in (first, second, gater(x) != 0):
        assert on.float().mean().item() == pytest.approx(0.1, abs=0.03)


def test_vmap_over_the_parameters_of_f() -> None:
    a, w = torch.zeros(2, MANY), torch.tensor([1.0, 2.0, 3.0])

    def value(scale: Tensor) -> Tensor:
        return expectation(lambda b: scale * b.mean(-1), a, RLOO())

    got = torch.vmap(value, randomness="different")(w)
    torch.testing.assert_close(got, (w / 2).unsqueeze(-1).expand(3, 2), atol=0.05, rtol=0)


@pytest.mark.parametrize("name", PLAIN)
def test_compiles_as_one_graph(name: str) -> None:
    torch._dynamo.reset()
    estimator = ESTIMATORS[name]()

    def loss(a: Tensor) -> Tensor:
        return expectation(weighted, a, estimator).sum()

    a = torch.full((6, 3), 0.3, requires_grad=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    torch.manual_seed(0)
    value = compiled(a)
    value.backward()
    torch.manual_seed(0)
    expected = loss(twin := a.detach().clone().requires_grad_())
    expected.backward()
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(a.grad, twin.grad)

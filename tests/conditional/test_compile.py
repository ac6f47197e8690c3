"""Conditional networks with their controllers and losses under torch.compile(fullgraph=True)."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import AdaptiveL1, ConditionalMLP, FiringRate, KLTarget, score_loss, sparsity_loss
from hardgate.sparsity._controller import Controller
from tests.support.steering import steers
from tests.support.transforms import TORCH_JIT

CONTROLLERS: dict[str, Callable[[], Controller] | None] = {
    "none": None,
    "KLTarget": lambda: KLTarget(0.1, 1e-2),
    "AdaptiveL1": lambda: AdaptiveL1(0.1),
    "FiringRate": lambda: FiringRate(0.1),
}
UNITS = list(hardgate.UNITS)
QUICK = {
    ('NoisyRectifier("gaussian")', "AdaptiveL1"),
    ("StraightThrough()", "KLTarget"),
    ('StochasticBinary("optimal")', "FiringRate"),
    ("StochasticTimesSmooth()", "none"),
}
CASES = [
    pytest.param(unit, name, marks=[] if (unit, name) in QUICK else [pytest.mark.slow])
    for unit in UNITS
    for name in CONTROLLERS
    if name == "none" or steers(name, unit)
]


def network(unit: str, controller: str) -> ConditionalMLP:
    torch.manual_seed(0)
    make = CONTROLLERS[controller]
    sparsity = None if make is None else make()
    return ConditionalMLP(20, 64, 5, bottleneck=8, unit=hardgate.UNITS[unit](), sparsity=sparsity)


def loss(model: ConditionalMLP, x: Tensor) -> Tensor:
    losses = model(x).square().mean(-1)
    total: Tensor = losses.mean() + score_loss(model, losses) + sparsity_loss(model)
    return total


def gradients(f: Callable[[Tensor], Tensor], model: ConditionalMLP, x: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    f(x).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("unit", "controller"), CASES)
def test_one_graph_in_training_and_evaluation(unit: str, controller: str) -> None:
    torch._dynamo.reset()
    model, x = network(unit, controller), torch.randn(6, 20)
    step = torch.compile(lambda x: loss(model, x), backend="aot_eager", fullgraph=True)
    found = gradients(step, model, x)
    assert len(found) == len(list(model.parameters()))
    assert all(g.isfinite().all() for g in found)
    assert any(g.count_nonzero() for g in found)
    model.eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize(
    "unit",
    [pytest.param(unit, marks=[] if unit in dict(QUICK) else [pytest.mark.slow]) for unit in UNITS],
)
def test_the_batch_size_may_change(unit: str) -> None:
    torch._dynamo.reset()
    model = network(unit, "none")
    step = torch.compile(lambda x: loss(model, x), backend="aot_eager", fullgraph=True)
    for size in (3, 5, 9):  # from the second on, torch compiles for any size
        found = gradients(step, model, torch.randn(size, 20))
        assert all(g.isfinite().all() for g in found)


@pytest.mark.parametrize("unit", ['NoisyRectifier("gaussian")', "StraightThrough()"])
def test_compiled_gradients_are_those_of_eager_mode(unit: str) -> None:
    """The same noise: few numbers, which are torch's own in both modes."""
    torch._dynamo.reset()
    model, x = network(unit, "KLTarget"), torch.randn(6, 20)
    step = torch.compile(lambda x: loss(model, x), backend="aot_eager", fullgraph=True)
    for got, expected in zip(
        gradients(step, model, x), gradients(lambda x: loss(model, x), model, x), strict=True
    ):
        torch.testing.assert_close(got, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings(TORCH_JIT)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("unit", [unit for unit, _ in sorted(QUICK)])
def test_inductor(unit: str) -> None:
    torch._dynamo.reset()
    model, x = network(unit, "none"), torch.randn(6, 20)
    step = torch.compile(lambda x: loss(model, x), fullgraph=True)
    found = gradients(step, model, x)
    assert all(g.isfinite().all() for g in found)
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x))

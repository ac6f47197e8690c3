"""Conditional networks inside torch.autocast: finite, close to full precision, the same gates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hardgate
from hardgate import ConditionalLinear, ConditionalMLP, FusedSGD, score_loss
from hardgate.kernels.dispatch import Backend

EVERY = pytest.mark.parametrize("backend", ["sparse", "dense", "auto"])
UNITS = ['NoisyRectifier("gaussian")', "StraightThrough()", 'StochasticBinary("optimal")']


def half() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def network(backend: Backend, unit: str = UNITS[0]) -> nn.Sequential:
    torch.manual_seed(0)
    make = hardgate.UNITS[unit]
    return nn.Sequential(
        nn.Linear(30, 100),  # whose output autocast makes bfloat16
        ConditionalLinear(100, 200, bottleneck=50, unit=make(), backend=backend, activation="relu"),
        ConditionalMLP(200, 400, 10, bottleneck=60, unit=make(), backend=backend),
    )


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    each = cross_entropy(model(x).float(), y, reduction="none")
    total: Tensor = each.mean() + score_loss(model, each)
    return total


@EVERY
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_training_step(backend: Backend, unit: str, inside: bool) -> None:
    """The backward pass belongs outside; inside it must not fail either."""
    model = network(backend, unit)
    x, y = torch.randn(32, 30), torch.randint(10, (32,))
    with half():
        loss = losses(model, x, y)
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    assert loss.isfinite()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.dtype is torch.float32
        assert p.grad.isfinite().all(), name
        assert p.grad.count_nonzero(), name


@EVERY
def test_close_to_full_precision(backend: Backend) -> None:
    """Gates h = max(0, a) near their threshold may flip; the gradients hardly turn."""
    model = network(backend, "Rectifier()")
    x, y = torch.randn(64, 30), torch.randint(10, (64,))
    hardgate.start_gates_(model, x)
    found = []
    for enabled in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = losses(model, x, y)
        loss.backward()
        found.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    full, mixed = found
    assert torch.cosine_similarity(full, mixed, dim=0) > 0.95
    assert not torch.equal(full, mixed), "autocast did nothing"


@EVERY
def test_fused_steps(backend: Backend) -> None:
    model, x, y = network(backend), torch.randn(32, 30), torch.randint(10, (32,))
    optimiser = FusedSGD(model, 0.1)
    first = last = 0.0
    for k in range(30):
        with half():
            loss = losses(model, x, y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        first, last = (loss.item(), first) if k == 0 else (first, loss.item())
    assert last < first - 0.05
    assert all(p.isfinite().all() for p in model.parameters())


@EVERY
def test_inference(backend: Backend) -> None:
    model, x = network(backend, "Rectifier()").eval(), torch.randn(32, 30)
    hardgate.start_gates_(model, x)
    with torch.no_grad():
        expected = model(x)
        with half():
            y = model(x)
    assert torch.cosine_similarity(y.float().flatten(), expected.flatten(), dim=0) > 0.99


def test_compiled() -> None:
    torch._dynamo.reset()
    model, x, y = network("auto"), torch.randn(32, 30), torch.randint(10, (32,))

    def step(x: Tensor, y: Tensor) -> Tensor:
        with half():
            return losses(model, x, y)

    torch.compile(step, backend="aot_eager", fullgraph=True)(x, y).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())

"""The gater's output layer: its sparse backward pass equals that of `linear`; its steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate import Gater, KLTarget, NoisyRectifier, StraightThrough, Unit, sparsity_loss
from hardgate.kernels import op
from hardgate.kernels.op import gate_linear
from hardgate.kernels.update import Step, Update


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op, "SMALL", 0)  # kernels at the sizes of a test


def gradients(f: object, z: Tensor, w: Tensor, b: Tensor, da: Tensor) -> tuple[Tensor, ...]:
    leaves = [t.clone().requires_grad_() for t in (z, w, b)]
    a = f(*leaves)  # type: ignore[operator]
    return (a.detach(), *torch.autograd.grad(a, leaves, da))


@pytest.mark.parametrize("density", [0.0, 0.1, 0.2, 1.0])
@pytest.mark.parametrize("shape", [(33,), (1,), (0,), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_linear(density: float, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    z, w, b = torch.randn(*shape, 7), torch.randn(40, 7), torch.randn(40)
    da = torch.randn(*shape, 40) * (torch.rand(*shape, 40) < density)
    args = [t.to(dtype) for t in (z, w, b, da)]
    for ours, theirs in zip(gradients(gate_linear, *args), gradients(linear, *args), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5 if dtype == torch.float32 else 1e-11,
                                   atol=1e-5 if dtype == torch.float32 else 1e-11)  # fmt: skip


def test_it_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate without a gradient is not looked at: NaN in its weights does not reach z."""
    z, w, b = torch.randn(4, 3), torch.randn(10, 3), torch.zeros(10)
    da = torch.zeros(4, 10)
    da[:, 2] = 1.0
    w[5] = float("nan")
    _, dz, dw, _ = gradients(gate_linear, z, w, b, da)
    assert dz.isfinite().all()
    torch.testing.assert_close(dz, w[2].expand(4, 3))
    assert (dw[[0, 1, *range(3, 10)]] == 0).all()


def test_half_precision_and_no_grad_go_the_plain_way() -> None:
    z, w, b = torch.randn(4, 3), torch.randn(5, 3), torch.zeros(5)
    half = z.bfloat16(), w.bfloat16(), b.bfloat16()
    assert torch.equal(gate_linear(*half), linear(*half))
    with torch.no_grad():
        assert torch.equal(gate_linear(z, w, b), linear(z, w, b))


def test_a_step_reaches_weights_that_are_not_contiguous() -> None:
    """The kernels write to memory: a copy made for them must not be what is changed."""
    torch.manual_seed(0)
    z, w, b = torch.randn(8, 4), torch.randn(4, 50).t(), torch.zeros(50)
    da = torch.randn(8, 50) * (torch.rand(8, 50) < 0.1)
    assert not w.is_contiguous()
    expected = w - 0.1 * (da.T @ z)
    w.requires_grad_()
    gate_linear(z, w, b, Update(lambda: Step(0.1, 0.0))).backward(da)
    torch.testing.assert_close(w.detach(), expected)


def few(*shape: int) -> Tensor:
    r = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=r) * (torch.rand(shape, generator=r) < 0.1)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("learning", [(0, 1, 2), (1, 2), (0, 1), (0,), (1,), (2,)])
@pytest.mark.parametrize("stepping", [False, True])
def test_what_does_not_learn_stays(dense: bool, learning: tuple[int, ...], stepping: bool) -> None:
    """Of z, w and b only some want a gradient: the others have none, and do not change."""
    torch.manual_seed(0)
    given: Any = [torch.randn(9, 7), torch.randn(40, 7), torch.randn(40)]
    da = torch.ones(9, 40) if dense else few(9, 40)
    expected = gradients(linear, given[0], given[1], given[2], da)[1:]
    leaves: Any = [t.clone().requires_grad_(k in learning) for k, t in enumerate(given)]
    update = Update(lambda: Step(0.1, 0.0)) if stepping else None
    z, w, b = leaves
    gate_linear(z, w, b, update).backward(da)
    for k, (leaf, before) in enumerate(zip(leaves, given, strict=True)):
        stepped = stepping and k in learning and k > 0
        want = before - 0.1 * expected[k] if stepped else before
        torch.testing.assert_close(leaf.detach(), want, rtol=1e-5, atol=1e-5)
        assert (leaf.grad is not None) == (k in learning and not stepped)
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, expected[k], rtol=1e-5, atol=1e-5)


def test_a_step_limits_norms() -> None:
    torch.manual_seed(0)
    z, w, da = torch.randn(9, 7), torch.randn(40, 7).requires_grad_(), few(9, 40)
    before = w.detach().clone()
    gate_linear(z, w, torch.zeros(40), Update(lambda: Step(0.1, 0.5))).backward(da)
    touched = (da != 0).any(0)
    assert (before.norm(dim=1)[touched] > 0.5).all()
    assert (w.norm(dim=1)[touched] <= 0.5 + 1e-6).all()


def test_second_derivatives_are_refused() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    w, b = torch.randn(5, 3), torch.zeros(5)
    (gradient,) = torch.autograd.grad(gate_linear(z, w, b).sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="derivatives of first order"):
        gradient.sum().backward()
    with pytest.raises(RuntimeError, match="derivatives of first order"):
        torch.autograd.functional.hessian(lambda w: gate_linear(z, w, b).sum(), w)


def test_other_modes_go_the_plain_way() -> None:
    z, w, b = torch.randn(4, 3), torch.randn(5, 3, requires_grad=True), torch.zeros(5)
    with torch.autocast("cpu", torch.bfloat16):
        assert gate_linear(z, w, b).dtype == torch.bfloat16
    compiled = torch.compile(gate_linear, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(z, w, b), linear(z, w, b))
    mapped = torch.vmap(lambda row: gate_linear(row, w, b))(z)
    torch.testing.assert_close(mapped, linear(z, w, b))


def gater(unit: Unit, **options: Any) -> Gater:
    torch.manual_seed(0)
    return Gater(6, 2**13, 5, unit, **options)


def test_a_controller_sees_the_pre_activations() -> None:
    model = gater(NoisyRectifier(), sparsity=KLTarget(0.1, weight=1.0))
    h = model(torch.randn(9, 6))
    (h.sum() + sparsity_loss(model)).backward()
    assert model.output.bias.grad is not None
    assert (model.output.bias.grad != 0).all()  # the penalty reaches gates that are off


def test_biases_may_move_before_the_backward_pass() -> None:
    """As a `FiringRate` controller moves them."""
    model = gater(StraightThrough())
    h = model(torch.randn(9, 6))
    with torch.no_grad():
        model.output.bias.add_(1.0)
    h.sum().backward()
    assert model.output.bias.grad is not None

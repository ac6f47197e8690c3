"""The gater's network as one node of the graph: equal to the same in plain torch, and its steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hardgate import Gater, KLTarget, NoisyRectifier, StraightThrough, noise, sparsity_loss
from hardgate.kernels import gate_linear
from hardgate.kernels.gater_network import gater_network
from hardgate.kernels.update import Step, Update

Weights = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # x, U, c, V, d


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_linear, "SMALL", 0)  # kernels at the sizes of a test


def tensors(dtype: torch.dtype = torch.float64, shape: tuple[int, ...] = (9,)) -> Weights:
    r = torch.Generator().manual_seed(0)
    shapes = ((*shape, 6), (5, 6), (5,), (40, 5), (40,))
    x, U, c, V, d = (torch.randn(s, generator=r, dtype=torch.float64).to(dtype) for s in shapes)
    return x, U, c, V, d


def plain(x: Tensor, U: Tensor, c: Tensor, V: Tensor, d: Tensor) -> Tensor:
    return linear(torch.tanh(linear(x, U, c)), V, d)


def shifted(a: Tensor) -> Tensor:
    """A rectifier that is on for a tenth, with noise that does not change."""
    return torch.relu(a - 3)


def few(like: Tensor) -> Tensor:
    r = torch.Generator().manual_seed(1)
    return torch.randn(like.shape, generator=r) * (torch.rand(like.shape, generator=r) < 0.1)


def gradients(f: Callable[..., Tensor], given: Sequence[Tensor], da: Tensor) -> list[Tensor]:
    leaves: list[Any] = [t.clone().requires_grad_() for t in given]
    a = f(*leaves)
    return [a.detach(), *torch.autograd.grad(a, leaves, da)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(9,), (), (2, 3), (0,)])
@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize("dense", [False, True])
def test_equals_plain_torch(
    dtype: torch.dtype, shape: tuple[int, ...], rectified: bool, dense: bool
) -> None:
    given = tensors(dtype, shape)
    da = torch.ones(*shape, 40, dtype=dtype) if dense else few(torch.empty(*shape, 40)).to(dtype)
    rectify = shifted if rectified else None

    def network(x: Tensor, U: Tensor, c: Tensor, V: Tensor, d: Tensor) -> Tensor:
        return gater_network(x, U, c, V, d, rectify=rectify)

    ours = gradients(network, given, da)
    theirs = gradients(lambda *t: shifted(plain(*t)) if rectified else plain(*t), given, da)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-11
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    if shape == (9,) and rectified:
        assert 0 < (ours[0] > 0).double().mean() < 0.5


@pytest.mark.parametrize("dense", [False, True])
def test_a_step_changes_all_four_and_leaves_no_gradient(dense: bool) -> None:
    x, *weights = tensors()
    da = torch.ones(9, 40).double() if dense else few(torch.empty(9, 40)).double()
    expected = gradients(plain, [x, *weights], da)
    leaves: Any = [t.clone().requires_grad_() for t in (x, *weights)]
    x, U, c, V, d = leaves
    gater_network(x, U, c, V, d, Update(lambda: Step(0.1, 0.0))).backward(da)
    torch.testing.assert_close(leaves[0].grad, expected[1])
    for leaf, weight, gradient in zip(leaves[1:], weights, expected[2:], strict=True):
        assert leaf.grad is None
        torch.testing.assert_close(leaf.detach(), weight - 0.1 * gradient)
        assert not torch.equal(leaf.detach(), weight)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("learning", [(3, 4), (2, 3, 4), (1, 3), (0,), (3,)])
@pytest.mark.parametrize("stepping", [False, True])
def test_what_does_not_learn_stays(dense: bool, learning: tuple[int, ...], stepping: bool) -> None:
    """Of x, U, c, V and d only some want a gradient: the others have none, and do not change."""
    given = tensors()
    da = torch.ones(9, 40).double() if dense else few(torch.empty(9, 40)).double()
    expected = gradients(plain, given, da)[1:]
    leaves: Any = [t.clone().requires_grad_(k in learning) for k, t in enumerate(given)]
    update = Update(lambda: Step(0.1, 0.0)) if stepping else None
    x, U, c, V, d = leaves
    gater_network(x, U, c, V, d, update).backward(da)
    for k, (leaf, before) in enumerate(zip(leaves, given, strict=True)):
        stepped = stepping and k in learning and k > 0
        want = before - 0.1 * expected[k] if stepped else before
        torch.testing.assert_close(leaf.detach(), want)
        assert (leaf.grad is not None) == (k in learning and not stepped)
        if leaf.grad is not None:
            torch.testing.assert_close(leaf.grad, expected[k])


def test_second_derivatives_are_refused() -> None:
    x, U, c, V, d = tensors()
    x.requires_grad_()
    for rectify in (None, shifted):
        a = gater_network(x, U, c, V, d, rectify=rectify)
        (gradient,) = torch.autograd.grad(a.sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="derivatives of first order"):
            gradient.sum().backward()
    with pytest.raises(RuntimeError, match="derivatives of first order"):
        torch.autograd.functional.hessian(
            lambda c: gater_network(x, U, c, V, d).sum(), c.requires_grad_()
        )
    a = gate_linear.gate_linear(x[:, :5], V, d)
    (gradient,) = torch.autograd.grad(a.sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="derivatives of first order"):
        gradient.sum().backward()


def test_a_step_limits_norms() -> None:
    x, *weights = tensors()
    leaves: Any = [t.clone().requires_grad_() for t in weights]
    da = few(torch.empty(9, 40)).double()
    U, c, V, d = leaves
    gater_network(x, U, c, V, d, Update(lambda: Step(0.1, 0.5))).backward(da)
    assert (leaves[0].norm(dim=1) <= 0.5 + 1e-6).all()
    touched = (da != 0).any(0)
    assert (leaves[2].norm(dim=1)[touched] <= 0.5 + 1e-6).all()
    assert (weights[2].norm(dim=1)[touched] > 0.5).all()


def test_other_modes_and_dtypes_go_the_plain_way() -> None:
    given: Any = [t.bfloat16() for t in tensors()]
    assert torch.equal(gater_network(*given), plain(*given))
    weights: Any
    x, *weights = tensors(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        a = gater_network(x, *(w.requires_grad_() for w in weights))
    assert a.dtype == torch.bfloat16
    compiled = torch.compile(gater_network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, *weights), plain(x, *weights))
    mapped = torch.vmap(lambda row: gater_network(row, *weights))(x)
    torch.testing.assert_close(mapped, plain(x, *weights))


# --- in a Gater --------------------------------------------------------------------------------


def gater(unit: nn.Module, **options: object) -> Gater:
    torch.manual_seed(0)
    return Gater(6, 2 * noise.FEW // 4, 5, unit, **options)  # type: ignore[arg-type]


def run(model: Gater, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    h = model(x)
    h.square().sum().backward()
    return h.detach(), {
        n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("hooked", ["unit", "hidden"])
def test_a_noisy_rectifier_in_one_go_equals_the_parts(hooked: str) -> None:
    """A hook makes the module that has it be called: the same numbers, the same gradients."""
    at_once, x = gater(NoisyRectifier(scale=0.7)), torch.randn(9, 6)
    in_parts, calls = copy.deepcopy(at_once), []
    getattr(in_parts, hooked).register_forward_hook(lambda *_: calls.append(1))
    (h, ours), (expected, theirs) = run(at_once, x), run(in_parts, x)
    torch.testing.assert_close(h, expected, rtol=1e-5, atol=1e-6)
    assert calls
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-3)


def test_a_controller_still_sees_the_pre_activations() -> None:
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


def test_other_units_are_not_rectifiers() -> None:
    model = gater(StraightThrough())
    assert {*model(torch.randn(9, 6)).unique().tolist()} == {0.0, 1.0}


# --- the noise ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_rectify_equals_its_twin(scale: float) -> None:
    a = torch.randn(3, noise.FEW)
    a[0, 0], a[1, 1], a[2, 2] = float("nan"), float("inf"), -float("inf")
    with noise.fast():
        torch.manual_seed(4)
        h = noise.rectify(a, scale)
        torch.manual_seed(4)
        z = noise.normal(a)
        torch.manual_seed(5)
        assert not torch.equal(h[2, 3:], noise.rectify(a, scale)[2, 3:])
    torch.testing.assert_close(h, torch.relu(a + scale * z), equal_nan=True)
    torch.manual_seed(4)
    by_torch = noise.rectify(a, scale)  # not asked to be fast
    torch.manual_seed(4)
    expected = torch.relu(a + scale * torch.randn(a.shape))
    torch.testing.assert_close(by_torch, expected, equal_nan=True)


def test_rectify_is_differentiated_where_it_must_be() -> None:
    a = torch.zeros(2, 2 * noise.FEW, requires_grad=True)
    with noise.fast():
        h = noise.rectify(a)
    h.sum().backward()
    assert a.grad is not None
    assert torch.equal(a.grad, (h > 0).float())

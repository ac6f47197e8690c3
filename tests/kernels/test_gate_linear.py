"""The gater's output layer: its sparse backward pass equals `nn.functional.linear`'s."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from hardgate.kernels import gate_linear as module
from hardgate.kernels.gate_linear import gate_linear
from hardgate.kernels.update import Step, Update


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", 0)  # kernels at the sizes of a test


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

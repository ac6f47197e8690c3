"""Calls without gradients, which may take paths of their own: the values of the plain formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from hardgate import ConditionalMLP, Rectifier
from hardgate.functional import conditional_linear, conditional_mlp
from tests.support.kernel_cases import path

# Large enough for kernels to pay; more examples than take the kernels at any density.
B, IN, HIDDEN, OUT = 40, 96, 512, 10


def formula(x: Tensor, gates: Tensor, w_in: Tensor, b_in: Tensor, relu: bool, block: int) -> Tensor:
    H = x.double() @ w_in.double().T + b_in.double()
    H = H.relu() if relu else H
    return H * gates.double().repeat_interleave(block, dim=1)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("density", [1.0, 0.1])
@pytest.mark.parametrize("block", [1, 8])
@pytest.mark.parametrize("unit_major", [True, False])
def test_values(relu: bool, density: float, block: int, unit_major: bool) -> None:
    x, w_in, b_in = torch.randn(B, IN), torch.randn(HIDDEN, IN), torch.randn(HIDDEN)
    gates = torch.randn(B, HIDDEN // block).abs() + 0.1
    gates = gates * (torch.rand_like(gates) < density)
    w_out = torch.randn(HIDDEN, OUT).T if unit_major else torch.randn(OUT, HIDDEN)
    b_out = torch.randn(OUT)
    s = formula(x, gates, w_in, b_in, relu, block)
    with torch.no_grad():
        y = conditional_mlp(x, gates, w_in, b_in, w_out, b_out, relu=relu)
        weights = {"w_in": w_in, "b_in": b_in, "w_out": w_out, "b_out": b_out}
        taken = path({"x": x, "gates": gates, **weights})
        h = conditional_linear(x, gates, w_in, b_in, relu=relu)
    assert taken is not None
    assert taken.backend == ("dense" if density == 1 else "sparse")
    expected = s @ w_out.double().T + b_out.double()
    for found, wanted in ((y, expected), (h, s)):
        assert (found.double() - wanted).abs().max() < 3e-5 * wanted.abs().max()
    assert ((H := x @ w_in.T + b_in) < 0).float().mean() > 0.3, H  # a ReLU shows


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_a_layer_whose_gates_are_all_on(activation: str) -> None:
    """In evaluation mode, by the dense path: as two linear layers and a product."""
    layer = ConditionalMLP(
        IN,
        HIDDEN,
        OUT,
        bottleneck=8,
        unit=Rectifier(),
        activation=activation,  # type: ignore[arg-type]
    ).eval()
    nn.init.constant_(layer.gater.output.bias, 100.0)
    x = torch.randn(B, IN)
    with torch.no_grad():
        y, gates = layer(x), layer.gater(x)
        H = layer.experts(x)
        expected = layer.out((H.relu() if activation == "relu" else H) * gates)
    assert (gates != 0).all()
    assert (y - expected).abs().max() < 1e-4 * expected.abs().max()

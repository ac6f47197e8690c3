"""Gates that the kernels draw and rectify in one pass: the same law and the same gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from hardgate import AdaptiveL1, Gater, NoisyRectifier
from hardgate.kernels.op import gate_linear
from hardgate.noise import FEW, rectify
from hardgate.units._unit import NoiseTensors
from tests.support.statistics import Z_LEVEL

B, IN, BOTTLENECK, GATES = 40, 12, 6, 500
assert FEW < B * GATES


def gater(scale: float = 1.0) -> Gater:
    torch.manual_seed(1)
    return Gater(IN, GATES, BOTTLENECK, NoisyRectifier(scale=scale))


def test_the_law_of_what_is_drawn() -> None:
    a = torch.randn(B, GATES)
    a[0, 0] = torch.nan
    torch.manual_seed(0)
    drawn = rectify(a, 1.5)
    assert drawn[0, 0].isnan()
    torch.manual_seed(0)
    torch.testing.assert_close(rectify(a, 1.5), drawn, rtol=0, atol=0, equal_nan=True)
    expected = torch.special.ndtr(a[1:] / 1.5)
    on = (drawn[1:] > 0).double()
    error = (on - expected).mean() / ((expected * (1 - expected)).mean() / on.numel()).sqrt()
    assert error.abs() < Z_LEVEL
    assert drawn[1:].min() == 0


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("share", [1.0, 0.1], ids=["dense", "sparse"])
def test_the_gradient_is_that_of_a_rectifier(scale: float, share: float) -> None:
    layer, x = gater(scale), torch.randn(B, IN, requires_grad=True)
    h = layer(x)
    assert isinstance(h, Tensor)
    dh = torch.randn(B, GATES) * (torch.rand(B, GATES) < share)
    leaves = [x, *layer.parameters()]
    found = torch.autograd.grad(h, leaves, dh)
    U, V = layer.hidden, layer.output
    a = nn.functional.linear(torch.tanh(U(x)), V.weight, V.bias)
    expected = torch.autograd.grad(a, leaves, dh * (h > 0))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    z = (h - a).detach()[h > 0]  # of the noise, those that were kept
    assert z.std() > 0.2 * scale


def test_who_asks_for_more_gets_the_long_way() -> None:
    """A hook of the unit, noise of one's own, a controller: each sees what it asks for."""
    x = torch.randn(B, IN)
    layer, seen = gater(), list[Tensor]()
    handle = layer.unit.register_forward_hook(lambda unit, args, h: seen.append(args[0]))
    layer(x)
    assert len(seen) == 1
    handle.remove()
    zero: Callable[..., Tensor] = lambda a, generator=None: torch.zeros_like(a)  # noqa: E731
    layer.unit.sample_noise = zero  # type: ignore[method-assign]
    U, V = layer.hidden, layer.output
    a = gate_linear(torch.tanh(U(x)), V.weight, V.bias)
    torch.testing.assert_close(layer(x), torch.relu(a))
    steered = Gater(IN, GATES, BOTTLENECK, NoisyRectifier(), sparsity=AdaptiveL1(0.1))
    steered(x)
    assert steered.take_penalty() is not None


class Doubled(NoisyRectifier):
    """Samples in a way of its own."""

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return 2 * super().sample(a, noise).clamp(max=0.5)


def test_a_subclass_is_sampled_as_it_says() -> None:
    torch.manual_seed(1)
    h = Gater(IN, GATES, BOTTLENECK, Doubled())(torch.randn(B, IN))
    assert isinstance(h, Tensor)
    assert h.max() == 1.0


def test_an_input_without_axes_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"expected x of shape \[\.\.\., 12\], got \(\)"):
        gater()(torch.tensor(1.0))

"""`sparsity_loss`: the penalties of the controllers that gaters own, collected once."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hardgate import (
    AdaptiveL1,
    Controller,
    FiringRate,
    KLTarget,
    NoisyRectifier,
    StraightThrough,
    Unit,
)
from hardgate.sparsity.collect import sparsity_loss
from tests.support.tiny_layer import mlp


def test_sparsity_loss_is_the_controllers_penalties() -> None:
    first, second = KLTarget(0.1, weight=0.3), AdaptiveL1(0.1, weight=0.5)
    stack = nn.Sequential(
        mlp(None, 6, 20, 6, sparsity=first, rate=0.4),
        mlp(None, 6, 20, 6),  # without one
        mlp(NoisyRectifier(), 6, 20, 6, sparsity=second),
    )
    seen: dict[Unit, tuple[Tensor, Tensor]] = {}
    for m in stack.modules():
        if isinstance(m, Unit):
            m.register_forward_hook(lambda m, args, h: seen.update({m: (args[0], h)}))
    weight = second.weight.clone()
    stack(torch.randn(8, 6))
    assert second.weight != weight  # it was moved, once
    second.weight.copy_(weight)
    units = [m for m in stack.modules() if isinstance(m, Unit)]
    by_hand = first(units[0], *seen[units[0]]) + second(units[2], *seen[units[2]])
    total = sparsity_loss(stack)
    torch.testing.assert_close(total, by_hand)
    total.backward()
    gradient = stack.get_parameter("0.gater.output.bias").grad
    assert gradient is not None
    assert gradient.abs().sum() > 0


def test_sparsity_loss_counts_the_last_pass_once() -> None:
    layer = mlp(sparsity=KLTarget(0.1, weight=1.0), rate=0.4)
    x = torch.randn(5, 6)
    layer(x)
    layer(3 * x)
    penalty = sparsity_loss(layer)
    layer(3 * x)
    torch.testing.assert_close(sparsity_loss(layer), penalty)
    with pytest.raises(RuntimeError, match=r"sparsity_loss found no penalty.*since the last"):
        sparsity_loss(layer)
    with torch.no_grad():
        layer(x)
    with pytest.raises(RuntimeError, match="with gradients enabled"):
        sparsity_loss(layer)
    layer.eval()(x)
    assert sparsity_loss(layer) == 0
    assert sparsity_loss(mlp()) == 0  # nothing is steered


class ByHand(nn.Module):
    """Owns a controller and a unit, and is no gater."""

    def __init__(self, sparsity: Controller) -> None:
        super().__init__()
        self.layer, self.unit, self.sparsity = nn.Linear(6, 6), StraightThrough(), sparsity

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = self.layer(x)
        h = self.unit(a)
        return h, self.sparsity(self.unit, a, h)


def test_a_controller_that_no_gater_owns_is_refused() -> None:
    net, x = ByHand(KLTarget(0.1, weight=1.0)), torch.randn(5, 6)
    words = r"got KLTarget, owned by no Gater \({}\)(.|\n)*penalty = controller\(unit, a, h\)"
    net(x)
    with pytest.raises(RuntimeError, match=words.format("sparsity")):
        sparsity_loss(net)
    with pytest.raises(RuntimeError, match=words.format("the model itself")):
        sparsity_loss(net.sparsity)
    gated = mlp(None, 6, 20, 6, sparsity=KLTarget(0.1, weight=1.0))
    both = nn.Sequential(gated, net)
    h, penalty = both(x)
    with pytest.raises(RuntimeError, match=words.format("1.sparsity") + r"(.|\n)*\(model.gater\)"):
        sparsity_loss(both)
    (h.sum() + penalty + sparsity_loss(gated)).backward()  # and that, as it says, works
    assert sparsity_loss(both.eval()) == 0


def test_a_controller_may_be_owned_and_called_by_hand() -> None:
    layer = mlp(None, 6, 20, 6, sparsity=KLTarget(0.1, weight=1.0))
    assert layer.gater.sparsity is not None
    net, x = ByHand(layer.gater.sparsity), torch.randn(5, 6)
    both = nn.Sequential(net, layer)
    layer(x)
    assert (net(x)[1] + sparsity_loss(both)).requires_grad


def test_forgetting_sparsity_loss_is_noticed() -> None:
    layer = mlp(None, 2, 4, 2, bottleneck=2, sparsity=KLTarget(0.1, weight=1.0))
    x = torch.randn(1, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(99):
            layer(x)
    with pytest.warns(UserWarning, match=r"never collected.*\n.*hardgate.sparsity_loss\(model\)"):
        layer(x)


def test_checkpointing_moves_a_controller_once() -> None:
    control = FiringRate(0.1)
    layer = mlp(sparsity=control)
    x = torch.randn(5, 6, requires_grad=True)
    y = checkpoint(layer, x, use_reentrant=False)
    average = control.firing.clone()
    (y.sum() + sparsity_loss(layer)).backward()
    assert torch.equal(control.firing, average)
    assert control.training


def test_a_firing_rate_controller_can_be_given_the_output_layer() -> None:
    layer = mlp(rate=0.5)
    layer.gater.sparsity = FiringRate(0.1, layer.gater.output)
    layer(torch.randn(64, 6))
    sparsity_loss(layer).backward()
    push = layer.gater.output.bias.grad
    assert push is not None
    assert (push > 0).all()
    assert layer.gater.output.weight.grad is None


def test_a_controller_holds_the_target_while_a_layer_trains() -> None:
    torch.manual_seed(0)
    layer = mlp(None, 8, 60, 2, bottleneck=8, rate=0.5, sparsity=KLTarget(0.1, weight=0.1))
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(64, 8)
    for _ in range(300):
        optimiser.zero_grad()
        (layer(x).square().mean() + sparsity_loss(layer)).backward()
        optimiser.step()
    assert layer.telemetry().density == pytest.approx(0.1, abs=0.04)

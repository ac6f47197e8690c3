"""Every gater of a network started at its target rate on real inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hardgate._base.run_eagerly import run_eagerly
from hardgate.conditional.gater import Gater


@torch.no_grad()
def start_gates_(model: nn.Module, x: Tensor) -> nn.Module:
    """Set the gates' biases, in place, so that each is on for a fraction `rate` of the examples.

    A fresh `Gater` is at its rate on N(0, 1) inputs. Real inputs, and above all the outputs of a
    layer below, have another scale, and the upper gates of a stack may start dead. One forward
    pass starts each gater on what it is given, from the bottom up. Call it before training.

    Args:
        model: contains `Gater`s, alone or in conditional layers.
        x: the model's input, some hundred examples.

    Returns:
        `model`.

    Example:
        >>> from hardgate import Rectifier
        >>> from hardgate.conditional import ConditionalMLP
        >>> layers = [ConditionalMLP(8, 50, 8, bottleneck=4, unit=Rectifier()) for _ in range(3)]
        >>> x = torch.randn(200, 8)
        >>> y = start_gates_(nn.Sequential(*layers), x)(x)
        >>> tuple(round(layer.telemetry().density, 3) for layer in layers)
        (0.1, 0.1, 0.1)
    """
    gaters = [m for m in model.modules() if isinstance(m, Gater)]
    if not gaters:
        raise ValueError("start_gates_ found no hardgate.Gater in this model.")
    hooks = [g.register_forward_pre_hook(lambda g, args: _start(g, args[0])) for g in gaters]
    try:
        with run_eagerly():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return model


def _start(gater: Gater, x: Tensor) -> None:
    gater.start_(x)

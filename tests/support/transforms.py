"""The same gradient taken in several ways: torch.func, vmap, torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.func import grad

import hardgate
from hardgate import Unit
from hardgate.units._unit import NoiseTensors

Loss: TypeAlias = Callable[[Tensor, NoiseTensors], tuple[Tensor, Tensor]]
# torch's own: loading forward-mode decompositions or inductor still scripts something.
TORCH_JIT = "ignore:`torch.jit.script(_method)?` is deprecated:DeprecationWarning"
WEIGHTS = torch.tensor([1.0, -2.0, 0.5])


def compiled(f: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    return torch.compile(f, fullgraph=True, backend="aot_eager")


def backward(f: Loss) -> Loss:
    def run(a: Tensor, noise: NoiseTensors) -> tuple[Tensor, Tensor]:
        x = a.clone().requires_grad_()
        total, h = f(x, noise)
        total.backward()
        assert x.grad is not None
        return x.grad, h

    return run


# Each turns a loss(a, noise) → (sum of losses, h) into a function of a, noise → (gradient, h).
TRANSFORMS: dict[str, Callable[[Loss], Loss]] = {
    "grad": lambda f: grad(f, has_aux=True),
    "vmap(grad)": lambda f: torch.vmap(grad(f, has_aux=True)),
    "compile": lambda f: backward(compiled(f)),
    "compile(grad)": lambda f: compiled(grad(f, has_aux=True)),
    "compile(vmap(grad))": lambda f: compiled(torch.vmap(grad(f, has_aux=True))),
}


def objective(unit: Unit) -> Loss:
    """Nonlinear in h, coupled across units, separate across examples: vmap can be compared."""

    def loss(a: Tensor, noise: NoiseTensors) -> tuple[Tensor, Tensor]:
        h = unit(a, noise)
        losses = (h * WEIGHTS).sum(-1).square() + h.sum(-1)
        total = losses.sum()
        if unit.needs_loss:
            score = hardgate.score_loss(unit, losses, update_baselines=False)
            total = total + losses.numel() * score
        return total, h.detach()

    return loss


def assert_equals_eager(
    transform: Callable[[Loss], Loss], loss: Loss, x: Tensor, noise: NoiseTensors
) -> None:
    gradient, h = backward(loss)(x, noise)
    assert gradient.abs().sum() > 0  # else the comparison below says nothing
    transformed_gradient, transformed_h = transform(loss)(x, noise)
    assert torch.equal(transformed_h, h)
    torch.testing.assert_close(transformed_gradient, gradient)

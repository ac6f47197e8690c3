"""What the tests of score_loss share: a small gated network, its training step, the formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hardgate import StochasticBinary, score_loss
from hardgate.learning.baselines import Baseline

FORGOTTEN = (
    r"without the term that score_loss gives(.|\n)*reduction='none'"
    r"(.|\n)*\(losses.mean\(\) \+ hardgate.score_loss\(model, losses\)\).backward\(\)"
)
NO_PASS = (
    r"no forward pass to charge(.|\n)*Call model\(x\) first, then score_loss once, on the same "
    r"model object(.|\n)*hardgate.score_loss\(model, losses\)\).backward\(\)"
)


class Net(nn.Module):
    """Stochastic gates on 3 numbers, one or two layers of them: x [..., 3] → losses [...]."""

    def __init__(self, baseline: Any = "optimal", *, layers: int = 1) -> None:
        super().__init__()
        self.linears = nn.ModuleList([nn.Linear(3, 3) for _ in range(layers)])
        self.units = nn.ModuleList([StochasticBinary(baseline) for _ in range(layers)])
        self.out = nn.Linear(3, 1)

    def forward(self, h: Tensor, *noises: Tensor) -> Tensor:
        for k, (linear, unit) in enumerate(zip(self.linears, self.units, strict=True)):
            h = unit(linear(h), *noises[k : k + 1])
        losses: Tensor = self.out(h).squeeze(-1).square()
        return losses

    @property
    def unit(self) -> StochasticBinary:
        unit = self.units[0]
        assert isinstance(unit, StochasticBinary)
        return unit

    def gradients(self) -> list[Tensor]:
        """Copies, so that they can be compared with later ones; one for every parameter."""
        return [p.grad.clone() for p in self.parameters() if p.grad is not None]


def step(model: nn.Module, x: Tensor, *noises: Tensor, **options: Any) -> Tensor:
    losses = model(x, *noises)
    total: Tensor = losses.mean() + score_loss(model, losses, **options)
    return total


def assert_same(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    torch.testing.assert_close(list(actual), list(expected))
    assert actual[0].abs().sum() > 0  # the gater's: else the comparison says nothing


def leaf(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_()


def baseline_of(unit: StochasticBinary) -> Baseline:
    assert unit.baseline is not None
    return unit.baseline


def charge(unit: StochasticBinary, a: Tensor, losses: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """h and the gradient that score_loss gives at a."""
    h = unit(a, u)
    return h, torch.autograd.grad(score_loss(unit, losses), a)[0]


def by_hand(h: Tensor, a: Tensor, losses: Tensor, baseline: Tensor | float = 0.0) -> Tensor:
    """(h - σ(a))(L - L̄)/numel in double, with the losses written out over the axes of a."""
    L = losses.double().reshape(losses.shape + (1,) * (a.dim() - losses.dim())).expand(a.shape)
    return (h.double() - a.detach().double().sigmoid()) * (L - baseline) / losses.numel()


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)

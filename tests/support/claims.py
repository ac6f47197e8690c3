"""What a unit declares, measured: for those of `hardgate.UNITS`, and for a user's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import Unit
from tests.support.statistics import Z_LEVEL, largest_z

N = 200_000


def check_off_gradient(unit: Unit) -> None:
    """What the gradient of an off unit needs, shown by changing one thing at a time."""
    a = torch.randn(2000, 4, generator=torch.Generator().manual_seed(0)) - 1
    noise = unit.sample_noise(a, torch.Generator().manual_seed(1))

    def gradient(expert: float, loss: float) -> tuple[Tensor, Tensor]:
        """∂/∂a where ∂L/∂h = expert, and the value of the loss is shifted by `loss`."""
        x = a.clone().requires_grad_()
        h = unit(x, noise)
        losses = (h * expert).sum(-1) + loss
        total = losses.sum()
        if unit.needs_loss:
            total = total + len(a) * hardgate.score_loss(
                unit, losses.detach() * 0 + loss, update_baselines=False
            )
        total.backward()
        assert x.grad is not None
        return h.detach(), x.grad

    h, base = gradient(1.0, 1.0)
    off = h == 0
    if not off.any():
        assert unit.never_off
        return
    _, other_expert = gradient(-3.0, 1.0)
    _, other_loss = gradient(1.0, 5.0)
    needs_expert = not torch.equal(base[off], other_expert[off])
    needs_loss = not torch.equal(base[off], other_loss[off])
    measured = "expert" if needs_expert else "score" if needs_loss else "zero"
    assert measured == unit.off_gradient
    assert (base[off] == 0).all() == (unit.off_gradient == "zero")


def check_active_probability(unit: Unit, a: float) -> None:
    point = torch.full((N,), a)
    h = unit(point, unit.sample_noise(point, torch.Generator().manual_seed(2)))
    p = unit.active_probability(torch.tensor(a, dtype=torch.float64))
    assert largest_z((h != 0).double(), p) < Z_LEVEL
    q = unit.inactive_probability(torch.tensor(a, dtype=torch.float64))
    assert (p + q).item() == pytest.approx(1.0, abs=1e-12)


def check_mean(unit: Unit, a: float) -> None:
    point = torch.full((N,), a)
    h = unit(point, unit.sample_noise(point, torch.Generator().manual_seed(3)))
    assert largest_z(h, unit.mean(torch.tensor(a, dtype=torch.float64))) < Z_LEVEL


def check_noise_is_independent(unit: Unit) -> None:
    """One draw shared along an axis would keep every marginal right and every test above green."""
    if unit.sample_noise(torch.zeros(1)) == ():
        return
    a = torch.zeros(50_000, 2)
    h = unit(a, unit.sample_noise(a, torch.Generator().manual_seed(4))).double()
    h = (h - h.mean(0)) / h.std(0)
    assert largest_z(h[:, 0] * h[:, 1], 0.0) < Z_LEVEL
    assert largest_z(h[1:, 0] * h[:-1, 0], 0.0) < Z_LEVEL

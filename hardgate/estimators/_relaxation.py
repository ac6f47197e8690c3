"""What REBAR and RELAX share: z behind b, z̃ drawn again given b, λ, and the control variate."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hardgate._base.arguments import flag, positive
from hardgate._base.lazy_state import LazyState
from hardgate.enumeration import losses_of
from hardgate.estimators._adam import Adam
from hardgate.estimators._estimator import Loss, Noise, gradient_of
from hardgate.noise import uniform

_LEAST = 2.0**-25  # uniform() gives 0 once in 2²⁴ draws
_RATE = 0.02  # of λ's Adam


class Relaxation(NamedTuple):
    """b = 1[z > 0], z = a + logit u; z̃ ~ z | b, and dz̃/da, all `[..., D]`."""

    b: Tensor
    z: Tensor
    z_tilde: Tensor
    slope: Tensor

    def control(self, value: Tensor, derivative: Tensor, score: Tensor) -> Tensor:
        """v = -c(z̃)(b - p) + ∂_a c(z) - ∂_a c(z̃), of mean zero.

        Args:
            value: c(z̃), `[...]`.
            derivative: ∂c/∂z at z and at z̃, `[2, ..., D]`.
            score: b - p.
        """
        return -value.unsqueeze(-1) * score + derivative[0] - derivative[1] * self.slope


class Temperature(LazyState):
    """λ = exp(log λ), which is positive after every step; fixed, or learnt on the variance.

    Args:
        start: λ at the start.
        learn: whether λ is learnt.
    """

    log: Tensor

    def __init__(self, start: float, *, learn: bool) -> None:
        super().__init__()
        start = positive("temperature", start, like=0.5)
        self.learns = flag("learn_temperature", learn)
        self.register_buffer("log", torch.tensor([math.log(start)]), persistent=learn)
        if learn:
            self.adam = Adam(_RATE)

    def learnt(self, prefix: str) -> tuple[str, ...]:
        """The names of the buffers that are learnt, for an estimator's `state`."""
        names = ("log", "adam.first", "adam.second", "adam.steps") if self.learns else ()
        return tuple(f"{prefix}.{name}" for name in names)

    def leaf(self, *, learning: bool) -> Tensor:
        """log λ, with `requires_grad` where it is learnt."""
        log = self.log.detach().clone()
        return log.requires_grad_() if learning and self.learns else log

    def learn_(self, loss: Tensor, leaf: Tensor) -> None:
        """One step down the gradient of `loss`, where λ is learnt."""
        if leaf.requires_grad:
            (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
            self.adam.step_(self.log, gradient)

    def extra_repr(self) -> str:
        return f"{self.log.exp().item():.3g}"


def two_uniforms(a: Tensor, generator: torch.Generator | None = None) -> Noise:
    """u for z and v for z̃."""
    u, v = uniform(a.expand(2, *a.shape), generator)
    return u, v


def relax(a: Tensor, noise: Noise) -> Relaxation:
    """Draw z, and z̃ given b.

    As printed, z̃ = a + logit v′ with v′ = b(vp + 1-p) + (1-b)v(1-p); in this form no p is
    subtracted from 1, and dz̃/da is a sigmoid.
    """
    u, v = (x.to(a).clamp(min=_LEAST) for x in noise)
    z = a + torch.logit(u)
    on, off = a + torch.log(v), torch.log1p(-v) - a
    b = z > 0
    z_tilde = torch.where(b, softplus(on) - torch.log1p(-v), torch.log(v) - softplus(off))
    return Relaxation(b.to(a.dtype), z, z_tilde, torch.sigmoid(torch.where(b, on, off)))


def relaxed_loss(f: Loss, at: Relaxation, log_temperature: Tensor) -> tuple[Tensor, Tensor]:
    """c(z) = f(σ(z/λ)) at z and at z̃, `[2, ...]`, and ∂c/∂z, `[2, ..., D]`.

    Both have a graph to log λ where that is learnt; f is then differentiated twice.
    """
    scale = torch.exp(-log_temperature).to(at.z)
    z = torch.stack([at.z, at.z_tilde]) * scale
    s = torch.sigmoid(z)
    twice = z.requires_grad
    s = s if twice else s.requires_grad_()
    value = losses_of(f, s)
    gradient = gradient_of(value, s, create_graph=twice)
    slope = gradient * s * torch.sigmoid(-z) * scale
    return (value, slope) if twice else (value.detach(), slope.detach())

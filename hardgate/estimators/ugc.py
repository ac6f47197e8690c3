"""UGC: each unit has DisARM or bitflip-1, whichever varies less (Kunes et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import flag
from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._flips import draw_unit, flip
from hardgate.estimators._odds import Odds
from hardgate.estimators.bitflip import flip_gradient
from hardgate.estimators.disarm import antithetic, pair_gradient
from hardgate.noise import uniform


class UGC(Estimator):
    """g_i of bitflip-1 where q_i = min(p_i, 1-p_i) < 1/(2D), of DisARM elsewhere.

    With Δ = f(b_{i→1}) - f(b_{i→0}), bitflip-1 has E[g_i²] = D q²(1-q)² E[Δ²]; DisARM would have
    ½ q (1-q)² E[Δ²] if the other units of its pair agreed. The two are equal at q = 1/(2D).

    Args:
        among_rare: draw the unit to flip among those that use it only: never more variance than
            drawing it among all, as the paper does. An idea of this library.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, UGC()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Kunes, Yin, Land, Haviv, Pe'er & Tavaré 2023, *Gradient estimation for binary latent
        variables via gradient variance clipping*.
    """

    unbiased = True
    n_evals = 3

    def __init__(self, *, among_rare: bool = False) -> None:
        super().__init__()
        self.among_rare = flag("among_rare", among_rare)

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return uniform(a, generator), uniform(a[..., :1], generator)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        (u, v), odds = noise, Odds.of(a)
        rare = 2 * a.shape[-1] * odds.rarer < 1
        weight = rare.to(a.dtype) if self.among_rare else torch.ones_like(a)
        chosen = draw_unit(weight, v)
        b = antithetic(odds, u)
        losses = losses_of(f, b)
        L = losses.detach()
        of_pair = pair_gradient(odds, b, L)
        with torch.no_grad():  # flip_j b is no sample of b: it has no part in the value
            flipped = losses_of(f, flip(b[0], chosen)).unsqueeze(-1)
        choices = weight.sum(-1, keepdim=True)
        of_flip = choices * chosen * flip_gradient(a, b[0], flipped - L[0].unsqueeze(-1))
        return Estimate(losses.mean(0), torch.where(rare, of_flip, of_pair))

    def extra_repr(self) -> str:
        return "among_rare=True" if self.among_rare else ""

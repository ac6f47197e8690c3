"""StochasticAD: units that are off, weighed by how soon they would switch on (Arya et al. 2022)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hardgate._base.arguments import one_of
from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.estimators._flips import draw_unit, flip
from hardgate.estimators.local_expectation import flip_differences
from hardgate.functional.surrogates import bernoulli
from hardgate.noise import uniform


class StochasticAD(Estimator):
    """g_i = w_i (f(flip_i b) - f(b)), with the weights w_i = p_i 1[b_i = 0].

    As a_i grows, a unit that is off switches on at the rate w_i: an infinitesimal change of a_i
    is a finite one of b_i, rarely. `flips="all"` evaluates each of them; `LocalExpectation` is
    its mean over b_i, at the same cost. `flips="one"` keeps one as StochasticAD prunes: unit j
    with probability w_j/W, W = Σ w_i, then g_j = W (f(flip_j b) - f(b)) and 0 elsewhere.

    Args:
        flips: `"one"` (2 evaluations) or `"all"` (D + 1).

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, StochasticAD()).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Arya, Schauer, Schäfer & Rackauckas 2022, *Automatic differentiation of programs with
        discrete randomness*.
    """

    unbiased = True

    def __init__(self, flips: Literal["one", "all"] = "one") -> None:
        super().__init__()
        self.flips = one_of("flips", flips, ("one", "all"))
        self.n_evals = 2 if flips == "one" else "D + 1"

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return uniform(a, generator), uniform(a[..., :1], generator)

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        u, v = noise
        p = torch.sigmoid(a)
        b = bernoulli(p, u)
        w = p * (1 - b)
        losses = losses_of(f, b)
        if self.flips == "all":
            return Estimate(losses, w * flip_differences(f, b, losses))
        chosen = draw_unit(w, v)
        with torch.no_grad():  # flip_j b is no sample of b: it has no part in the value
            difference = losses_of(f, flip(b, chosen)) - losses
        return Estimate(losses, w.sum(-1, keepdim=True) * chosen * difference.unsqueeze(-1))

    def extra_repr(self) -> str:
        return f"flips={self.flips!r}"

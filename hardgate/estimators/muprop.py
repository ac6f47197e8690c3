"""MuProp: f's first-order expansion around the mean field as control variate (Gu et al. 2016)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hardgate._base.arguments import one_of
from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import (
    Context,
    Estimate,
    Estimator,
    Loss,
    Noise,
    value_and_gradient,
)
from hardgate.functional.surrogates import bernoulli
from hardgate.learning.baselines import BASELINES
from hardgate.units._unit import single


class MuProp(Estimator):
    """g = (f(b) - f(p) - f′(p)·(b - p) - L̄)(b - p) + f′(p) p(1-p).

    The mean of the expansion is known and is added back. For a linear loss the variance is zero.
    f is evaluated at b and at p (the mean-field pass), and differentiated at p only. Where f is
    curved and there are many units, E f is far from f(p): then use a baseline L̄ for the rest.

    Args:
        baseline: `"optimal"`, `"mean"` or None, as in `REINFORCE`.
        decay: of the baseline's moving averages.
        adapt: see `Estimator`.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, MuProp()).backward()
        >>> a.grad.tolist()
        [0.25, 0.25, 0.25]

    References:
        Gu, Levine, Sutskever & Mnih 2016, *MuProp: unbiased backpropagation for stochastic neural
        networks*.
    """

    unbiased = True
    n_evals = 2
    needs_gradient_of_f = True
    needs_relaxed_f = True

    def __init__(
        self,
        baseline: Literal["optimal", "mean"] | None = None,
        *,
        decay: float = 0.9,
        adapt: bool = True,
    ) -> None:
        super().__init__(adapt=adapt)
        self.baseline = None
        if baseline is not None:
            self.baseline = BASELINES[one_of("baseline", baseline, tuple(BASELINES))](decay)
            self.state = ("baseline.numerator", "baseline.denominator")

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        p = torch.sigmoid(a)
        mean_field, slope = value_and_gradient(f, p)
        b = bernoulli(p, single(noise))
        losses = losses_of(f, b)
        score = b - p
        expansion = mean_field.detach() + (slope * score).sum(-1)
        rest = (losses.detach() - expansion).unsqueeze(-1)
        if self.baseline is not None:
            rest = rest - self.baseline.step([score], [rest], update=self.adapting)
        return Estimate(losses, rest * score + slope * p * torch.sigmoid(-a))

"""REINFORCE: the loss times the score (Williams 1992; Theorem 1), with a baseline (Corollary 1)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from hardgate._base.arguments import one_of
from hardgate.enumeration import losses_of
from hardgate.estimators._estimator import Context, Estimate, Estimator, Loss, Noise
from hardgate.functional.surrogates import bernoulli
from hardgate.learning.baselines import BASELINES
from hardgate.units._unit import single


class REINFORCE(Estimator):
    """g = (f(b) - L̄_i)(b_i - p_i).

    Unbiased for any L̄_i that does not depend on b. `"optimal"` is the paper's, of least variance:
    L̄_i = E[(b_i - p_i)² f] / E[(b_i - p_i)²]; with it a single unit has no variance at all.

    Args:
        baseline: `"optimal"`, `"mean"` (the moving average of f) or None.
        decay: of the baseline's moving averages.
        adapt: see `Estimator`.

    Example:
        >>> import hardgate
        >>> a = torch.zeros(3, requires_grad=True)
        >>> hardgate.expectation(lambda b: b.sum(-1), a, REINFORCE("optimal")).backward()
        >>> tuple(a.grad.shape)
        (3,)

    References:
        Williams 1992; Bengio, Léonard & Courville 2013, Theorem 1 and Corollary 1.
    """

    unbiased = True
    n_evals = 1

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
        b = bernoulli(p, single(noise))
        losses = losses_of(f, b)
        L, score = losses.detach().unsqueeze(-1), b - p
        baseline: Tensor | float = 0.0
        if self.baseline is not None:
            baseline = self.baseline.step([score], [L], update=self.adapting)
        return Estimate(losses, (L - baseline) * score)  # Cor. 1

"""The stochastic binary neuron (SBN; §3, Eq. 3, Theorem 1, Corollary 1)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from hardgate._base.arguments import one_of
from hardgate._base.precision import widen
from hardgate.functional import neurons
from hardgate.learning.baselines import BASELINES, Baseline
from hardgate.learning.records import Records
from hardgate.noise import uniform
from hardgate.units._law import bernoulli_law
from hardgate.units._unit import EvalMode, Law, NoiseTensors, Unit, single


class StochasticBinary(Unit):
    """h = 1 with probability σ(a), learning from the loss alone: no back-propagation into a.

    `hardgate.score_loss(model, losses)` adds the term whose gradient at `a` is
    (h - σ(a))(L - L̄_i), unbiased for any L̄_i that does not depend on h  (Theorem 1, Cor. 1).
    A backward pass that reaches h without that term raises: its gradient would be zero.

    In evaluation mode h = 1[a > threshold], differentiated as its mean σ(a).

    Args:
        baseline: L̄_i. `"optimal"`: the minimum-variance baseline of each unit, Cor. 1;
            `"mean"`: the mean loss; None: none. Or a `hardgate.baselines.Baseline`.
        decay: of the baseline's moving averages; None for 0.9, as the authors used. A `Baseline`
            has its own.
        eval_mode: see `hardgate.Unit`.

    Example:
        >>> import hardgate
        >>> unit = StochasticBinary()
        >>> a = torch.zeros(8, 3, requires_grad=True)
        >>> losses = unit(a).sum(-1)
        >>> (losses.mean() + hardgate.score_loss(unit, losses)).backward()
        >>> tuple(a.grad.shape)
        (8, 3)

    References:
        Bengio, Léonard & Courville 2013, §3; Williams 1992.
    """

    unbiased = True
    needs_loss = True
    binary = True
    off_gradient = "score"

    def __init__(
        self,
        baseline: Literal["optimal", "mean"] | Baseline | None = "optimal",
        *,
        decay: float | None = None,
        eval_mode: EvalMode = "threshold",
    ) -> None:
        super().__init__(eval_mode=eval_mode)
        if isinstance(baseline, str):
            made = BASELINES[one_of("baseline", baseline, tuple(BASELINES))]
            baseline = made(0.9 if decay is None else decay)
        elif baseline is not None and not isinstance(baseline, Baseline):
            raise TypeError(
                "baseline expected 'optimal', 'mean', None or a hardgate.baselines.Baseline, "
                f"got {type(baseline).__name__}."
            )
        elif baseline is not None and decay is not None:
            raise ValueError(
                f"decay expected a baseline by name, 'optimal' or 'mean', got {baseline!r}, which "
                f"has its own. Write StochasticBinary({type(baseline).__name__}(decay={decay!r}))."
            )
        self.baseline = baseline
        self.records = Records()

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return uniform(a, generator)

    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        return self.records.watch(a, neurons.stochastic_binary(a, single(noise)))

    def mean(self, a: Tensor) -> Tensor:
        return neurons.sigmoid(a)

    def gate(self, a: Tensor) -> Tensor:
        return neurons.threshold(a, self.threshold, sigmoid_derivative=True)

    def active_probability(self, a: Tensor) -> Tensor:
        return torch.sigmoid(widen(a)).to(a.dtype)

    def inactive_probability(self, a: Tensor) -> Tensor:
        return self.active_probability(-a)

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        return {"decay": None}  # the baseline has it

    def law(self, a: Tensor) -> Law:
        return bernoulli_law(a)

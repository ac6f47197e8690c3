"""What every stochastic neuron is: a module a → h with its mathematical facts as attributes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from hardgate._base.arguments import one_of
from hardgate._base.lazy_state import LazyState
from hardgate.learning.baselines import Baseline
from hardgate.learning.records import Records

EvalMode = Literal["threshold", "mean", "sample"]
OffGradient = Literal["zero", "score", "expert"]
NoiseTensors: TypeAlias = Tensor | tuple[Tensor, ...]
Law: TypeAlias = tuple[Tensor, Tensor]  # values [K, D] and their probabilities [K, D]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Unit(LazyState, ABC):
    """A stochastic neuron h = f(a, z)  (Eq. 1); units are the last axis of `a`.

    In training mode it samples. In evaluation mode it is deterministic: zero where `a` is at or
    below `threshold` (App. A.3), and the unit's deterministic counterpart above it.
    `eval_mode="mean"` gives E[h | a] instead, and `eval_mode="sample"` goes on sampling. Gradients
    are available in every mode.

    Facts, as attributes of the instance:

    - `unbiased`: the gradient at `a` is that of E[L], in expectation.
    - `needs_loss`: learns from `hardgate.score_loss`, not from back-propagation.
    - `binary`: h is 0 or 1, exactly.
    - `off_gradient`: what the gradient of an off unit needs. `"zero"`: nothing, it is zero;
      `"score"`: the scalar loss only; `"expert"`: ∂L/∂h, so whatever h gates must be
      evaluated even where it is off.
    - `never_off`: h is never zero, so there is nothing to skip, and no sparsity to control.
    - `own_objective`: h neither is nor relaxes a Bernoulli(σ(a)) variable, so its gradient is that
      of an objective of its own. Its bias can be measured, but its variance is not comparable.
    - `rectified_noise`: where h = max(0, a + scale·z) with z ~ N(0, 1) and plain back-propagation,
      the scale, else None. A `hardgate.Gater` then draws h in one pass of the kernels.
    - `starts_sparse`: the output weights of a `hardgate.Gater` with this unit start sparse.

    A unit with `needs_loss` keeps `records` and a `baseline` (see `StochasticBinary`), and its h
    is 1 with probability σ(a).

    A new unit implements `sample_noise`, `sample`, `mean`, `gate`, `active_probability` and
    `inactive_probability`. It may implement `law`, from which the lab computes exact gradients, and
    `probe`, where its gradient needs some off units only. Arguments of its constructor that are not
    attributes of the same names are returned by `constructor_arguments`, for `hardgate.save`.
    """

    unbiased: bool
    needs_loss: bool = False
    binary: bool
    off_gradient: OffGradient
    never_off: bool = False
    own_objective: bool = False
    starts_sparse: bool = False
    records: Records  # these two only where `needs_loss`
    baseline: Baseline | None
    threshold: Tensor

    natural_threshold: ClassVar[float] = 0.0

    def __init__(self, *, eval_mode: EvalMode = "threshold") -> None:
        super().__init__()
        self.eval_mode: EvalMode = one_of("eval_mode", eval_mode, get_args(EvalMode))
        threshold = torch.tensor(self.natural_threshold, dtype=torch.float32)  # not the default's
        self.register_buffer("threshold", threshold)

    @property
    def rectified_noise(self) -> float | None:
        """The scale of the noise in h = max(0, a + scale·z), z ~ N(0, 1); None for other units."""
        return None

    def forward(self, a: Tensor, noise: NoiseTensors | None = None) -> Tensor:
        """h for pre-activations `a`.

        Args:
            a: `[..., D]`, floating point.
            noise: what `sample_noise(a)` returns, to fix the draw; drawn here if None. Not
                used where the unit does not sample.

        Returns:
            h, of the shape and dtype of `a`.
        """
        self._check(a, noise)
        if self.training or self.eval_mode == "sample":
            return self.sample(a, self.sample_noise(a) if noise is None else noise)
        if self.eval_mode == "mean":
            return self.mean(a)
        return self.gate(a)

    @abstractmethod
    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
        """One draw of the noise that `unit(a, noise)` takes."""

    @abstractmethod
    def sample(self, a: Tensor, noise: NoiseTensors) -> Tensor:
        """h = f(a, noise)."""

    @abstractmethod
    def mean(self, a: Tensor) -> Tensor:
        """E[h | a], with the noise at a sigmoid's input at its mean (App. A.4)."""

    @abstractmethod
    def gate(self, a: Tensor) -> Tensor:
        """The deterministic counterpart: zero where a ≤ threshold."""

    @abstractmethod
    def active_probability(self, a: Tensor) -> Tensor:
        """P(h ≠ 0 | a)."""

    @abstractmethod
    def inactive_probability(self, a: Tensor) -> Tensor:
        """P(h = 0 | a), without the cancellation of 1 - P(h ≠ 0 | a)."""

    def probe(self, a: Tensor, noise: NoiseTensors | None) -> Tensor | None:
        """Which units must be evaluated for their gradient though they are off.

        `hardgate.Gater` asks this for its conditional layer, which skips all other off units.

        Args:
            a: pre-activations `[..., D]`.
            noise: what `unit(a, noise)` was given; None where it did not sample.

        Returns:
            1 for those, else 0, of the shape of `a`; values where h is on do not matter. None if
            no unit that is off is needed.
        """
        # In evaluation mode a unit that learns from the loss is back-propagated as its mean.
        back_propagated = self.off_gradient == "score" and noise is None
        needed = self.off_gradient == "expert" or back_propagated
        return torch.ones_like(a) if needed else None

    def law(self, a: Tensor) -> Law:
        """The values that h takes and their probabilities, both differentiable in `a`.

        Continuous parts are Gauss quadratures. For a hard threshold, whose own objective is
        piecewise constant, it is the law that its gradient stands in for: Bernoulli(σ(a)).

        Args:
            a: pre-activations `[D]`.

        Returns:
            values and probabilities, `[K, D]` each; the probabilities sum to 1 over K.
        """
        raise NotImplementedError(
            f"{type(self).__name__} expected a law to compute exact gradients, got none. Write in "
            "the class: def law(self, a): return values, probabilities, two tensors [K, D]."
        )

    def extra_repr(self) -> str:
        return "" if self.eval_mode == "threshold" else f"eval_mode={self.eval_mode!r}"

    def _check(self, a: Tensor, noise: NoiseTensors | None) -> None:
        if not isinstance(a, Tensor) or a.dtype not in _FLOATS:
            raise TypeError(
                f"{type(self).__name__} expected a floating point tensor of pre-activations "
                f"(float16, bfloat16, float32 or float64), got {_describe(a)}. "
                "Write unit(a.float())."
            )
        for z in noise if isinstance(noise, tuple) else (noise,):
            if z is None:
                continue
            if not isinstance(z, Tensor) or z.shape != a.shape or z.dtype not in _FLOATS:
                raise ValueError(
                    f"{type(self).__name__} expected floating point noise of the shape of a, "
                    f"{tuple(a.shape)}, got {_describe(z)}. Write unit(a, unit.sample_noise(a))."
                )


def _describe(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def single(noise: NoiseTensors) -> Tensor:
    """The one noise tensor of a unit that takes one."""
    if isinstance(noise, tuple):
        if len(noise) != 1:
            raise ValueError(
                f"expected one noise tensor, got {len(noise)}. Write unit(a, unit.sample_noise(a))."
            )
        return noise[0]
    return noise

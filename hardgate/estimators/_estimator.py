"""What every estimator is: f, a, noise → a value of E f(b) and an estimate of its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from hardgate._base.arguments import at_least, flag
from hardgate._base.distributed import active, count
from hardgate._base.lazy_state import LazyState
from hardgate._base.precision import widen
from hardgate.enumeration import losses_of
from hardgate.estimators._attach_gradient import attach_gradient
from hardgate.estimators._refusals import NOT_DIFFERENTIABLE, may_learn, needs_autograd
from hardgate.noise import uniform

Loss: TypeAlias = Callable[[Tensor], Tensor]
Noise: TypeAlias = Tensor | tuple[Tensor, ...]
Context: TypeAlias = Tensor | None


class Estimate(NamedTuple):
    """What an estimator returns.

    - `value`: `[...]`, an unbiased value of E f(b), with the graph of whatever f depends on;
    - `gradient`: `[..., D]`, the estimate g of ∂E f(b)/∂a: a number, without a graph.
    """

    value: Tensor
    gradient: Tensor


class Estimator(LazyState, ABC):
    """An estimator of ∂E f(b)/∂a, b_i ~ Bernoulli(σ(a_i)), that evaluates f as often as it likes.

    Facts, as attributes of the instance:

    - `unbiased`: the mean of g is the gradient.
    - `n_evals`: evaluations of f per gradient; a formula in D where it depends on the units.
    - `needs_gradient_of_f`: f must be differentiable in b, and is differentiated.
    - `needs_relaxed_f`: f is evaluated at points that are not binary.
    - `uses_context`: makes use of `context`, the input that the logits were computed from.
    - `state`: the names of the buffers that it learns from past samples, so that g stays
      unbiased: they are read first, and moved by the present samples afterwards. They are part of
      `state_dict()`; `adapt=False`, and evaluation mode, leave them alone.

    A new estimator implements `estimate`, and `sample_noise` where one uniform number per unit
    is not its noise.

    Args:
        adapt: False freezes what the estimator learns.
    """

    unbiased: bool
    n_evals: int | str
    needs_gradient_of_f: bool = False
    needs_relaxed_f: bool = False
    uses_context: bool = False
    state: tuple[str, ...] = ()

    def __init__(self, *, adapt: bool = True) -> None:
        super().__init__()
        self.adapt = flag("adapt", adapt)
        self._learning = True

    @property
    def adapting(self) -> bool:
        """Whether this call may move `state`."""
        return self.adapt and self.training and self._learning

    def learns_from(self, losses: Tensor) -> bool:
        """Whether this call may move `state`.

        An empty batch moves nothing, but still takes part when processes synchronise.
        """
        return self.adapting and (losses.numel() > 0 or active(self.synchronised))

    def share_of_mean(self, x: Tensor) -> Tensor:
        """What this process's numbers add to the mean of x over all processes."""
        return x.sum() / max(1.0, count(x, self.synchronised))

    def forward(
        self,
        f: Loss,
        logits: Tensor,
        *,
        generator: torch.Generator | None = None,
        context: Context = None,
    ) -> Tensor:
        """The value of E f(b), whose gradient at `logits` is the estimate. See `expectation`."""
        a, grad = widen(logits.detach()), torch.is_grad_enabled()
        self._learning = grad
        if self.needs_gradient_of_f:
            needs_autograd(type(self).__name__)
        if self.state and self.adapting:
            may_learn(type(self).__name__)
        with torch.enable_grad():  # some estimators differentiate f, under no_grad as well
            noise = self.sample_noise(a, generator)
            value, g = self._in_full_precision(f, a, noise, context)
            value = attach_gradient(value, g, logits if grad else logits.detach())
        return value if grad else value.detach()

    def _in_full_precision(self, f: Loss, a: Tensor, noise: Noise, context: Context) -> Estimate:
        """`estimate`, where `torch.autocast` acts inside f only."""
        device = a.device.type
        if not torch.is_autocast_enabled(device):
            return self.estimate(f, a, noise, context)
        dtype = torch.get_autocast_dtype(device)

        def cast(b: Tensor) -> Tensor:
            with torch.autocast(device, dtype):
                return f(b)

        with torch.autocast(device, enabled=False):
            return self.estimate(cast, a, noise, context)

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        """The noise of one estimate."""
        return uniform(a, generator)

    @abstractmethod
    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        """The formula.

        Args:
            f: samples `[..., D]` → losses `[...]`; further axes may come in front.
            a: logits `[..., D]`, at least fp32, without a graph.
            noise: what `sample_noise(a)` gave.
            context: the input that `a` was computed from, `[..., C]`, or None.
        """


class ManySamples(Estimator, ABC):
    """An estimator from `samples` evaluations of f at once, as `[samples, ..., D]`.

    Args:
        samples: K.
        adapt: see `Estimator`.
    """

    fewest: int = 2

    def __init__(self, samples: int, *, adapt: bool = True) -> None:
        super().__init__(adapt=adapt)
        self.samples = at_least("samples", samples, self.fewest)
        self.n_evals = samples

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return uniform(a.expand(self.samples, *a.shape), generator)

    def extra_repr(self) -> str:
        return f"samples={self.samples}"


def value_and_gradient(f: Loss, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x), with the graph of what f depends on, and ∇f(x), without one.

    Args:
        f: samples `[..., D]` → losses `[...]`.
        x: binary samples, or relaxed ones.
    """
    x = x.detach().requires_grad_()
    losses = losses_of(f, x)
    return losses, gradient_of(losses, x)


def gradient_of(losses: Tensor, x: Tensor, *, create_graph: bool = False) -> Tensor:
    """∇f(x), with a graph of its own where it is to be differentiated again."""
    gradient = None
    if losses.requires_grad:
        (gradient,) = torch.autograd.grad(
            losses.sum(), x, retain_graph=True, create_graph=create_graph, allow_unused=True
        )
    if gradient is None:
        raise TypeError(NOT_DIFFERENTIABLE)
    return gradient

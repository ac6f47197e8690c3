"""What every estimator is: f, a, noise → a value of E f(b) and an estimate of its gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from hardgate._base.distributed import active, total
from hardgate._base.lazy_state import LazyState
from hardgate._base.precision import widen
from hardgate.estimators._carry import carry
from hardgate.estimators._refusals import NOT_DIFFERENTIABLE, may_learn, needs_autograd
from hardgate.exact import losses_of
from hardgate.noise import uniform

Loss: TypeAlias = Callable[[Tensor], Tensor]
Noise: TypeAlias = Tensor | tuple[Tensor, ...]
Context: TypeAlias = Tensor | None


class Estimate(NamedTuple):
    """What one call finds out.

    - `value`: `[...]`, an unbiased value of E f(b), with the graph of whatever f depends on;
    - `gradient`: `[..., D]`, the estimate g of ∂E f(b)/∂a: a number, without a graph.
    """

    value: Tensor
    gradient: Tensor


class Estimator(LazyState, ABC):
    """An estimator of ∂E f(b)/∂a, b_i ~ Bernoulli(σ(a_i)), that evaluates f as often as it likes.

    Facts, right for the instance at hand:

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
        self.adapt = adapt
        self._learning = True

    @property
    def adapting(self) -> bool:
        """Whether this call may move `state`."""
        return self.adapt and self.training and self._learning

    def learns_from(self, losses: Tensor) -> bool:
        """Whether this call may move `state`: without examples, in step with who has some."""
        return self.adapting and (losses.numel() > 0 or active(self.synchronised))

    def count(self, x: Tensor) -> float:
        """How many numbers x has in all processes; 1 for none."""
        if not active(self.synchronised):
            return max(1, x.numel())
        return max(1.0, total(x.new_tensor(x.numel()), self.synchronised).item())

    def share_of_mean(self, x: Tensor) -> Tensor:
        """What this process's numbers add to the mean of x over all processes."""
        return x.sum() / self.count(x)

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
        if self._learning != grad:  # nn.Module takes 5 µs to set an attribute
            self._learning = grad
        if self.needs_gradient_of_f:
            needs_autograd(type(self).__name__)
        if self.state and self.adapting:
            may_learn(type(self).__name__)
        with nullcontext() if grad else torch.enable_grad():
            noise = self.sample_noise(a, generator)
            if grad:
                return self._uncast(f, a, noise, context, logits)
            return self._uncast(f, a, noise, context, logits.detach()).detach()

    def _uncast(self, f: Loss, a: Tensor, noise: Noise, context: Context, logits: Tensor) -> Tensor:
        """The formula in full precision also inside of `torch.autocast`, which is left to f."""
        device = a.device.type
        if not torch.is_autocast_enabled(device):
            return self.attach(f, a, noise, context, logits)
        dtype = torch.get_autocast_dtype(device)

        def cast(b: Tensor) -> Tensor:
            with torch.autocast(device, dtype):
                return f(b)

        with torch.autocast(device, enabled=False):
            return self.attach(cast, a, noise, context, logits)

    def attach(self, f: Loss, a: Tensor, noise: Noise, context: Context, logits: Tensor) -> Tensor:
        """The value, with the estimate as its gradient at `logits`."""
        return carry(*self.estimate(f, a, noise, context), logits)

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
        if not isinstance(samples, int) or samples < self.fewest:
            raise ValueError(
                f"{type(self).__name__} expected a whole number of at least {self.fewest} samples, "
                f"got {samples!r}. "
                f"Write {type(self).__name__}(samples={self.fewest})."
            )
        self.samples = samples
        self.n_evals = samples

    def sample_noise(self, a: Tensor, generator: torch.Generator | None = None) -> Noise:
        return uniform(a.expand(self.samples, *a.shape), generator)

    def extra_repr(self) -> str:
        return f"samples={self.samples}"


def sample(p: Tensor, u: Tensor) -> Tensor:
    """b = 1[u < p]."""
    return below(u.to(p.device), p)


def below(x: Tensor, y: Tensor, out: Tensor | None = None) -> Tensor:
    """1[x < y], as a number of y's dtype; in `out`, where `writable`."""
    if not writable():
        return (x < y).to(y.dtype)
    if out is None:
        out = torch.empty(0, dtype=y.dtype, device=y.device)
    return torch.lt(x, y, out=out)  # a fifth of the time of (x < y).to(y.dtype)


def writable() -> bool:
    """Whether results may go to memory that is there, which vmap and compilers have no rule for."""
    return not (functorch.get_dynamic_layer_stack_depth() or torch.compiler.is_compiling())


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

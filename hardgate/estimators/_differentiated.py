"""Estimators from K samples, f's losses and f's gradients there: DoubleCV and its kind.

∇f costs them no backward pass of its own. The samples enter f behind a node of the graph, and the
backward pass that carries the value's gradient to f's parameters brings ∇f there as well, times
what each example counts in the user's loss. Only then is g computed, and only then is learnt.

What else flows back through the samples, because f has kept something of its own that enters
another loss, cannot be told from ∇f. `one_pass = False` differentiates f beforehand instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from hardgate._base.distributed import active
from hardgate.estimators._carry import carry, eager, spoilt
from hardgate.estimators._estimator import (
    Context,
    Estimate,
    Loss,
    ManySamples,
    Noise,
    sample,
    value_and_gradient,
)
from hardgate.estimators._refusals import BATCHED, NOT_DIFFERENTIABLE, SECOND
from hardgate.exact import losses_of
from hardgate.units._unit import single

# Whether the graph of the running backward pass is kept; from torch 2.5 on it can be asked.
_kept_graph: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True
)
_LEAST = 2.0**24  # times the smallest number: a weight below has no inverse worth dividing by


class Seen(NamedTuple):
    """What an estimate is made of."""

    a: Tensor  # logits, [..., D]
    p: Tensor  # σ(a)
    b: Tensor  # samples, [K, ..., D]
    losses: Tensor  # f(b), [K, ...]
    gradient: Tensor  # ∇f(b), [K, ..., D]


class Differentiated(ManySamples, ABC):
    """An estimator that sees of f its losses and gradients at K independent samples.

    A new one implements `combine`.

    `one_pass`: ∇f comes with the backward pass of the value. Set it to False where tensors that f
    computed enter the loss besides the value: their gradient would be taken for a part of ∇f.
    """

    needs_gradient_of_f = True
    one_pass: bool = True

    @abstractmethod
    def combine(self, seen: Seen, *, learn: bool) -> Tensor:
        """g, `[..., D]`; with `learn`, what is learnt moves after it was read."""

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        p = torch.sigmoid(a)
        b = sample(p, single(noise))
        losses, gradient = value_and_gradient(f, b)
        seen = Seen(a, p, b, losses.detach(), gradient)
        return Estimate(losses.mean(0), self.combine(seen, learn=self.adapting))

    def attach(self, f: Loss, a: Tensor, noise: Noise, context: Context, logits: Tensor) -> Tensor:
        # Processes that exchange what they learn have to do so in step with one another.
        if not self.one_pass or not eager() or active(self.synchronised):
            return carry(*self.estimate(f, a, noise, context), logits)
        call = _Call(self, learn=self.adapting)
        b: Tensor = _Samples.apply(single(noise), a, logits, call)  # type: ignore[no-untyped-call]
        if not logits.requires_grad:  # f may still differentiate by itself
            return losses_of(f, b.requires_grad_()).mean(0) + spoilt(a)
        losses = losses_of(f, b)
        if not losses.requires_grad:
            raise TypeError(NOT_DIFFERENTIABLE)
        value: Tensor = _Value.apply(losses, b, a, call)  # type: ignore[no-untyped-call]
        return value


@dataclass
class _Call:
    """What the two nodes of one call tell each other."""

    estimator: Differentiated
    learn: bool
    task: int = -1  # the backward pass that went through the value, and what it found there:
    losses: Tensor | None = None
    weight: Tensor | None = None  # of each example in what is differentiated, [...]
    estimate: Tensor | None = None  # g, where another backward pass may ask for it
    known: Tensor | None = None  # of which examples


class _Value(torch.autograd.Function):
    """mean_k losses, NaN for examples with a NaN logit."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, b: Tensor, a: Tensor, call: _Call) -> Tensor:
        ctx.call, ctx.samples = call, len(losses)
        ctx.save_for_backward(losses)
        return losses.mean(0) + spoilt(a)

    @staticmethod
    def backward(ctx: Any, dv: Tensor) -> tuple[Tensor | None, ...]:
        if functorch.is_legacy_batchedtensor(dv) or functorch.is_batchedtensor(dv):
            raise RuntimeError(BATCHED)
        call, (losses,) = ctx.call, ctx.saved_tensors
        call.task, call.losses = torch._C._current_graph_task_id(), losses.detach()
        call.weight = dv.detach()
        # Nothing goes to b directly: but its node runs, and after this one, whatever f does.
        return (dv / ctx.samples).expand(ctx.samples, *dv.shape), None, None, None


class _Samples(torch.autograd.Function):
    """b = 1[u < σ(a)], through which ∇f(b) comes back."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, a: Tensor, logits: Tensor, call: _Call) -> Tensor:
        ctx.call = call
        ctx.set_materialize_grads(False)
        p = torch.sigmoid(a)
        b = sample(p, u)
        ctx.save_for_backward(b, a, p)
        return b

    @staticmethod
    def backward(ctx: Any, db: Tensor | None) -> tuple[Tensor | None, ...]:
        call = ctx.call
        if call.task != torch._C._current_graph_task_id():
            return None, None, None, None  # not the value's, but of something that f has kept
        if torch.is_grad_enabled():
            raise RuntimeError(SECOND)
        if db is None:
            raise TypeError(NOT_DIFFERENTIABLE)
        b, a, p = ctx.saved_tensors
        with torch.autocast(a.device.type, enabled=False):
            g = _estimate(call, a, p, b, db)
        return None, None, call.weight.unsqueeze(-1) * g, None


def _estimate(call: _Call, a: Tensor, p: Tensor, b: Tensor, db: Tensor) -> Tensor:
    """g, from db, which is ∇f(b) times the weight of its example over K.

    Examples of no weight are not looked at, as their ∇f is not known, nor those that an earlier
    backward pass has seen: what was learnt since knows their samples.
    """
    losses, weight = call.losses, call.weight
    assert losses is not None
    assert weight is not None
    new = ~(weight.abs() <= _LEAST * torch.finfo(weight.dtype).tiny)  # so is a NaN
    if call.known is not None:
        new &= ~call.known
    db = db * (len(b) / weight).unsqueeze(-1).to(db.dtype)
    if new.all():
        g = call.estimator.combine(Seen(a, p, b, losses, db), learn=call.learn)
    else:
        g = torch.zeros_like(a) if call.estimate is None else call.estimate.clone()
        if new.any():
            seen = Seen(a[new], p[new], b[:, new], losses[:, new], db[:, new])
            g[new] = call.estimator.combine(seen, learn=call.learn).to(g.dtype)
    if _kept_graph():
        new = new & weight.isfinite()  # what is not may be asked for again
        call.estimate, call.known = g, new if call.known is None else new | call.known
    return g

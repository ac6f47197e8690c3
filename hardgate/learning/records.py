"""What a unit that learns from the loss remembers between its forward pass and `score_loss`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad

HOW = "(losses.mean() + hardgate.score_loss(model, losses)).backward()"

_FORGOTTEN = (
    "a backward pass reached a unit that learns from the loss (needs_loss) without the term that "
    "score_loss gives for this forward pass: its gradient would be zero. With losses of one "
    f"number per example (reduction='none') write\n    {HOW}\n"
    "If its loss only arrives later, pass h.detach() on to the rest of the network."
)
_REENTRANT = (
    "reentrant activation checkpointing hides a unit with needs_loss from score_loss. "
    "Write checkpoint(..., use_reentrant=False)."
)
_FORWARD_MODE = (
    "forward-mode differentiation (jvp, jacfwd, hessian) of a unit with needs_loss would be zero. "
    "Write torch.func.grad, with score_loss in the function that it differentiates."
)
_HIDDEN = (
    "a unit with needs_loss expected one torch.func.grad around it, innermost, got a vmap inside "
    "the differentiation or a second derivative. Write vmap(grad(f)) for one gradient per example, "
    "give the unit the whole batch instead of mapping it, or run it under torch.no_grad()."
)
_SECOND = (
    "score_loss has a first derivative only; that of its gradient would be wrong. Write\n"
    f"    {HOW}\nwithout create_graph=True."
)
_COMPILED = (
    "torch.compile(fullgraph=True) expected no torch.func transform around a unit with needs_loss. "
    "Write torch.compile without fullgraph=True: this part then runs as it is."
)
_ENDED = (
    "score_loss expected calls of this forward pass, got one from inside a torch.func transform "
    "that has ended. Call score_loss in the function that is transformed."
)
_CHANGED = (
    "score_loss expected a and h as the unit left them, got one that was changed in place since. "
    "Write h = h * mask, not h *= mask."
)
_LIMIT = 100_000  # forward passes; beyond this nobody is going to call score_loss


class Ticket:
    """Whether the backward pass of the score term that a call waits for has begun."""

    paid = False


class Call(NamedTuple):
    """One sampled forward pass, linked to the one before it.

    (A list that is appended to would be compiled anew for each of its lengths.)
    """

    a: Tensor
    h: Tensor  # detached
    version: int | None  # how often a and h were changed in place; None for copies of them
    due: Ticket | Tensor  # compiled: a zero that the score term has to depend on
    before: Call | None

    def check(self) -> None:
        """Refuse what can no longer be charged."""
        if self.version is None:
            return
        if functorch.unwrap_if_dead(self.a) is not self.a:
            raise RuntimeError(_ENDED)
        if self.version != self.a._version + self.h._version:
            raise RuntimeError(_CHANGED)

    @property
    def transformed(self) -> bool:
        """Whether it was made inside a `torch.func` transform."""
        return self.version is not None and functorch.is_functorch_wrapped_tensor(self.a)


class Records:
    """The sampled calls since the last `score_loss`. Only where a gradient is wanted.

    Copies and pickles of a model start without records: those belong to a graph that is not
    copied.
    """

    def __init__(self) -> None:
        self.last: Call | None = None
        self.count = 0
        self.called = False  # since the calls were last taken, with or without a gradient

    def watch(self, a: Tensor, h: Tensor) -> Tensor:
        """Record the call; return an h whose backward pass insists on `score_loss`."""
        if forward_ad._current_level >= 0:
            raise RuntimeError(_FORWARD_MODE)
        if torch.compiler.is_compiling():
            return self._watch_compiled(a, h)
        wanted = torch.is_grad_enabled() and _gradient_wanted(a)
        if wanted and torch._C._current_graph_task_id() != -1:
            # Inside a backward pass: a checkpoint computes the forward again. Non-reentrant
            # ones never back-propagate through this copy, the record of the first pass serves.
            h.register_hook(_refuse_reentrant)
            return h
        self.called = True
        if not wanted:
            return h
        self.count += 1
        if self.count > _LIMIT:
            raise RuntimeError(
                f"{_LIMIT} forward passes without score_loss. Write\n    {HOW}\n"
                "or run under torch.no_grad(), or drop them with hardgate.clear_scores(model)."
            )
        ticket = Ticket()
        self.last = Call(a, h.detach(), a._version + h._version, ticket, self.last)

        def insist(_: Tensor) -> None:
            if not ticket.paid:
                self.clear()
                raise RuntimeError(_FORGOTTEN)

        h.register_hook(insist)
        return h

    def _watch_compiled(self, a: Tensor, h: Tensor) -> Tensor:
        self.called = True
        if not torch.is_grad_enabled():
            return h
        if functorch.get_dynamic_layer_stack_depth():
            raise RuntimeError(_COMPILED)
        if not a.requires_grad:
            return h
        watched: Tensor
        watched, due = _await_score(h.detach(), a)
        self.last = Call(a.clone(), h.detach(), None, due, self.last)
        return watched

    def take(self) -> list[Call]:
        """The calls so far, which are forgotten here."""
        calls, call = [], self.last
        while call is not None:
            calls.append(call)
            call = call.before
        self.clear()
        return calls[::-1]

    def clear(self) -> None:
        """Forget the calls so far; a backward pass through them goes on being refused."""
        self.last, self.count, self.called = None, 0, False

    def __reduce__(self) -> tuple[type[Records], tuple[()]]:
        return Records, ()


def pay(calls: list[Call], term: Tensor) -> Tensor:
    """`term`, such that its backward pass allows that of the calls.

    It was made after their h, and autograd goes backward in order of making: it comes first.
    """
    tickets = [call.due for call in calls if isinstance(call.due, Ticket)]
    for call in calls:
        if isinstance(call.due, Tensor):
            term = term + call.due
    if tickets:
        term.register_hook(lambda gradient: _pay(tickets, gradient))
    return term


def _pay(tickets: list[Ticket], gradient: Tensor) -> None:
    if torch.is_grad_enabled() and not functorch.is_functorch_wrapped_tensor(gradient):
        raise RuntimeError(_SECOND)
    for ticket in tickets:
        ticket.paid = True


def _gradient_wanted(a: Tensor) -> bool:
    """Whether `a` is differentiated; refuses where a hook on h would never be called."""
    if not functorch.is_functorch_wrapped_tensor(a):
        return a.requires_grad
    levels, base = [a], functorch.get_unwrapped(a)
    while functorch.is_functorch_wrapped_tensor(base):
        levels.append(base)
        base = functorch.get_unwrapped(base)
    mapped = all(functorch.is_batchedtensor(t) for t in levels)
    if any(t.requires_grad for t in levels[1:]) or (mapped and base.requires_grad):
        raise RuntimeError(_HIDDEN)
    return a.requires_grad


def _refuse_reentrant(_: Tensor) -> None:
    raise RuntimeError(_REENTRANT)


# Hooks cannot be traced. A compiled graph carries the same check as an operation that returns h
# and a zero: in the backward pass, a gradient at h has to come with one at the zero.


@torch.library.custom_op("hardgate::await_score", mutates_args=())
def _await_score(h: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return h.clone(), torch.zeros((), device=h.device)


@_await_score.register_fake
def _(h: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(h), torch.empty((), device=h.device)


@torch.library.custom_op("hardgate::check_score", mutates_args=())
def _check_score(gradient: Tensor, paid: Tensor) -> Tensor:
    if not paid and gradient.any():
        raise RuntimeError(_FORGOTTEN)
    return torch.zeros_like(gradient)


@_check_score.register_fake
def _(gradient: Tensor, paid: Tensor) -> Tensor:
    return torch.empty_like(gradient)


def _backward(ctx: Any, gradient: Tensor, paid: Tensor) -> tuple[None, Tensor]:
    return None, torch.ops.hardgate.check_score(gradient, paid)


_await_score.register_autograd(_backward)

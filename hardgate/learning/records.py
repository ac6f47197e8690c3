"""What a unit that learns from the loss remembers between its forward pass and `score_loss`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from hardgate._base.torch_state import (
    backward_pass,
    compiling,
    forward_mode,
    is_batched,
    is_wrapped,
    outlived,
    transforming,
    unwrapped,
    version,
)

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


class ScoreTerm:
    """Whether the backward pass has reached the score term of a call."""

    reached = False


class Call(NamedTuple):
    """One sampled forward pass, linked to the one before it.

    (torch.compile would compile anew for each length of a list.)
    """

    a: Tensor
    h: Tensor  # detached
    version: int | None  # how often a and h were changed in place; None for copies of them
    score_term: ScoreTerm | Tensor  # compiled: a zero that the score term must depend on
    before: Call | None

    def check(self) -> None:
        """Refuse a call that losses can no longer be assigned to."""
        if self.version is None:
            return
        if outlived(self.a):
            raise RuntimeError(_ENDED)
        if self.version != version(self.a) + version(self.h):
            raise RuntimeError(_CHANGED)

    @property
    def transformed(self) -> bool:
        """Whether it was made inside a `torch.func` transform."""
        return self.version is not None and is_wrapped(self.a)


class Records:
    """The sampled calls since the last `score_loss`, kept only where a gradient is wanted.

    Copies and pickles of a model start without records, as they belong to a graph that is not
    copied.
    """

    def __init__(self) -> None:
        self.last: Call | None = None
        self.count = 0
        self.called = False  # since the calls were last taken, with or without a gradient

    def watch(self, a: Tensor, h: Tensor) -> Tensor:
        """Record the call; return an h whose backward pass insists on `score_loss`."""
        if forward_mode():
            raise RuntimeError(_FORWARD_MODE)
        if compiling():
            return self._watch_compiled(a, h)
        wanted = torch.is_grad_enabled() and _gradient_wanted(a)
        if wanted and backward_pass() != -1:
            # Inside a backward pass, a checkpoint computes the forward pass again. Non-reentrant
            # ones never back-propagate through this copy: the record of the first pass is used.
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
        term = ScoreTerm()
        self.last = Call(a, h.detach(), version(a) + version(h), term, self.last)

        def insist(_: Tensor) -> None:
            if not term.reached:
                self.clear()
                raise RuntimeError(_FORGOTTEN)

        h.register_hook(insist)
        return h

    def _watch_compiled(self, a: Tensor, h: Tensor) -> Tensor:
        self.called = True
        if not torch.is_grad_enabled():
            return h
        if transforming():
            raise RuntimeError(_COMPILED)
        if not a.requires_grad:
            return h
        watched: Tensor
        watched, zero = _await_score(h.detach(), a)
        self.last = Call(a.clone(), h.detach(), None, zero, self.last)
        return watched

    def take(self) -> list[Call]:
        """Return the calls so far, and forget them."""
        calls, call = [], self.last
        while call is not None:
            calls.append(call)
            call = call.before
        self.clear()
        return calls[::-1]

    def clear(self) -> None:
        """Forget the calls so far; a backward pass through them is still refused."""
        self.last, self.count, self.called = None, 0, False

    def __reduce__(self) -> tuple[type[Records], tuple[()]]:
        return Records, ()


def allow_backward(calls: list[Call], term: Tensor) -> Tensor:
    """`term`, whose backward pass allows the backward pass of the calls.

    It was made after their h, and autograd goes backward in order of making: it comes first.
    """
    marks = [call.score_term for call in calls if isinstance(call.score_term, ScoreTerm)]
    for call in calls:
        if isinstance(call.score_term, Tensor):
            term = term + call.score_term
    if marks:
        term.register_hook(lambda gradient: _mark_reached(marks, gradient))
    return term


def _mark_reached(marks: list[ScoreTerm], gradient: Tensor) -> None:
    if torch.is_grad_enabled() and not is_wrapped(gradient):
        raise RuntimeError(_SECOND)
    for mark in marks:
        mark.reached = True


def _gradient_wanted(a: Tensor) -> bool:
    """Whether `a` is differentiated; refuses where a hook on h would never be called."""
    if not is_wrapped(a):
        return a.requires_grad
    levels, base = [a], unwrapped(a)
    while is_wrapped(base):
        levels.append(base)
        base = unwrapped(base)
    mapped = all(is_batched(t) for t in levels)
    if any(t.requires_grad for t in levels[1:]) or (mapped and base.requires_grad):
        raise RuntimeError(_HIDDEN)
    return a.requires_grad


def _refuse_reentrant(_: Tensor) -> None:
    raise RuntimeError(_REENTRANT)


# Hooks cannot be traced. In a compiled graph, an operation that returns h and a zero makes the same
# check: in the backward pass, a gradient at h must come with one at the zero.


@torch.library.custom_op("hardgate::await_score", mutates_args=())
def _await_score(h: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return h.clone(), torch.zeros((), device=h.device)


@_await_score.register_fake
def _(h: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(h), torch.empty((), device=h.device)


@torch.library.custom_op("hardgate::check_score", mutates_args=())
def _check_score(gradient: Tensor, reached: Tensor) -> Tensor:
    if not reached and gradient.any():
        raise RuntimeError(_FORGOTTEN)
    return torch.zeros_like(gradient)


@_check_score.register_fake
def _(gradient: Tensor, reached: Tensor) -> Tensor:
    return torch.empty_like(gradient)


def _backward(ctx: Any, gradient: Tensor, reached: Tensor) -> tuple[None, Tensor]:
    return None, torch.ops.hardgate.check_score(gradient, reached)


_await_score.register_autograd(_backward)

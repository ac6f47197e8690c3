"""∇f from the backward pass of the value itself: the same estimates, at one pass instead of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hardgate import ESTIMATORS, exact_gradient, expectation
from hardgate.estimators import DoubleCV
from hardgate.estimators._differentiated import Differentiated
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

NAMES = [name for name, cls in ESTIMATORS.items() if issubclass(cls, Differentiated)]
each = pytest.mark.parametrize("name", NAMES)
B, D = 6, 5
WEIGHTS = torch.tensor([0.3, -2.0, 1e-6, 1.0, 7.0, 1e5])


def logits() -> Tensor:
    return torch.randn(B, D, generator=torch.Generator().manual_seed(1)).requires_grad_()


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(2)


def problem() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """f, and a parameter of f."""
    theta = torch.linspace(-1, 2, D).requires_grad_()
    return lambda b: torch.sin((b * theta).sum(-1)) + 3, theta


def trained(name: str) -> Differentiated:
    """An estimator that has learnt a little, so that every part of its formula is at work."""
    estimator = ESTIMATORS[name]()
    f, _ = problem()
    for k in range(5):
        generator = torch.Generator().manual_seed(10 + k)
        expectation(f, logits(), estimator, generator=generator).sum().backward()
    assert isinstance(estimator, Differentiated)
    return estimator


def at_once(name: str, rows: Tensor | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """g by the definition, and the state after it, of all examples or some."""
    estimator, (f, _) = trained(name), problem()
    a = logits().detach()
    noise = estimator.sample_noise(a, seeded())
    assert isinstance(noise, Tensor)
    if rows is not None:
        a, noise = a[rows], noise[:, rows]
    estimator._learning = True
    g = estimator.estimate(f, a, noise).gradient
    return g, {k: v.clone() for k, v in estimator.state_dict().items()}


def test_these_are_all_that_differentiate_at_samples() -> None:
    assert set(NAMES) == {"DoubleCV", "RODEO", "QuadraticCV"}


@each
def test_the_gradient_is_that_of_the_definition(name: str) -> None:
    """Whatever each example counts; f's parameters get theirs."""
    estimator, (f, theta), a = trained(name), problem(), logits()
    value = expectation(f, a, estimator, generator=seeded())
    (WEIGHTS * value).sum().backward()
    g, state = at_once(name)
    torch.testing.assert_close(a.grad, WEIGHTS.unsqueeze(-1) * g, rtol=2e-4, atol=1e-5)
    for key, moved in estimator.state_dict().items():
        torch.testing.assert_close(moved, state[key], rtol=1e-4, atol=1e-5)
    noise = estimator.sample_noise(a.detach(), seeded())
    assert isinstance(noise, Tensor)
    b = (noise < torch.sigmoid(a.detach())).float()
    (expected,) = torch.autograd.grad((WEIGHTS * f(b).mean(0)).sum(), theta)
    torch.testing.assert_close(theta.grad, expected)


@each
def test_one_backward_pass_through_f(name: str) -> None:
    passes = 0

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, b: Tensor) -> Tensor:
            return b.square()

        @staticmethod
        def backward(ctx: Any, db: Tensor) -> Tensor:
            nonlocal passes
            passes += 1
            return 2 * db

    def f(b: Tensor) -> Tensor:
        squared: Tensor = Counted.apply(b)  # type: ignore[no-untyped-call]
        return squared.sum(-1)

    a = logits()
    value = expectation(f, a, ESTIMATORS[name]())
    assert passes == 0
    value.mean().backward()
    assert passes == 1
    assert a.grad is not None


@each
def test_examples_that_do_not_count_are_left_out(name: str) -> None:
    """A mask, and weights so small that dividing by them would overflow."""
    weights = torch.tensor([1.0, 0.0, 2.0, 1e-42, -0.0, 3.0])
    rows = weights >= 1
    estimator, (f, _), a = trained(name), problem(), logits()
    (weights * expectation(f, a, estimator, generator=seeded())).sum().backward()
    g, state = at_once(name, rows)
    assert a.grad is not None
    torch.testing.assert_close(a.grad[rows], weights[rows, None] * g, rtol=1e-4, atol=1e-5)
    assert not a.grad[~rows].any()
    for key, moved in estimator.state_dict().items():
        torch.testing.assert_close(moved, state[key], rtol=1e-4, atol=1e-5)


@each
def test_nothing_counts(name: str) -> None:
    estimator, (f, _), a = trained(name), problem(), logits()
    before = {k: v.clone() for k, v in estimator.state_dict().items()}
    (0 * expectation(f, a, estimator)).sum().backward()
    assert a.grad is not None
    assert not a.grad.any()
    assert all(torch.equal(v, before[k]) for k, v in estimator.state_dict().items())


@each
def test_a_weight_that_is_not_a_number_is_seen(name: str) -> None:
    weights = torch.tensor([1.0, torch.nan, 1.0, 1.0, 1.0, 1.0])
    estimator, (f, _), a = trained(name), problem(), logits()
    (weights * expectation(f, a, estimator)).sum().backward()
    assert a.grad is not None
    assert a.grad[1].isnan().all()
    assert a.grad[[0, 2, 3, 4, 5]].isfinite().all()
    assert all(v.isfinite().all() for v in estimator.state_dict().values())


@each
def test_a_second_backward_pass_has_the_same_estimate(name: str) -> None:
    """Not one whose coefficients have learnt from the very samples: that would be biased."""
    estimator, (f, _), a = trained(name), problem(), logits()
    value = expectation(f, a, estimator, generator=seeded())
    (first,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
    state = {k: v.clone() for k, v in estimator.state_dict().items()}
    (again,) = torch.autograd.grad((2 * value).sum(), a)
    torch.testing.assert_close(again, 2 * first)
    assert all(torch.equal(v, state[k]) for k, v in estimator.state_dict().items())


@each
def test_example_by_example(name: str) -> None:
    """One backward pass for each: every one of them gets its gradient."""
    estimator, (f, _), a = trained(name).eval(), problem(), logits()
    value = expectation(f, a, estimator, generator=seeded())
    rows = [torch.autograd.grad(value[k], a, retain_graph=True)[0] for k in range(B)]
    g, _ = at_once(name)
    torch.testing.assert_close(sum(rows), g, rtol=1e-4, atol=1e-5)
    for k, row in enumerate(rows):
        assert not row[[j for j in range(B) if j != k]].any()


@each
def test_it_learns_in_the_backward_pass_and_in_the_mode_of_the_call(name: str) -> None:
    estimator, (f, _) = ESTIMATORS[name](), problem()
    value = expectation(f, logits(), estimator)
    assert not any(v.any() for v in estimator.state_dict().values())
    estimator.eval()
    value.sum().backward()
    assert any(v.any() for v in estimator.state_dict().values())
    state = {k: v.clone() for k, v in estimator.state_dict().items()}
    value = expectation(f, logits(), estimator)
    estimator.train()
    value.sum().backward()
    assert all(torch.equal(v, state[k]) for k, v in estimator.state_dict().items())


@each
@pytest.mark.parametrize("grad", [True, False])
def test_without_a_gradient_at_the_logits_f_is_only_evaluated(name: str, grad: bool) -> None:
    """Counts need no derivative then, and f's parameters get theirs."""
    estimator, (f, theta) = ESTIMATORS[name](), problem()
    a = logits().detach()
    with torch.set_grad_enabled(grad):
        value = expectation(f, a, estimator)
        counted = expectation(lambda b: b.sum(-1).long(), a, estimator)
    assert counted.isfinite().all()
    assert value.requires_grad == grad
    if grad:
        value.sum().backward()
        assert theta.grad is not None


def test_an_f_that_does_not_look_at_b_is_told_so() -> None:
    """At once where nothing can be differentiated, else when it is."""
    theta = torch.ones(D, requires_grad=True)
    with pytest.raises(TypeError, match="expected f to be differentiable in b"):
        expectation(lambda b: b.detach().sum(-1), logits(), DoubleCV())
    value = expectation(lambda b: (b.detach() * theta).sum(-1), logits(), DoubleCV())
    with pytest.raises(TypeError, match="expected f to be differentiable in b"):
        value.sum().backward()


def biased(estimator: Differentiated, penalty: Callable[[Tensor], Tensor]) -> float:
    """The largest |z| of the gradient where a penalty on what f has kept is in the loss, too."""
    point = torch.tensor([0.4, -1.0, 0.2])
    a = point.expand(40_000, 3).clone().requires_grad_()
    kept: list[Tensor] = []

    def f(b: Tensor) -> Tensor:
        kept.append(b * 1.0)
        return (b.sum(-1) - 1.2).square()

    value = expectation(f, a, estimator, generator=seeded())
    (g,) = torch.autograd.grad(value.sum() + penalty(kept[0]), a)
    return largest_z(g, exact_gradient(f, point))


def test_what_f_keeps_is_no_part_of_f() -> None:
    """Alone it does not bias the estimate, and nothing does where f is differentiated beforehand.

    A penalty on the mean over the samples is the limit that is documented, and the control.
    """

    def joined(b: Tensor) -> Tensor:
        return (b.mean(0) - 0.3).square().sum()

    assert biased(DoubleCV(adapt=False), lambda b: b.square().sum()) < Z_LEVEL
    assert biased(DoubleCV(adapt=False), joined) > Z_WRONG
    beforehand = DoubleCV(adapt=False)
    beforehand.one_pass = False
    assert biased(beforehand, joined) < Z_LEVEL


@each
def test_only_the_value_brings_a_gradient(name: str) -> None:
    """A backward pass of something that f has kept leaves the logits alone, before and after."""
    estimator, a = trained(name), logits()
    kept: list[Tensor] = []

    def f(b: Tensor) -> Tensor:
        kept.append(b * 1.0)
        return b.sum(-1).sin()

    value = expectation(f, a, estimator, generator=seeded())
    state = {k: v.clone() for k, v in estimator.state_dict().items()}
    before = torch.autograd.grad(kept[0].sum(), a, retain_graph=True, allow_unused=True)
    assert all(torch.equal(v, state[k]) for k, v in estimator.state_dict().items())
    (g,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
    after = torch.autograd.grad(kept[0].square().sum(), a, allow_unused=True)
    assert g.any()
    assert [*before, *after] == [None, None]


@each
def test_a_gradient_penalty_on_the_parameters_of_f(name: str) -> None:
    """It goes back through the samples, and not through the value."""
    estimator, (f, theta), a = trained(name), problem(), logits()
    value = expectation(f, a, estimator)
    (first,) = torch.autograd.grad(value.mean(), theta, create_graph=True)
    first.square().sum().backward()
    assert theta.grad is not None
    assert theta.grad.any()
    assert a.grad is None or not a.grad.any()


@each
def test_a_checkpoint_that_draws_anew_has_the_losses_of_what_it_drew(name: str) -> None:
    """With a generator of one's own a checkpoint has other samples in the backward pass."""
    generator, point = seeded(), torch.tensor([0.4, -1.0, 0.2])
    a = point.expand(20_000, 3).clone().requires_grad_()
    estimator = ESTIMATORS[name](adapt=False)

    def f(b: Tensor) -> Tensor:
        return (b.sum(-1) - 1.2).square()

    value = checkpoint(
        lambda x: expectation(f, x, estimator, generator=generator), a, use_reentrant=False
    )
    (g,) = torch.autograd.grad(value.sum(), a)
    assert largest_z(g, exact_gradient(f, point)) < Z_LEVEL


def test_losses_that_are_changed_before_the_backward_pass_are_refused() -> None:
    kept: list[Tensor] = []

    def f(b: Tensor) -> Tensor:
        losses = b.sum(-1)
        kept.append(losses.detach())
        return losses

    value = expectation(f, logits(), DoubleCV())
    kept[0].mul_(10)
    with pytest.raises(RuntimeError, match="inplace operation"):
        value.sum().backward()


@each
@pytest.mark.parametrize("last", [0.0, 1.0])
def test_losses_in_double_precision(name: str, last: float) -> None:
    f, _ = problem()
    a = logits()
    weights = torch.ones(B)
    weights[-1] = last
    (weights * expectation(lambda b: f(b).double(), a, trained(name))).sum().backward()
    assert a.grad is not None
    assert a.grad.dtype is torch.float32
    assert a.grad.isfinite().all()


def test_a_weight_that_was_infinite_is_asked_for_again() -> None:
    estimator, (f, _), a = trained("DoubleCV"), problem(), logits()
    value = expectation(f, a, estimator)
    weights = torch.ones(B)
    weights[0] = torch.inf
    torch.autograd.grad((weights * value).sum(), a, retain_graph=True)
    (g,) = torch.autograd.grad(value.sum(), a)
    assert g.isfinite().all()


@pytest.mark.parametrize("grad", [True, False])
def test_f_may_differentiate_by_itself(grad: bool) -> None:
    def f(b: Tensor) -> Tensor:
        losses = (b - 0.3).square().sum(-1)
        (slope,) = torch.autograd.grad(losses.sum(), b, create_graph=True)
        return losses + slope.square().sum(-1)

    with torch.set_grad_enabled(grad):
        assert expectation(f, logits(), DoubleCV()).isfinite().all()
        assert expectation(f, logits().detach(), DoubleCV()).isfinite().all()


def test_several_backward_passes_at_once_are_refused() -> None:
    f, _ = problem()
    a, estimator = logits(), DoubleCV(adapt=False)
    value = expectation(f, a, estimator)
    with pytest.raises(RuntimeError, match="one backward pass at a time"):
        torch.autograd.grad(value, a, torch.eye(B), is_grads_batched=True)
    estimator.one_pass = False
    value = expectation(f, a, estimator)
    (rows,) = torch.autograd.grad(value, a, torch.eye(B), is_grads_batched=True)
    assert rows.shape == (B, B, D)

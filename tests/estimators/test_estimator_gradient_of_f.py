"""Estimators that differentiate f at their samples: DoubleCV and its kind, in a user's graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hardgate import ESTIMATORS, exact_gradient, expectation
from hardgate.estimators import DoubleCV, Estimate, Estimator
from hardgate.estimators._estimator import Context, Loss, Noise
from tests.support.estimator_cases import seeded
from tests.support.statistics import Z_LEVEL, Z_WRONG, largest_z

NAMES = [n for n, cls in ESTIMATORS.items() if cls.needs_gradient_of_f and not cls.needs_relaxed_f]
each = pytest.mark.parametrize("name", NAMES)
B, D = 6, 5
POINT = torch.tensor([0.4, -1.0, 0.2])


def logits() -> Tensor:
    return torch.randn(B, D, generator=seeded(1)).requires_grad_()


def problem() -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """f, and a parameter of f."""
    theta = torch.linspace(-1, 2, D).requires_grad_()
    return lambda b: torch.sin((b * theta).sum(-1)) + 3, theta


def trained(name: str) -> Estimator:
    """An estimator that has learnt a little, so that every part of its formula is at work."""
    estimator = ESTIMATORS[name]()
    f, _ = problem()
    for k in range(5):
        expectation(f, logits(), estimator, generator=seeded(10 + k)).sum().backward()
    return estimator


def test_these_are_all_that_differentiate_at_samples() -> None:
    assert set(NAMES) == {"DoubleCV", "RODEO", "QuadraticCV"}


@each
def test_what_runs_is_estimate(name: str) -> None:
    """The gradient, the value and the state after it are those of the documented method."""
    ours, defined, (f, _) = trained(name), trained(name), problem()
    a = logits()
    value = expectation(f, a, ours, generator=seeded(2))
    (g,) = torch.autograd.grad(value.sum(), a)
    noise = defined.sample_noise(a.detach(), seeded(2))
    expected = defined.estimate(f, a.detach(), noise)
    assert torch.equal(value, expected.value)
    assert torch.equal(g, expected.gradient)
    for key, moved in ours.state_dict().items():
        assert torch.equal(moved, defined.state_dict()[key])


# --- an f that keeps something, which enters the loss elsewhere -------------------------------


class Kept(DoubleCV):
    """∇f of the value and of a penalty on what f kept, together: the negative control."""

    def estimate(self, f: Loss, a: Tensor, noise: Noise, context: Context = None) -> Estimate:
        return super().estimate(lambda b: f(b) + 10 * joined(b) - 10 * joined(b.detach()), a, noise)


def biased(estimator: Estimator, penalty: Callable[[Tensor], Tensor]) -> float:
    """The largest |z| of the gradient where a penalty on what f has kept is in the loss, too."""
    a = POINT.expand(40_000, 3).clone().requires_grad_()
    kept: list[Tensor] = []

    def f(b: Tensor) -> Tensor:
        kept.append(b * 1.0)
        return (b.sum(-1) - 1.2).square()

    value = expectation(f, a, estimator, generator=seeded(2))
    (value.sum() + penalty(kept[0])).backward()
    assert a.grad is not None
    return largest_z(a.grad, exact_gradient(f, POINT))


def joined(b: Tensor) -> Tensor:
    return (b.mean(0) - 0.3).square().sum()


@each
def test_what_f_keeps_is_no_part_of_f(name: str) -> None:
    """The samples are constants: a penalty on them has no gradient, and does not bias g."""
    for penalty in (joined, lambda b: b.square().sum()):
        assert biased(ESTIMATORS[name](adapt=False), penalty) < Z_LEVEL


def test_a_penalty_that_gets_into_the_gradient_of_f_would_be_seen() -> None:
    assert biased(Kept(adapt=False), joined) > Z_WRONG


@each
def test_a_parameter_has_the_gradient_of_both_losses(name: str) -> None:
    """Activations that f keeps are penalised outside of it: θ gets both, a only that of f."""
    kept: list[Tensor] = []
    theta = torch.linspace(-1, 2, D).requires_grad_()

    def f(b: Tensor) -> Tensor:
        kept.append(b * theta)
        return torch.sin(kept[-1].sum(-1))

    def gradients(weight: float) -> tuple[Tensor, ...]:
        kept.clear()
        a = logits()
        value = expectation(f, a, trained(name), generator=seeded(2))
        penalty = weight * kept[-1].square().sum()
        return torch.autograd.grad(value.sum() + penalty, (a, theta), retain_graph=True)

    (plain, of_f), (penalised, of_both) = gradients(0.0), gradients(1.0)
    (of_penalty,) = torch.autograd.grad(kept[-1].square().sum(), theta)
    assert torch.equal(penalised, plain)
    torch.testing.assert_close(of_both, of_f + of_penalty)
    assert of_penalty.abs().min() > 0


# --- backward passes ----------------------------------------------------------------------------


@each
def test_a_second_backward_pass_has_the_same_estimate(name: str) -> None:
    """Not one whose coefficients have learnt from the very samples: that would be biased."""
    estimator, (f, _), a = trained(name), problem(), logits()
    value = expectation(f, a, estimator, generator=seeded(2))
    state = {k: v.clone() for k, v in estimator.state_dict().items()}
    (first,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
    (again,) = torch.autograd.grad((2 * value).sum(), a)
    torch.testing.assert_close(again, 2 * first)
    assert all(torch.equal(v, state[k]) for k, v in estimator.state_dict().items())


@each
def test_example_by_example_and_all_at_once(name: str) -> None:
    """One backward pass for each example, or `is_grads_batched`: each has its own gradient."""
    estimator, (f, _), a = trained(name).eval(), problem(), logits()
    value = expectation(f, a, estimator, generator=seeded(2))
    rows = [torch.autograd.grad(value[k], a, retain_graph=True)[0] for k in range(B)]
    (whole,) = torch.autograd.grad(value.sum(), a, retain_graph=True)
    (batched,) = torch.autograd.grad(value, a, torch.eye(B), is_grads_batched=True)
    torch.testing.assert_close(torch.stack(rows), batched)
    torch.testing.assert_close(sum(rows), whole)
    for k, row in enumerate(rows):
        assert not row[[j for j in range(B) if j != k]].any()


@each
def test_a_gradient_penalty_on_the_parameters_of_f(name: str) -> None:
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
    generator, a = seeded(2), POINT.expand(20_000, 3).clone().requires_grad_()
    estimator = ESTIMATORS[name](adapt=False)

    def f(b: Tensor) -> Tensor:
        return (b.sum(-1) - 1.2).square()

    value = checkpoint(
        lambda x: expectation(f, x, estimator, generator=generator), a, use_reentrant=False
    )
    (g,) = torch.autograd.grad(value.sum(), a)
    assert largest_z(g, exact_gradient(f, POINT)) < Z_LEVEL


# --- what f may be ------------------------------------------------------------------------------


@each
def test_losses_in_double_precision(name: str) -> None:
    f, _ = problem()
    a = logits()
    expectation(lambda b: f(b).double(), a, trained(name)).sum().backward()
    assert a.grad is not None
    assert a.grad.dtype is torch.float32
    assert a.grad.isfinite().all()


@each
@pytest.mark.parametrize("grad", [True, False])
def test_f_may_differentiate_by_itself(name: str, grad: bool) -> None:
    def f(b: Tensor) -> Tensor:
        losses = (b - 0.3).square().sum(-1)
        (slope,) = torch.autograd.grad(losses.sum(), b, create_graph=True)
        return losses + slope.square().sum(-1)

    with torch.set_grad_enabled(grad):
        assert expectation(f, logits(), ESTIMATORS[name]()).isfinite().all()
        assert expectation(f, logits().detach(), ESTIMATORS[name]()).isfinite().all()


@each
def test_an_f_that_does_not_depend_on_b_is_refused(name: str) -> None:
    theta = torch.ones(D, requires_grad=True)
    for f in (lambda b: b.detach().sum(-1), lambda b: (b.detach() * theta).sum(-1)):
        with pytest.raises(TypeError, match="expected f to be differentiable in b"):
            expectation(f, logits(), ESTIMATORS[name]())

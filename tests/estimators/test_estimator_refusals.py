"""Where an estimator would be silently wrong: refused in words, or made right."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hardgate import ReinMax, exact_gradient, expectation
from hardgate.estimators import NVIL, RELAX, RLOO, Estimator, LinearCV, QuadraticCV
from hardgate_lab.rig.problems import PROBLEMS
from tests.support.estimator_cases import (
    CASES,
    LEARNING,
    draw,
    each_form,
    each_learning,
    leaf,
    warm,
)
from tests.support.statistics import Z_LEVEL, largest_z

SMOOTH = PROBLEMS["smooth"]
A = SMOOTH.logits
PLAIN = [
    n for n, c in CASES.items() if not (c().state or c().needs_gradient_of_f or n == "Exact()")
]


# --- what f does to its samples -------------------------------------------------------------


@each_form
def test_an_f_that_changes_its_samples_is_refused(name: str) -> None:
    """Its losses would be charged to samples that nobody drew."""

    def f(b: Tensor) -> Tensor:
        b *= 2
        return b.sum(-1)

    with pytest.raises((ValueError, RuntimeError), match=r"in.place|single memory location"):
        draw(CASES[name](), f, leaf(A, 5))


def test_a_changed_copy_is_no_changed_sample() -> None:
    draw(RLOO(), lambda b: b.clone().mul_(2).sum(-1), leaf(A, 5))
    with pytest.raises(ValueError, match=r"leave its samples.*Write b = 2 \* b, not b \*= 2"):
        draw(RLOO(), lambda b: b.mul_(2).sum(-1), leaf(A, 5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@each_form
def test_losses_in_half_precision_are_subtracted_in_fp32(name: str, dtype: torch.dtype) -> None:
    """A mean over samples that is rounded to bf16 is no leave-one-out baseline."""
    if CASES[name]().needs_gradient_of_f:
        return  # whose gradient is f's own

    def rounded(b: Tensor) -> Tensor:
        return SMOOTH.f(b).to(dtype)

    found = draw(CASES[name](), rounded, leaf(A.float(), 50))
    expected = draw(CASES[name](), lambda b: rounded(b).float(), leaf(A.float(), 50))
    assert torch.equal(found.gradient, expected.gradient)
    assert torch.equal(found.value, expected.value)


# --- logits that are not finite --------------------------------------------------------------


@each_form
def test_infinite_logits_are_certain_units(name: str) -> None:
    a, estimator = torch.tensor([math.inf, -math.inf, 0.3, -1.0]), CASES[name]()
    found = draw(estimator, SMOOTH.f, leaf(a, 200))
    assert found.value.isfinite().all()
    assert found.gradient.isfinite().all()
    if estimator.unbiased:
        assert largest_z(found.gradient[:, :2], 0.0) < Z_LEVEL


@each_form
def test_a_logit_that_is_nan_shows_in_the_value(name: str) -> None:
    """1[u < σ(NaN)] is 0: without this a network that has diverged goes on with a finite loss."""
    a = leaf(A, 3)
    with torch.no_grad():
        a[1, 0] = math.nan
        assert expectation(SMOOTH.f, a, CASES[name]()).isnan().tolist() == [False, True, False]
    value = expectation(SMOOTH.f, a, CASES[name]())
    assert value.isnan().tolist() == [False, True, False]
    value[::2].sum().backward()
    assert a.grad is not None
    assert a.grad[::2].isfinite().all()


# --- autocast, transforms, checkpoints, second derivatives -------------------------------------


@each_form
def test_autocast_is_left_to_f(name: str) -> None:
    seen = set()

    def f(b: Tensor) -> Tensor:
        seen.add((b.dtype, (b @ torch.ones(len(A), 1)).dtype))
        return (b * b).sum(-1)

    with torch.autocast("cpu", torch.bfloat16):
        g = draw(CASES[name](), f, leaf(A.float(), 5)).gradient
    assert seen == {(torch.float32, torch.bfloat16)}
    assert torch.equal(
        g, draw(CASES[name](), lambda b: (b * b).sum(-1), leaf(A.float(), 5)).gradient
    )


def test_autocast_leaves_the_control_variates_unbiased() -> None:
    """f has no product that autocast narrows. In bf16 the control variates, which are products,
    have no longer mean zero: QuadraticCV was off by 80 standard errors."""
    w = torch.tensor([1.5, -1.0, 0.7, 2.0])

    def f(b: Tensor) -> Tensor:
        return ((b * w.to(b)).sum(-1) - 1).square()

    with torch.autocast("cpu", torch.bfloat16):
        estimator = warm(QuadraticCV(), f, A.float())
        g = draw(estimator, f, leaf(A.float(), 40_000)).gradient
    assert largest_z(g, exact_gradient(f, A)) < Z_LEVEL


@pytest.mark.parametrize("name", PLAIN)
def test_estimators_from_values_alone_are_transformed(name: str) -> None:
    a = A.float().expand(5, -1).contiguous()

    def total(x: Tensor) -> Tensor:
        return expectation(SMOOTH.f, x, CASES[name]()).sum()

    torch.manual_seed(0)
    found = torch.func.grad(total)(a)
    torch.manual_seed(0)
    points = leaf(a)
    total(points).backward()
    assert torch.equal(found, points.grad)  # type: ignore[arg-type]
    each = torch.func.vmap(torch.func.grad(total), randomness="different")(a)
    assert each.shape == a.shape


@pytest.mark.parametrize("name", [n for n in CASES if n not in PLAIN])
def test_others_refuse_to_be_transformed(name: str) -> None:
    estimator = CASES[name]()
    before = {k: v.clone() for k, v in estimator.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"expected no torch.func transform.*Write"):
        torch.func.grad(lambda x: expectation(SMOOTH.f, x, estimator).sum())(A)
    after = estimator.state_dict()
    assert all(torch.equal(v, after[k]) for k, v in before.items())
    draw(estimator, SMOOTH.f, leaf(A, 5))


@each_form
def test_inference_mode(name: str) -> None:
    estimator = CASES[name]()
    with torch.inference_mode():
        if estimator.needs_gradient_of_f or name == "Exact()":
            with pytest.raises(RuntimeError, match=r"expected torch.no_grad\(\)"):
                expectation(SMOOTH.f, A, estimator)
        else:
            assert expectation(SMOOTH.f, A.expand(5, -1), estimator).shape == (5,)


# Those that differentiate f refuse the others.
WAYS = {
    False: ["no_grad", "eval", "inference_mode", "func.grad", "vmap"],
    True: ["no_grad", "eval"],
}


@pytest.mark.parametrize(
    ("name", "way"),
    [(name, way) for name in LEARNING for way in WAYS[CASES[name]().needs_gradient_of_f]],
)
def test_who_was_only_asked_has_learnt_nothing(name: str, way: str) -> None:
    """Not even of which size it will be: then it learns as if nobody had asked."""
    asked, fresh = CASES[name](), CASES[name]()

    def value(a: Tensor) -> Tensor:
        context = a.detach().cos() if asked.uses_context else None
        return expectation(SMOOTH.f, a, asked, context=context)

    def total(a: Tensor) -> Tensor:
        return value(a).sum()

    others = torch.cat([A, A]).expand(5, -1)[:, : len(A)]  # not contiguous
    if way == "eval":
        asked.eval()
        total(others.clone().requires_grad_()).backward()
        asked.train()
    elif way in ("func.grad", "vmap"):
        asked.adapt = False
        if way == "vmap":
            torch.func.vmap(total, randomness="different")(others.unsqueeze(0))
        else:
            torch.func.grad(total)(others)
        asked.adapt = True
    else:
        with getattr(torch, way)():
            value(others)
    for key, tensor in fresh.state_dict().items():
        assert torch.equal(asked.state_dict()[key], tensor), key
    for step in range(3):
        found, expected = (draw(each, SMOOTH.f, leaf(A, 5), step) for each in (asked, fresh))
        assert torch.equal(found.gradient, expected.gradient)


@each_learning
def test_a_checkpoint_would_learn_twice(name: str) -> None:
    """Its second pass, which the gradient is taken from, would see a state that these samples
    have moved: a baseline that contains the present sample."""
    estimator = CASES[name]()

    def step() -> None:  # those that differentiate f are computed again before the backward pass
        f = lambda x: expectation(SMOOTH.f, x, estimator)  # noqa: E731
        checkpoint(f, leaf(A, 5), use_reentrant=False).sum().backward()

    with pytest.raises(RuntimeError, match=r"twice.*outside of checkpoint.*adapt = False"):
        step()


@each_form
def test_a_checkpoint_changes_nothing_otherwise(name: str) -> None:
    estimator = warm(CASES[name](), SMOOTH.f, A)
    estimator.adapt = False
    a, b = leaf(A, 5), leaf(A, 5)
    torch.manual_seed(0)
    checkpoint(
        lambda x: expectation(SMOOTH.f, x, estimator), a, use_reentrant=False
    ).sum().backward()
    torch.manual_seed(0)
    expectation(SMOOTH.f, b, estimator).sum().backward()
    assert torch.equal(a.grad, b.grad)  # type: ignore[arg-type]


@each_form
def test_a_second_derivative_is_refused(name: str) -> None:
    """It would be zero, as the estimate is a number."""
    x = leaf(A, 5)
    value = expectation(SMOOTH.f, torch.tanh(x), CASES[name]()).sum()
    with pytest.raises(RuntimeError, match="first derivative only"):
        torch.autograd.grad(value, x, create_graph=True)


# --- options and contexts ----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (3,), (1, 2), (6, 2), (3, 5, 2)])
def test_a_context_of_other_examples_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"context of one input for each example.*\(5, \.\.\.\)"):
        expectation(SMOOTH.f, leaf(A, 5), NVIL(), context=torch.ones(shape))
    assert expectation(SMOOTH.f, leaf(A, 5), NVIL(), context=torch.ones(5, 1, 2, 3)).shape == (5,)


@pytest.mark.parametrize("cls", [LinearCV, QuadraticCV, NVIL])
@pytest.mark.parametrize("decay", [1.0, -0.1, 2.0, math.nan, "0.9"])
def test_sums_decay(cls: Callable[..., Estimator], decay: float) -> None:
    with pytest.raises(ValueError, match=r"decay expected a number in \[0, 1\)"):
        cls(decay=decay)


@pytest.mark.parametrize("cls", [NVIL, RELAX])
def test_networks_have_units_and_learn(cls: Callable[..., Estimator]) -> None:
    for hidden in (0, -1, 2.5):
        with pytest.raises(ValueError, match="hidden expected a whole number of at least 1"):
            cls(hidden=hidden)
    for rate in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="rate expected a number of at least 0"):
            cls(rate=rate)


def test_no_units_at_all() -> None:
    for name in CASES:
        assert (
            draw(CASES[name](), lambda b: b.sum(-1), torch.zeros(3, 0)).value.tolist() == [0.0] * 3
        )


def test_a_unit_in_evaluation_mode_does_not_sample() -> None:
    a = torch.zeros(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"a unit that samples, got ReinMax in evaluation mode"):
        expectation(lambda b: b.sum(-1), a, ReinMax().eval())
    unit = ReinMax(eval_mode="sample").eval()
    assert set(expectation(lambda b: b.sum(-1), a, unit).tolist()) <= {0.0, 1.0, 2.0, 3.0}

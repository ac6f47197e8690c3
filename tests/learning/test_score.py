"""score_loss: the gradient of Theorem 1, which losses it takes, and its baselines."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import StochasticBinary, score_loss
from hardgate.learning.baselines import MeanBaseline, OptimalBaseline
from tests.support.score_net import (
    FORGOTTEN,
    Net,
    assert_same,
    baseline_of,
    by_hand,
    charge,
    close,
    leaf,
    step,
)
from tests.support.statistics import Z_LEVEL, largest_z

each_baseline = pytest.mark.parametrize("baseline", [None, "mean", "optimal"])
each_kind = pytest.mark.parametrize("kind", [OptimalBaseline, MeanBaseline])
each_decay = pytest.mark.parametrize("decay", [0.0, 0.9])


# --- the gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("loss_dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@each_baseline
def test_gradient(baseline: Any, dtype: torch.dtype, loss_dtype: torch.dtype) -> None:
    """Two batches; the second is charged against the baseline that the first one left."""
    unit, expected_baseline = StochasticBinary(baseline), torch.zeros(())
    for seed in range(2):
        a = leaf(8, 4, dtype=dtype, seed=seed)
        losses = (10 + leaf(8, dtype=loss_dtype, seed=seed + 5)).detach()
        h, gradient = charge(unit, a, losses, torch.rand(8, 4))
        assert gradient.dtype == dtype
        tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
        close(gradient, by_hand(h, a, losses, expected_baseline), tolerance)
        w = (h.double() - a.detach().double().sigmoid()).square()
        L = losses.double().unsqueeze(-1)
        if baseline == "optimal":  # Cor. 1
            expected_baseline = (w * L).sum(0) / w.sum(0)
        elif baseline == "mean":
            expected_baseline = L.mean()


def bits(n: int) -> Tensor:
    return torch.tensor(list(itertools.product([0.0, 1.0], repeat=n)))


@pytest.mark.parametrize("layers", [1, 2])
@each_baseline
def test_unbiased_by_enumeration(baseline: Any, layers: int) -> None:
    """Theorem 1 through one and two stochastic layers: the mean over all h is the gradient."""
    torch.manual_seed(0)
    model, x = Net(baseline, layers=layers).double(), torch.randn(5, 3).double()
    step(model, x).backward()  # a baseline that has seen other samples
    model.zero_grad()
    states = bits(3 * layers).double().split(3, dim=-1)
    q, h = torch.ones(1).double(), x[:1]
    for linear, state in zip(model.linears, states, strict=True):
        p = torch.sigmoid(linear(h))
        q, h = q * torch.where(state > 0, p, 1 - p).prod(-1), state
    expected_loss = (q * model.out(h).squeeze(-1).square()).sum()
    truth = torch.autograd.grad(expected_loss, list(model.parameters()))
    for k, weight in enumerate(q.detach()):
        noises = [1 - state[k : k + 1] for state in states]  # u = 1 - h draws h, whatever p is
        (weight * step(model, x[:1], *noises, update_baselines=False)).backward()
    assert_same(model.gradients(), truth)


@each_baseline
def test_unbiased_while_the_baseline_moves(baseline: Any) -> None:
    """Draws as in training: every example its own gradient, the baseline read, then moved."""
    torch.manual_seed(0)
    unit, logits = StochasticBinary(baseline, decay=0.5), torch.tensor([-1.0, 0.3, 1.5])
    weights, draws = torch.tensor([1.0, -2.0, 3.0]), []
    for _ in range(200):
        a = logits.repeat(50, 1).requires_grad_()
        losses = (unit(a) @ weights + 2).square()
        draws.append(50 * torch.autograd.grad(score_loss(unit, losses), a)[0])
    truth = hardgate.exact_gradient(lambda b: (b @ weights + 2).square(), logits)
    assert largest_z(torch.cat(draws[10:]), truth) < Z_LEVEL


@pytest.mark.parametrize("baseline", ["mean", "optimal"])
def test_a_baseline_that_contains_the_sample_is_biased(baseline: Any) -> None:
    """Negative control, exact: with decay 0 and one example it *is* the loss, the gradient 0."""
    a, states = leaf(1, 3), bits(3)
    p = torch.sigmoid(a.detach())
    q = (states * p + (1 - states) * (1 - p)).prod(-1)
    before, after = torch.zeros(1, 3), torch.zeros(1, 3)
    for state, weight in zip(states, q, strict=True):
        losses, unit = state.sum()[None] + 1, StochasticBinary(baseline, decay=0.0)
        before += weight * charge(unit, a, losses, 1 - state[None])[1]
        after += weight * charge(unit, a, losses, 1 - state[None])[1]  # the sample is in L̄ now
    close(before, hardgate.exact_gradient(lambda b: b.sum(-1) + 1, a.detach()))
    close(after, torch.zeros(1, 3))


def test_one_unit_with_its_optimal_baseline_has_no_variance() -> None:
    """Corollary 1 at its best: both draws give σ'(a)(L(1) - L(0)), the derivative itself."""
    unit, p = StochasticBinary(), torch.tensor(0.3)
    a = torch.logit(p).repeat(2, 1).requires_grad_()
    u, losses = torch.tensor([[0.0], [1.0]]), torch.tensor([5.0, 2.0])
    weights = torch.stack([p * (1 - p) ** 2, (1 - p) * p**2])  # q(h)(h - p)²
    baseline = {"numerator": (weights @ losses)[None], "denominator": weights.sum()[None]}
    baseline_of(unit).load_state_dict(baseline)
    close(2 * charge(unit, a, losses, u)[1], (p * (1 - p) * 3).expand(2, 1))


def test_the_term_has_no_value_and_no_way_into_the_losses() -> None:
    unit, a, w = StochasticBinary(), leaf(4, 3), leaf(3, seed=1)
    term = score_loss(unit, unit(a) @ w + 1e30)
    assert term == 0
    term.backward()
    assert w.grad is None


def test_infinite_logits() -> None:
    """Masked actions: h is certain there, its score zero, its gradient too."""
    a = torch.tensor([[torch.inf, -torch.inf, 0.5]] * 4, requires_grad=True)
    losses = torch.rand(4)
    h, gradient = charge(StochasticBinary(), a, losses, torch.rand(4, 3))
    assert torch.equal(gradient[:, :2], torch.zeros(4, 2))
    close(gradient[:, 2:], by_hand(h[:, 2:], a[:, 2:], losses))


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0, 5, 3)])
def test_empty_batches(shape: tuple[int, ...]) -> None:
    unit = StochasticBinary()
    assert charge(unit, leaf(*shape), torch.rand(shape[:1]), torch.rand(shape))[1].shape == shape
    assert baseline_of(unit).numerator.numel() == 0


# --- which losses ---------------------------------------------------------------------------

ALIGNED = [
    *[((), ()), ((3,), ()), ((1, 3), (1,)), ((4, 3), (4,)), ((4, 5, 3), (4,))],
    *[((4, 4, 3), (4,)), ((4, 4, 3), (4, 4)), ((2, 4, 4, 3), (2, 4)), ((2, 4, 5, 3), (2, 4, 5))],
]


@pytest.mark.parametrize(("shape", "losses_shape"), ALIGNED)
def test_losses_align_with_the_leading_axes(
    shape: tuple[int, ...], losses_shape: tuple[int, ...]
) -> None:
    """Also when B = T, where broadcasting from the right would pass in silence."""
    a, losses, u = leaf(*shape), leaf(*losses_shape, seed=1).detach(), torch.rand(shape)
    h, gradient = charge(StochasticBinary(None), a, losses, u)
    close(gradient, by_hand(h, a, losses))


AVERAGED = r"got \(\) \(a single number: was it averaged already\?\)"
WRONG: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Any], type[Exception], str]] = {
    "mean": ((4, 3), torch.mean, ValueError, r"\(4, 3\), so losses of shape \(4,\), " + AVERAGED),
    "mean of one": ((1, 3), torch.mean, ValueError, AVERAGED),
    "mean over time": ((4, 5, 3), torch.mean, ValueError, r"\(4, 5\) or a prefix of it, got \(\)"),
    "list of means": ((4, 3), lambda L: [L.mean()], ValueError, AVERAGED),
    "column": ((4, 3), lambda L: L[:, None], ValueError, r"got \(4, 1\)"),
    "per unit": ((4, 3), lambda L: L[:, None] * torch.ones(3), ValueError, r"got \(4, 3\)"),
    "other batch": ((4, 3), lambda L: L[:3], ValueError, r"got \(3,\)"),
    "trailing axis": ((4, 5, 3), lambda L: torch.ones(5), ValueError, r"got \(5,\)"),
    "no unit axis": ((4,), lambda L: torch.ones(4), ValueError, r"of shape \(\), got \(4,\)"),
    "number": ((4, 3), lambda L: 0.5, TypeError, "floating point losses, got float"),
    "integers": ((4, 3), lambda L: L.long(), TypeError, "floating point losses, got torch.int64"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_losses(case: str) -> None:
    shape, change, error, message = WRONG[case]
    unit, a, u = StochasticBinary(), leaf(*shape), torch.rand(shape)
    h = unit(a)
    with pytest.raises(error, match=message + r"(.|\n)*reduction='none'(.|\n)*backward\(\)"):
        score_loss(unit, change(torch.rand(shape[0])))
    with pytest.raises(RuntimeError, match=FORGOTTEN):  # and it was no way round the term
        h.sum().backward()
    losses = torch.rand(shape[:-1])  # nothing is left behind: no call, no update
    h, gradient = charge(unit, a, losses, u)
    close(gradient, by_hand(h, a, losses))


@pytest.mark.parametrize("detach", [False, True], ids=["in the graph", "late"])
@pytest.mark.parametrize("per_step", [False, True], ids=["one loss", "a loss per step"])
def test_a_unit_used_at_several_steps(per_step: bool, detach: bool) -> None:
    """Each call is charged, with its own loss where there is a list; all read one baseline."""
    unit, reference = StochasticBinary(decay=0.0).double(), OptimalBaseline(decay=0.0).double()
    weight = leaf(3, 3, dtype=torch.float64)
    for _ in range(2):
        state, all_a, all_h = torch.ones(4, 3).double(), [], []
        for t in range(5):
            all_a.append(state @ weight + t)
            h = unit(all_a[-1])
            all_h.append(h.detach())
            state = state + (h.detach() if detach else h)
        losses = [state.sum(-1) * (t + 1 if per_step else 1) for t in range(5)]
        term = score_loss(unit, losses if per_step else losses[0])
        gradients = torch.autograd.grad(term, all_a)
        scores = [h - torch.sigmoid(a.detach()) for h, a in zip(all_h, all_a, strict=True)]
        before = reference.step(scores, [L.detach().unsqueeze(-1) for L in losses])
        for gradient, h, a, L in zip(gradients, all_h, all_a, losses, strict=True):
            close(gradient, by_hand(h, a, L.detach(), before), 1e-12)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_list_of_losses_has_one_entry_per_call(count: int) -> None:
    unit = StochasticBinary()
    unit(leaf(4, 3))
    unit(leaf(4, 3))
    with pytest.raises(ValueError, match=rf"2 calls of a unit, got a list of {count}(.|\n)*stack"):
        score_loss(unit, [torch.rand(4)] * count)


# --- when -----------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_records_are_made_only_where_a_gradient_is_wanted(
    context: Callable[[], AbstractContextManager[None]],
) -> None:
    unit, a = StochasticBinary(), leaf(4, 3)
    with context():
        unit(a if context is not torch.enable_grad else a.detach())  # a frozen gater
        assert unit.records.last is None
        term = score_loss(unit, torch.rand(4))
    assert term == 0
    assert not term.requires_grad
    assert baseline_of(unit).numerator.numel() == 0


def test_evaluation() -> None:
    """The threshold is differentiated as σ(a) and owes nothing; samples do, in any mode."""
    unit, a = StochasticBinary().eval(), leaf(4, 3)
    (unit(a).sum() + score_loss(unit, torch.rand(4))).backward()
    assert a.grad is not None
    assert a.grad.abs().min() > 0
    unit = StochasticBinary(eval_mode="sample").eval()
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        unit(a).sum().backward()
    h = unit(a)
    unit.train()  # the mode of the forward pass counts, not the present one
    (h.sum() + score_loss(unit, torch.rand(4))).backward()


def test_backward_again_and_with_respect_to_inputs() -> None:
    model, x = Net(), torch.randn(4, 3, requires_grad=True)
    total = step(model, x)
    total.backward(retain_graph=True)
    once = model.gradients()
    total.backward(retain_graph=True)
    assert_same(model.gradients(), [2 * g for g in once])
    assert x.grad is not None
    assert_same(torch.autograd.grad(total, x), [x.grad / 2])


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_accumulation_over_micro_batches(together: bool) -> None:
    torch.manual_seed(0)
    model, x, u = Net(None), torch.randn(8, 3), torch.rand(8, 3)
    step(model, x, u).backward()
    whole = model.gradients()
    model.zero_grad()
    total = torch.zeros(())
    for x_part, u_part in zip(x.split(4), u.split(4), strict=True):
        part = step(model, x_part, u_part) / 2
        if together:
            total = total + part
        else:
            part.backward()
    if together:
        total.backward()
    assert_same(model.gradients(), whole)


def test_nothing_is_kept_alive() -> None:
    model, x = Net(), torch.randn(4, 3)
    kept: list[weakref.ref[Tensor]] = []
    model.unit.register_forward_hook(lambda _, args, h: kept.extend(map(weakref.ref, (*args, h))))
    gc.disable()  # reference counts alone: no cycles
    try:
        step(model, x).backward()
        assert [ref() for ref in kept] == [None, None]
    finally:
        gc.enable()


# --- baselines ------------------------------------------------------------------------------


def batch(seed: int, n: int) -> tuple[Tensor, Tensor]:
    """Scores [n, 3] and losses that broadcast with them."""
    return torch.tanh(leaf(n, 3, seed=seed).detach()), 3 + leaf(n, 1, seed=seed + 100).detach()


@each_decay
@each_kind
def test_the_baseline_is_a_weighted_mean_from_the_first_update_on(kind: Any, decay: float) -> None:
    baseline, num, den = kind(decay), torch.zeros(3), torch.zeros(3)
    assert baseline.value() == 0
    for seed in range(4):
        score, L = batch(seed, n=2 + seed)
        w = score.square() if kind is OptimalBaseline else torch.ones_like(score)
        num, den = decay * num + (w * L).sum(0), decay * den + w.sum(0)
        baseline.step([score], [L])
        close(baseline.value().expand(3), num / den)


@each_kind
def test_wrong_decay(kind: Any) -> None:
    for wrong in (1.0, -0.1, float("nan")):
        with pytest.raises(
            ValueError, match=r"expected a number in \[0, 1\), got .*Write decay=0.9"
        ):
            kind(wrong)


@each_decay
@each_kind
def test_processes_merge_by_sums(kind: Any, decay: float) -> None:
    """Two processes with unequal shares give the state of one that saw everything."""
    one, two, whole, merged = (kind(decay) for _ in range(4))
    for seed in range(3):
        (s, L), (t, M) = batch(seed, n=3), batch(seed + 50, n=7)
        one.step([s], [L])
        two.step([t], [M])
        whole.step([torch.cat([s, t])], [torch.cat([L, M])])
    merged.load_state_dict({k: v + two.state_dict()[k] for k, v in one.state_dict().items()})
    torch.testing.assert_close(merged.state_dict(), whole.state_dict())
    assert not torch.allclose(merged.value(), (one.value() + two.value()) / 2)


def test_baselines_are_saved_and_loaded_before_the_first_use() -> None:
    trained, fresh, x = Net(), Net(), torch.randn(4, 3)
    step(trained, x).backward()
    names = {"units.0.baseline.numerator", "units.0.baseline.denominator"}
    assert names <= set(trained.state_dict())
    fresh.load_state_dict(trained.state_dict())
    close(baseline_of(fresh.unit).value(), baseline_of(trained.unit).value())
    step(fresh, x).backward()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e300])
@pytest.mark.parametrize("position", [0, 1])
def test_a_batch_that_is_not_finite_does_not_stay(bad: float, position: int) -> None:
    unit, clean = StochasticBinary(), StochasticBinary()
    for seed in range(3):
        a, losses, u = leaf(4, 3, seed=seed), torch.rand(4).double(), torch.rand(4, 3)
        if seed == position:
            losses[1] = bad
        else:
            charge(clean, a, losses, u)
        charge(unit, a, losses, u)
    nan = torch.tensor([[torch.nan, 0.0, 1.0]] * 4, requires_grad=True)
    charge(unit, nan, torch.full((4,), torch.nan), torch.rand(4, 3))
    torch.testing.assert_close(baseline_of(unit).state_dict(), baseline_of(clean).state_dict())


@pytest.mark.parametrize("widths", [(5, 3), (1, 3), (3, 1)])
def test_another_number_of_units_is_refused(widths: tuple[int, int]) -> None:
    """Also where it would broadcast, and where one module serves two layers."""
    message = (
        f"expected the {widths[0]} units that it was first used with, got {widths[1]}. "
        r"Give each layer a unit or an estimator of its own"
    )
    unit, shared, fixed = StochasticBinary(), StochasticBinary(), StochasticBinary("mean")
    charge(unit, leaf(4, widths[0]), torch.rand(4), torch.rand(4, widths[0]))
    for update in (True, False):
        unit(leaf(4, widths[1]))
        with pytest.raises(ValueError, match=message):
            score_loss(unit, torch.rand(4), update_baselines=update)
    for width in widths:
        shared(leaf(4, width))
        fixed(leaf(4, width))
    with pytest.raises(ValueError, match=message):
        score_loss(shared, torch.rand(4))
    score_loss(fixed, torch.rand(4)).backward()


def test_update_baselines_false_only_reads() -> None:
    unit, a = StochasticBinary(), leaf(4, 3)
    charge(unit, a, torch.rand(4), torch.rand(4, 3))
    before = {k: v.clone() for k, v in baseline_of(unit).state_dict().items()}
    h = unit(a)
    losses = torch.rand(4)
    (gradient,) = torch.autograd.grad(score_loss(unit, losses, update_baselines=False), a)
    torch.testing.assert_close(baseline_of(unit).state_dict(), before, rtol=0, atol=0)
    close(gradient, by_hand(h, a, losses, before["numerator"] / before["denominator"]))

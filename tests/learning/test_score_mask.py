"""score_loss with a mask: what is masked out is as if it were not there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

import hardgate
from hardgate import StochasticBinary, score_loss
from tests.support.score_net import FORGOTTEN, Net, assert_same, baseline_of, close, leaf

each_baseline = pytest.mark.parametrize("baseline", [None, "mean", "optimal"])
B, T, D = 4, 6, 3
LENGTHS = torch.tensor([6, 2, 3, 1])
MASK = torch.arange(T) < LENGTHS[:, None]  # half of it


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def pair(baseline: Any) -> tuple[StochasticBinary, StochasticBinary]:
    return tuple(StochasticBinary(baseline, decay=0.5).double() for _ in range(2))  # type: ignore[return-value]


def batch(step: int) -> tuple[Tensor, Tensor, Tensor]:
    """a, its noise and the losses; what is padded is large, or no number at all."""
    a = leaf(B, T, D, dtype=torch.float64, seed=step)
    losses = 10 + leaf(B, T, dtype=torch.float64, seed=step + 50).detach()
    filler = [100.0, torch.nan, torch.inf][step]
    return a, torch.rand(B, T, D).double(), losses.where(MASK, filler)


def same_state(one: StochasticBinary, other: StochasticBinary) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.float32], ids=str)
@each_baseline
def test_as_with_the_valid_entries_alone(baseline: Any, kind: torch.dtype) -> None:
    """Three batches: the baselines that the first left are those of the valid entries."""
    unit, reference = pair(baseline)
    for step in range(3):
        a, u, losses = batch(step)
        unit(a, u)
        (gradient,) = torch.autograd.grad(score_loss(unit, losses, MASK.to(kind)), a)
        reference(a[MASK], u[MASK])
        (truth,) = torch.autograd.grad(score_loss(reference, losses[MASK]), a)
        close(gradient, truth, 1e-12)
        assert not gradient[~MASK].any()
        assert gradient[MASK].abs().sum() > 0
        same_state(unit, reference)


def test_losses_times_the_mask_are_not_that() -> None:
    """Negative control: half of the gradient, and noise where it is padded."""
    unit, reference = StochasticBinary("mean").double(), StochasticBinary(None).double()
    a, u, losses = batch(0)
    for _ in range(2):
        unit(a, u)
        (wrong,) = torch.autograd.grad(score_loss(unit, losses * MASK), a)
    assert wrong[~MASK].abs().max() > 0.1 / (B * T)
    reference(a, u)
    (wrong,) = torch.autograd.grad(score_loss(reference, losses * MASK), a)
    reference(a, u)
    (right,) = torch.autograd.grad(score_loss(reference, losses, MASK), a)
    close(wrong, right * MASK.sum() / MASK.numel(), 1e-12)


@each_baseline
def test_unbiased_by_enumeration(baseline: Any) -> None:
    """The mean over all h is the gradient of E[mean of the valid losses], whatever L̄ is."""
    unit, weights = StochasticBinary(baseline).double(), torch.tensor([1.0, -2.0]).double()
    a, mask = leaf(3, 2, dtype=torch.float64), torch.tensor([True, False, True])
    unit(a)
    score_loss(unit, 5 + torch.rand(3).double(), mask)  # a baseline of other samples

    def loss(h: Tensor) -> Tensor:
        return (h @ weights + 2).square()

    p, total = torch.sigmoid(a.detach()), torch.zeros(3, 2).double()
    for state in itertools.product([0.0, 1.0], repeat=6):
        h = torch.tensor(state).double().reshape(3, 2)
        q = torch.where(h > 0, p, 1 - p).prod()
        unit(a, 1 - h)  # u = 1 - h draws h, whatever p is
        term = score_loss(unit, loss(h), mask, update_baselines=False)
        total += q * torch.autograd.grad(term, a)[0]
    truth = hardgate.exact_gradient(loss, a.detach()) * mask[:, None] / 2
    close(total, truth, 1e-10)


@pytest.mark.parametrize("per_step", [False, True], ids=["one loss", "a loss per step"])
@each_baseline
def test_a_unit_used_at_every_time_step(baseline: Any, per_step: bool) -> None:
    """Sequences that end: each step is charged for those that still run; or whole examples go."""
    unit, reference = pair(baseline)
    for step in range(3):
        a, u, losses = batch(step)
        rows = list(MASK.T) if per_step else [MASK[:, 1]] * T
        each = list(losses.T) if per_step else [losses.nan_to_num(7, 7).sum(1)] * T
        for t, row in enumerate(rows):
            unit(a[:, t], u[:, t])
            reference(a[row, t], u[row, t])
        given = (each, rows) if per_step else (each[0], rows[0])
        (gradient,) = torch.autograd.grad(score_loss(unit, *given), a)
        valid = [L[row] for L, row in zip(each, rows, strict=True)]
        term = score_loss(reference, valid if per_step else valid[0])
        (truth,) = torch.autograd.grad(term, a)
        close(gradient, truth, 1e-12)
        same_state(unit, reference)


def test_a_loss_per_sequence() -> None:
    """`[B]` with a of `[B, T, D]`: whole sequences are left out."""
    unit, reference = pair("optimal")
    (a, u, _), losses, mask = batch(0), torch.rand(B).double(), MASK[:, 1]
    unit(a, u)
    reference(a[mask], u[mask])
    (gradient,) = torch.autograd.grad(score_loss(unit, losses, mask), a)
    (truth,) = torch.autograd.grad(score_loss(reference, losses[mask]), a)
    close(gradient, truth, 1e-12)
    same_state(unit, reference)


@pytest.mark.parametrize("filler", [3.0, torch.nan])
@each_baseline
def test_everything_masked_out(baseline: Any, filler: float) -> None:
    unit, fresh = pair(baseline)
    a, u, losses = batch(0)
    unit(a, u)
    score_loss(unit, losses, MASK)
    before = {name: tensor.clone() for name, tensor in unit.state_dict().items()}
    for each in (unit, fresh):
        h = each(a, u)
        term = score_loss(each, torch.full((B, T), filler), torch.zeros(B, T))
        assert term == 0
        (gradient,) = torch.autograd.grad(h.sum() + term, a)
        assert torch.equal(gradient, torch.zeros(B, T, D))
    torch.testing.assert_close(unit.state_dict(), before, rtol=0, atol=0)
    if baseline is not None:
        assert not baseline_of(fresh).value().any()


def test_padding_that_is_no_number_stays_out_of_the_gradient() -> None:
    unit, a = StochasticBinary(), leaf(B, T, D)
    padded = a.masked_fill(~MASK[..., None], torch.nan)
    unit(padded)
    score_loss(unit, torch.ones(B, T), MASK).backward()
    assert a.grad is not None
    assert a.grad.isfinite().all()
    assert baseline_of(unit).value().tolist() == [1, 1, 1]


@pytest.mark.parametrize(("baseline", "kind"), [("mean", torch.bool), ("optimal", torch.float32)])
def test_compiled(baseline: Any, kind: torch.dtype) -> None:
    def step(unit: StochasticBinary, a: Tensor, u: Tensor, mask: Tensor) -> Tensor:
        losses = unit(a, u).sum(-1).square()
        mean: Tensor = (losses * mask).sum() / mask.sum()
        return mean + score_loss(unit, losses, mask)

    unit, reference = pair(baseline)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    a, u, _ = batch(0)
    for _ in range(2):
        expected = torch.autograd.grad(step(reference, a, u, MASK.to(kind)), a)
        assert_same(torch.autograd.grad(compiled(unit, a, u, MASK.to(kind)), a), expected)
        same_state(unit, reference)


def test_functional_gradients() -> None:
    """A mask per example, mapped: those left out give nothing."""
    model, x, u = Net(None), torch.randn(4, 3), torch.rand(4, 3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def f(parameters: dict[str, Tensor], x: Tensor, u: Tensor, mask: Tensor) -> Tensor:
        losses: Tensor = functional_call(model, parameters, (x, u))
        return losses * mask + score_loss(model, losses, mask)

    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    each = vmap(grad(f), (None, 0, 0, 0))(parameters, x, u, mask)
    losses = model(x, u)
    (losses[mask > 0].mean() + score_loss(model, losses, mask)).backward()
    assert_same([g.sum(0) / 2 for g in each.values()], model.gradients())
    assert all(not g[[1, 3]].any() for g in each.values())


WRONG: dict[str, tuple[Any, str]] = {
    "per example": (MASK[:, 0], r"shape of the losses, with one entry for each: \(4, 6\), got \(4"),
    "per unit": (torch.ones(B, T, D), r"\(4, 6\), got \(4, 6, 3\)"),
    "would broadcast": (MASK[:1], r"\(4, 6\), got \(1, 6\)"),
    "list": ([MASK], r"\(4, 6\), got list"),
    "weights": (torch.full((B, T), 0.5), r"mask of 0 and 1, got other(.|\n)*weights \* losses"),
    "counts": (LENGTHS[:, None].expand(B, T), "mask of 0 and 1, got other numbers"),
    "nan": (torch.full((B, T), torch.nan), "mask of 0 and 1, got other numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_masks(case: str) -> None:
    mask, words = WRONG[case]
    unit, a = StochasticBinary(), leaf(B, T, D)
    h = unit(a)
    with pytest.raises(ValueError, match=words):
        score_loss(unit, torch.rand(B, T), mask)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        h.sum().backward()
    assert baseline_of(unit).numerator.numel() == 0


@pytest.mark.parametrize("mask", [MASK, [MASK[:, 0]]], ids=["a tensor", "too few"])
def test_a_list_of_losses_has_a_list_of_masks(mask: Any) -> None:
    unit = StochasticBinary()
    unit(leaf(B, D))
    unit(leaf(B, D))
    with pytest.raises(ValueError, match=r"a list of 2 masks for a list of as many losses, got"):
        score_loss(unit, [torch.rand(B)] * 2, mask)

"""A score term that is forgotten, misplaced or stale ends in an error that says what to type."""

from __future__ import annotations

import copy

import pytest
import torch

import hardgate
from hardgate import StochasticBinary, score_loss
from tests.support.score_net import FORGOTTEN, NO_PASS, Net, close, leaf, step

X = leaf(4, 3).detach()


def test_not_called() -> None:
    model = Net()
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        model(X).mean().backward()
    assert model.unit.records.last is None  # dropped: the next step starts clean
    step(model, X).backward()


def test_called_and_not_added() -> None:
    model = Net()
    losses = model(X)
    term = score_loss(model, losses)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        losses.mean().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        torch.autograd.grad(losses.mean(), next(model.parameters()), retain_graph=True)
    (losses.mean() + term).backward()


def test_dropped_and_not_paid_by_a_later_term() -> None:
    model = Net()
    losses = model(X)
    hardgate.clear_scores(model)
    step(model, X).backward()
    with pytest.raises(RuntimeError, match=FORGOTTEN):
        losses.mean().backward()


def test_added_under_no_grad() -> None:
    model = Net()
    losses = model(X)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"got torch.no_grad\(\) after a forw"):
        score_loss(model, losses)


def test_without_a_forward_pass_twice_and_on_another_model() -> None:
    model = Net()
    with pytest.raises(RuntimeError, match=NO_PASS):
        score_loss(model, torch.rand(4))
    losses = model(X)
    total = losses.mean() + score_loss(model, losses)
    with pytest.raises(RuntimeError, match=NO_PASS):
        score_loss(model, losses)
    total.backward()
    losses = model(X)
    with pytest.raises(RuntimeError, match=NO_PASS):
        score_loss(copy.deepcopy(model), losses)


def test_calls_left_behind_by_another_forward_pass() -> None:
    model = Net()
    model(X)  # for a look at it, without no_grad
    with pytest.raises(RuntimeError, match=r"got 2 calls of a unit and losses that do not depend"):
        step(model, X)
    step(model, X).backward()  # the refusal dropped them
    model(X)
    hardgate.clear_scores(model)
    step(model, X).backward()
    model(X)
    score_loss(model, model(X).detach()).backward()  # said to be meant for both


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_calls_left_behind_with_another_number_of_examples(first: bool) -> None:
    """What is wrong is the left-over call, not the losses."""
    model = Net()
    if first:
        model(X[:2])
    losses = model(X)
    if not first:
        model(X[:2])
    with pytest.raises(
        RuntimeError, match=r"do not depend on 1 of them(.|\n)*no_grad(.|\n)*clear_"
    ):
        score_loss(model, losses)
    model(X[:2])
    with pytest.raises(ValueError, match=r"a has shape \(2, 3\), so losses of shape \(2,\), got"):
        score_loss(model, losses)  # alone, it is the losses that are wrong


def test_time_first() -> None:
    """What the error says to type gives the gradient of [B, T, D], baselines and all."""
    steps, examples = 5, 4
    a, u = leaf(examples, steps, 3), torch.rand(examples, steps, 3)
    unit, reference = StochasticBinary(), StochasticBinary()
    for seed in range(3):
        losses = leaf(examples, seed=seed).detach() + 3
        unit(a.transpose(0, 1))
        words = r"got \(4,\)(.|\n)*time-first(.|\n)*\[B, T, D\](.|\n)*5 \* losses.expand\(5, 4\)\)"
        with pytest.raises(ValueError, match=words):
            score_loss(unit, losses)
        unit(a.transpose(0, 1), u.transpose(0, 1))
        (gradient,) = torch.autograd.grad(score_loss(unit, 5 * losses.expand(5, 4)), a)
        reference(a, u)
        (truth,) = torch.autograd.grad(score_loss(reference, losses), a)
        close(gradient, truth)
        assert gradient.abs().sum() > 0
    unit(leaf(steps, examples, 3))
    with pytest.raises(ValueError, match=r"got \(3,\). Write"):  # of no axis: nothing is guessed
        score_loss(unit, torch.rand(3))


def test_endless_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss never comes, h.detach() hides it: at some point this is said."""
    monkeypatch.setattr("hardgate.learning.records._LIMIT", 3)
    unit = StochasticBinary()
    for _ in range(3):
        unit(leaf(4, 3)).detach()
    with pytest.raises(RuntimeError, match=r"3 forward passes without score_loss(.|\n)*no_grad"):
        unit(leaf(4, 3))
    hardgate.clear_scores(unit)
    unit(leaf(4, 3))


@pytest.mark.parametrize("changed", ["a", "h"])
def test_changes_in_place(changed: str) -> None:
    unit, a = StochasticBinary(), 1 * leaf(4, 3)
    h = unit(a)
    (a if changed == "a" else h).mul_(2)
    with pytest.raises(RuntimeError, match=r"changed in place since. Write h = h \* mask, not"):
        score_loss(unit, torch.rand(4))


def test_second_derivatives() -> None:
    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match=r"first derivative only(.|\n)*without create_graph=Tru"):
        torch.autograd.grad(step(Net(), x), x, create_graph=True)

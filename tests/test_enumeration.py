"""Enumeration: against closed forms, in chunks, and its refusals."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate import enumeration, exact_expectation, exact_gradient
from hardgate_lab.rig.law import exact_unit_gradient
from hardgate_lab.rig.problems import PROBLEMS


def total(b: Tensor) -> Tensor:
    return b.sum(-1)


def test_closed_forms() -> None:
    a = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    p = torch.sigmoid(a)
    assert exact_expectation(total, a).item() == pytest.approx(p.sum().item())
    torch.testing.assert_close(exact_gradient(total, a), p * (1 - p))
    second = exact_expectation(lambda b: total(b).square(), a)
    torch.testing.assert_close(second, (p * (1 - p)).sum() + p.sum().square())


@pytest.mark.parametrize("problem", PROBLEMS)
def test_two_ways_to_the_gradient_agree(problem: str) -> None:
    """The score form, autograd through the expectation, and the lab's law of a binary unit."""
    f, a = PROBLEMS[problem].f, PROBLEMS[problem].logits
    leaf = a.clone().requires_grad_()
    exact_expectation(f, leaf).backward()
    torch.testing.assert_close(leaf.grad, exact_gradient(f, a))
    lab = exact_unit_gradient(hardgate.StochasticBinary(), f, a)
    torch.testing.assert_close(lab, exact_gradient(f, a))


def test_batches_are_independent() -> None:
    a = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    f = PROBLEMS["smooth"].f
    values, gradients = exact_expectation(f, a), exact_gradient(f, a)
    assert values.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(values[i, j], exact_expectation(f, a[i, j]))
            torch.testing.assert_close(gradients[i, j], exact_gradient(f, a[i, j]))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 7 states at a time, 37 chunks: values, gradients of logits and of parameters in f."""
    w = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def run() -> list[Tensor]:
        a, v = torch.linspace(-2, 2, 8, dtype=torch.float64).requires_grad_(), w.clone()
        v.requires_grad_()
        value = exact_expectation(lambda b: (b @ v).tanh(), a)
        value.backward()
        assert a.grad is not None
        assert v.grad is not None
        gradient = exact_gradient(lambda b: (b @ v.detach()).tanh(), a.detach())
        return [value.detach(), a.grad, v.grad, gradient]

    whole = run()
    monkeypatch.setattr(enumeration, "_CHUNK_NUMBERS", 7 * 8)
    for chunked, expected in zip(run(), whole, strict=True):
        torch.testing.assert_close(chunked, expected)


def test_twenty_units_in_bounded_memory() -> None:
    """2²⁰ states of 20 units would be 168 MB in fp64 at once; no chunk is larger than 34 MB."""
    a = torch.zeros(20, dtype=torch.float64)
    largest = 0

    def f(b: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, b.numel())
        return b.sum(-1)

    torch.testing.assert_close(exact_gradient(f, a), torch.full_like(a, 0.25))
    assert largest <= enumeration._CHUNK_NUMBERS


def test_extreme_logits_are_finite() -> None:
    a = torch.tensor([40.0, -40.0, 100.0, -100.0])
    assert exact_gradient(total, a).isfinite().all()
    assert exact_expectation(total, a).item() == pytest.approx(2.0)


def test_infinite_logits_are_certain_units() -> None:
    """Not 0·∞ in log q."""
    a = torch.tensor([torch.inf, -torch.inf, 0.0], requires_grad=True)
    value = exact_expectation(total, a)
    value.backward()
    assert value.item() == pytest.approx(1.5)
    assert a.grad is not None
    assert a.grad.tolist() == exact_gradient(total, a).tolist() == [0.0, 0.0, 0.25]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_enumerated_in_fp32(dtype: torch.dtype) -> None:
    a = torch.linspace(-2, 2, 10).to(dtype)
    f = lambda b: (b @ torch.arange(10).to(b)).square()  # noqa: E731
    assert torch.equal(exact_expectation(f, a), exact_expectation(f, a.float()))
    assert torch.equal(exact_gradient(f, a), exact_gradient(f, a.float()).to(dtype))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"at most 20 units, got 21.*2\^21"):
        exact_gradient(total, torch.zeros(21))
    with pytest.raises(TypeError, match=r"floating point logits.*int64"):
        exact_expectation(total, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match="no axis"):
        exact_expectation(total, torch.tensor(0.0))
    with pytest.raises(ValueError, match=r"one loss each, \(8,\), got \(\).*last axis only"):
        exact_gradient(lambda b: b.sum(), torch.zeros(3))

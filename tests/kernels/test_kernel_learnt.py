"""Learnt control variates by one kernel against the same in plain torch, which defines them."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate.estimators import NVIL, Estimator, LinearCV
from hardgate.kernels import compiler
from tests.support.estimator_cases import seeded

STEPS = 30


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that are called from now on."""
    called: list[str] = []
    run = compiler.run

    def noted(name: str, *arguments: Any) -> Any:
        called.append(name)
        return run(name, *arguments)

    monkeypatch.setattr(compiler, "run", noted)
    return called


def trained(
    estimator: Estimator,
    batch: tuple[int, ...],
    inputs: int | None = None,
    spoil: bool = False,
    units: int = 3,
) -> Tensor:
    """Gradients of some steps, on losses that depend on the context."""
    generator, found = seeded(0), []
    for step in range(STEPS):
        a = 2 * torch.randn(*batch, units, generator=generator)
        a.requires_grad_()
        x = None if inputs is None else torch.randn(*batch, inputs, generator=generator)
        shift = 5.0 if x is None else 5 + 2 * x.sum(-1)
        if spoil and step % 3 == 1:
            shift = shift * float("nan" if step % 2 else "inf")
        value = hardgate.expectation(
            lambda b, shift=shift: b.sum(-1).square() + shift,  # type: ignore[misc]
            a,
            estimator,
            generator=generator,
            context=x,
        )
        (g,) = torch.autograd.grad(value.sum(), a)
        found.append(g)
    return torch.stack(found)


@pytest.mark.parametrize("spoil", [False, True])
@pytest.mark.parametrize("batch", [(), (1,), (7,), (2, 3), (0,)])
@pytest.mark.parametrize("inputs", [None, 0, 1, 5, 256])
@pytest.mark.parametrize("options", [{}, {"hidden": 1}, {"hidden": 17, "normalise": True}])
def test_the_kernel_is_the_definition(
    options: dict[str, Any],
    inputs: int | None,
    batch: tuple[int, ...],
    spoil: bool,
    kernels: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loss that is not finite moves neither the network nor the averages, on either way."""
    by_kernel, by_torch = NVIL(**options), NVIL(**options)
    ours = trained(by_kernel, batch, inputs, spoil)
    assert kernels.count("nvil") == STEPS
    monkeypatch.setattr(compiler, "usable", lambda *_: False)
    expected = trained(by_torch, batch, inputs, spoil)
    assert kernels.count("nvil") == STEPS
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    for name, tensor in by_torch.state_dict().items():
        torch.testing.assert_close(by_kernel.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    if batch != (0,) and not spoil:
        assert by_kernel.sums[0] > 0
        assert inputs is None or by_kernel.network.adam.steps == STEPS


@pytest.mark.parametrize("spoil", [False, True])
@pytest.mark.parametrize("batch", [(), (1,), (7,), (2, 3), (0,), (100,)])
@pytest.mark.parametrize("units", [1, 3, 16, 37])
def test_the_kernel_is_linear_cv(
    units: int,
    batch: tuple[int, ...],
    spoil: bool,
    kernels: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_kernel, by_torch = LinearCV(), LinearCV()
    ours = trained(by_kernel, batch, spoil=spoil, units=units)
    assert kernels.count("linear_cv") == STEPS
    monkeypatch.setattr(compiler, "usable", lambda *_: False)
    expected = trained(by_torch, batch, spoil=spoil, units=units)
    assert kernels.count("linear_cv") == STEPS
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    torch.testing.assert_close(by_kernel.sums, by_torch.sums, rtol=1e-3, atol=1e-3)
    if batch != (0,):
        assert (by_kernel.sums[1] > 0).all()


def test_more_samples_or_digits_are_torchs(kernels: list[str]) -> None:
    for linear in (LinearCV(3), LinearCV().double()):
        trained(linear, (4,))
        assert linear.sums[1, 0] > 0
    assert "linear_cv" not in kernels


@pytest.mark.parametrize("make", [NVIL, LinearCV])
def test_what_does_not_learn_is_left_alone(make: type[Estimator], kernels: list[str]) -> None:
    estimator = make()
    inputs = 2 if estimator.uses_context else None
    trained(estimator, (4,), inputs)
    before = {name: tensor.clone() for name, tensor in estimator.state_dict().items()}
    estimator.adapt = False
    trained(estimator, (4,), inputs)
    assert len(kernels) == 2 * STEPS
    for name, tensor in estimator.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    ("made", "inputs"),
    [(lambda: NVIL().double(), 2), (lambda: NVIL(hidden=1), 2**13 + 1)],
    ids=["fp64", "more inputs than the kernel is for"],
)
def test_other_cases_are_torchs(made: Any, inputs: int, kernels: list[str]) -> None:
    nvil = made()
    trained(nvil, (4,), inputs)
    assert "nvil" not in kernels
    assert nvil.network.adam.steps == STEPS


def estimated(nvil: NVIL, L: Tensor, x: Tensor) -> Tensor:
    a = torch.zeros(len(L), 3)
    noise = torch.rand(a.shape, generator=seeded(0))
    return nvil.estimate(lambda b: L, a, noise, x).gradient


def test_sizes_that_disagree_do_not_reach_the_kernel(kernels: list[str]) -> None:
    """What is loaded brings its own sizes: torch's operations refuse them."""
    small, large = NVIL(), NVIL()
    trained(small, (4,), 2)
    trained(large, (4,), 20)
    kernels.clear()
    weights = {k: v for k, v in large.state_dict().items() if "adam" not in k}
    small.load_state_dict(weights, strict=False)
    with pytest.raises(RuntimeError, match="size of tensor"):
        trained(small, (4,), 20)
    large.sums = torch.zeros(2)
    with pytest.raises(ValueError, match="unpack"):
        trained(large, (4,), 20)
    assert "nvil" not in kernels


def test_one_row_of_context_is_for_all(kernels: list[str]) -> None:
    x, L = torch.randn(4, 2, generator=seeded(1)), torch.arange(4.0)
    nvil = NVIL()
    trained(nvil, (4,), 2)
    nvil.eval()
    kernels.clear()
    row = estimated(nvil, L, x[:1])
    assert "nvil" not in kernels
    torch.testing.assert_close(row, estimated(nvil, L, x[:1].expand(4, 2).contiguous()))


def test_losses_that_are_yet_to_be_negated(kernels: list[str]) -> None:
    """torch keeps a sign beside the memory of such tensors; a kernel sees the memory alone."""
    L, x = torch.randn(4, dtype=torch.complex64, generator=seeded(2)).conj().imag, torch.ones(4, 2)
    assert L.is_neg()
    torch.testing.assert_close(estimated(NVIL(), L, x), estimated(NVIL(), L.clone(), x))


@pytest.mark.parametrize("make", [NVIL, LinearCV])
def test_threads_that_train_at_once(make: type[Estimator]) -> None:
    alone, *many = (make() for _ in range(5))
    inputs = 5 if alone.uses_context else None
    trained(alone, (7,), inputs)
    workers = [Thread(target=trained, args=(each, (7,), inputs)) for each in many]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for each in many:
        for name, tensor in alone.state_dict().items():
            assert torch.equal(each.state_dict()[name], tensor)


def test_inputs_of_another_dtype_and_layout(kernels: list[str]) -> None:
    x = torch.randn(6, 4, generator=seeded(1)).bfloat16()
    wide = x.float().T.contiguous().T
    found = []
    for context in (x, wide):
        nvil = NVIL()
        for step in range(3):
            a = torch.zeros(6, 3)
            hardgate.expectation(
                lambda b: b.sum(-1), a, nvil, generator=seeded(step), context=context
            )
        found.append(nvil.network.weights)
    assert kernels.count("nvil") == 6
    assert torch.equal(*found)

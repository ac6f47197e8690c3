"""NVIL's baseline by one kernel against the same in plain torch, which defines it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import hardgate
from hardgate.estimators import NVIL
from hardgate.kernels import compiler
from tests.estimator_cases import seeded

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


def trained(nvil: NVIL, batch: tuple[int, ...], inputs: int | None, spoil: bool = False) -> Tensor:
    """Gradients of some steps, on losses that depend on the context."""
    generator, found = seeded(0), []
    for step in range(STEPS):
        a = torch.randn(*batch, 3, generator=generator).requires_grad_()
        x = None if inputs is None else torch.randn(*batch, inputs, generator=generator)
        shift = 5.0 if x is None else 5 + 2 * x.sum(-1)
        if spoil and step % 3 == 1:
            shift = shift * float("nan" if step % 2 else "inf")
        value = hardgate.expectation(
            lambda b, shift=shift: b.sum(-1).square() + shift,  # type: ignore[misc]
            a,
            nvil,
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
    assert kernels.count("step") == STEPS
    monkeypatch.setattr(compiler, "usable", lambda *_: False)
    expected = trained(by_torch, batch, inputs, spoil)
    assert kernels.count("step") == STEPS
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    for name, tensor in by_torch.state_dict().items():
        torch.testing.assert_close(by_kernel.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)
    if batch != (0,) and not spoil:
        assert by_kernel.sums[0] > 0
        assert inputs is None or by_kernel.network.adam.steps == STEPS


def test_what_does_not_learn_is_left_alone(kernels: list[str]) -> None:
    nvil = NVIL()
    trained(nvil, (4,), 2)
    before = {name: tensor.clone() for name, tensor in nvil.state_dict().items()}
    nvil.adapt = False
    trained(nvil, (4,), 2)
    assert kernels.count("step") == 2 * STEPS
    for name, tensor in nvil.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    "made", [lambda: NVIL().double(), NVIL], ids=["fp64", "more inputs than the kernel is for"]
)
def test_other_cases_are_torchs(made: Any, kernels: list[str]) -> None:
    nvil = made()
    trained(nvil, (4,), 2 if nvil.sums.dtype is torch.float64 else 257)
    assert "step" not in kernels
    assert nvil.network.adam.steps == STEPS


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
    assert kernels.count("step") == 6
    assert torch.equal(*found)

"""Weights in bf16: read as they are, widened in the register, where no gradient is wanted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import hardgate
from hardgate import ConditionalLinear, ConditionalMLP, NoisyRectifier, Rectifier
from tests.support.kernel_cases import CASES, EVERY, Case, Tensors, call, defined, error, path

WEIGHTS = ("w_in", "w_out")


def narrow(case: Case) -> Tensors:
    """The case in fp32, its weights in bf16."""
    t = replace(case, dtype=torch.float32).tensors()
    return {k: v.bfloat16() if k in WEIGHTS and v is not None else v for k, v in t.items()}


def widened(t: Tensors) -> Tensors:
    return {k: None if v is None else v.float() for k, v in t.items()}


class Copies(TorchDispatchMode):
    """Which shapes are copied into another dtype."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: list[tuple[int, ...]] = []

    def __torch_dispatch__(
        self, f: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if f is torch.ops.aten._to_copy.default:
            self.shapes.append(tuple(args[0].shape))
        return f(*args, **(kwargs or {}))


@EVERY
@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=CASES)
def test_values_are_those_of_the_reference(backend: Any, case: Case) -> None:
    t = narrow(case)
    y = call(t, backend, case.relu)
    assert y.dtype == torch.float32
    assert error(y, defined(widened(t), case.relu)["y"]) <= 3e-5


@pytest.mark.parametrize("out", [None, 10, 100, 1100], ids=str)
@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("B", [1, 8, 33, 200])
def test_the_same_bits_as_with_the_weights_in_fp32(B: int, block: int, out: int | None) -> None:
    """Long rows, many chunks, and for blocks the second pass in strips."""
    t = narrow(Case(B=B, n_in=203, gates=150, block=block, out=out))
    assert torch.equal(call(t, "sparse"), call(widened(t), "sparse"))


def test_every_bf16_number_is_widened_right() -> None:
    """All 65 536 of them, ±0, subnormal, ∞ and NaN too: each a weight of its own."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    w = bits.view(torch.bfloat16).reshape(-1, 1)
    one = torch.ones(1, 1)
    h = hardgate.functional.conditional_linear(
        one, torch.ones(1, len(w)), w, None, backend="sparse"
    )
    torch.testing.assert_close(h[0], w.float()[:, 0], rtol=0, atol=0, equal_nan=True)
    gates = torch.diag(torch.ones(len(w[:999])))  # the way down, in long rows
    tall = w[10_000:10_999].repeat(1, 40)
    y = hardgate.functional.conditional_mlp(
        torch.ones(999, 1), gates, torch.ones(999, 1).bfloat16(), None, tall.t(), None,
        backend="sparse",
    )  # fmt: skip
    torch.testing.assert_close(y, tall.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("of_x", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_no_weight_is_copied_without_gradients(of_x: torch.dtype) -> None:
    t: Tensors = narrow(Case(n_in=9, out=11))
    t = {k: v if v is None else v.bfloat16() for k, v in t.items()}
    t["x"], shapes = t["x"].to(of_x), {(12, 9), (11, 12), (12, 11)}
    with Copies() as copies:
        y = call(t, "sparse")
    assert y.dtype == of_x
    assert not shapes & set(copies.shapes)
    t["w_in"].requires_grad_()
    with Copies() as copies:  # the negative control
        call(t, "sparse").sum().backward()
    assert shapes & set(copies.shapes)
    assert t["w_in"].grad.dtype == torch.bfloat16
    with torch.no_grad(), Copies() as copies:
        call(t, "sparse")
    assert not shapes & set(copies.shapes)


def test_mixed_weights_and_fp64_are_widened() -> None:
    t = narrow(Case())
    for other in (t | {"w_out": t["w_out"].float()}, t | {"x": t["x"].double()}):
        y = call(other, "sparse")
        assert y.dtype == other["x"].dtype
        assert error(y, defined(widened(t))["y"]) <= 3e-5


def test_a_unit_that_is_off_is_not_evaluated() -> None:
    t = narrow(Case(B=4, gates=24))
    on = (t["gates"] != 0).any(0)
    assert not on.all()
    expected = call(t, "sparse")
    t["w_in"][~on], t["w_out"][:, ~on] = torch.nan, torch.inf
    for backend in ("sparse", "dense"):
        torch.testing.assert_close(call(t, backend), expected)
    t["w_in"][on.nonzero()[0]] = torch.nan
    assert call(t, "sparse").isnan().any()


@pytest.mark.parametrize(
    ("B", "n_in", "taken"), [(5, 600, "sparse"), (127, 90, "sparse"), (200, 90, "dense")]
)
def test_the_usual_call_without_gradients(B: int, n_in: int, taken: str) -> None:
    """All contiguous, w_out unit-major; where dense products win, they widen."""
    t = narrow(Case(B=B, n_in=n_in, gates=400, out=20, density=0.9))
    t["w_out"] = t["w_out"].t().contiguous().t()
    with torch.no_grad():
        y = call(t)
        found = path(t)
    assert found is not None
    assert found.backend == taken
    assert error(y, defined(widened(t))["y"]) <= 3e-5


def test_auto_reads_them_at_any_density_in_small_batches() -> None:
    t = narrow(Case(B=32, n_in=300, gates=400, density=0.95))
    for tensors, backend in ((t, "sparse"), (widened(t), "dense")):
        found = path(tensors)
        assert found is not None
        assert found.backend == backend


# --- in layers -----------------------------------------------------------------------------------


def network() -> tuple[ConditionalMLP, ConditionalMLP, Tensor]:
    """A network with its experts in bf16 and its gater in fp32, and the same rounded, in fp32."""
    torch.manual_seed(0)
    layer = ConditionalMLP(20, 256, 30, bottleneck=9, unit=Rectifier(), backend="sparse").eval()
    for part in (layer.experts, layer.out):
        part.bfloat16()
    rounded = ConditionalMLP(20, 256, 30, bottleneck=9, unit=Rectifier(), backend="sparse").eval()
    rounded.load_state_dict(layer.state_dict())
    return layer, rounded, torch.randn(6, 20)


def test_experts_in_bf16_behind_a_gater_in_fp32(tmp_path: Path) -> None:
    layer, rounded, x = network()
    assert layer.out.weight.is_contiguous()
    with torch.no_grad():
        expected = rounded(x)
        assert torch.equal(layer(x), expected)
        hardgate.save(layer, tmp_path / "m")
        assert torch.equal(hardgate.load(tmp_path / "m")(x), expected)
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), expected)
        exported = torch.export.export(layer, (x,)).module()
        assert torch.equal(exported(x), expected)


def test_they_train() -> None:
    layer, rounded, x = network()
    for each in (layer, rounded):
        each.train()(x).square().sum().backward()
    for name, p in layer.named_parameters():
        expected = rounded.get_parameter(name).grad
        assert p.grad is not None
        assert expected is not None
        assert p.grad.dtype == p.dtype
        assert torch.allclose(p.grad.float(), expected, rtol=1e-2, atol=1e-2), name


def test_a_whole_network_in_bf16() -> None:
    torch.manual_seed(0)
    layer = ConditionalLinear(
        20, 64, bottleneck=9, unit=NoisyRectifier(), backend="sparse", dtype=torch.bfloat16
    ).eval()
    x = torch.randn(3, 20, dtype=torch.bfloat16)
    with torch.no_grad():
        y, gates = layer(x), layer.gater(x)
    expected = (x.float() @ layer.experts.weight.float().T + layer.experts.bias.float()) * gates
    torch.testing.assert_close(y, expected.bfloat16())

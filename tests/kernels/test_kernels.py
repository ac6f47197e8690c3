"""The conditional layer: every path computes what the reference defines, and its gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from hardgate.functional import conditional_mlp
from hardgate.kernels import sparse
from hardgate.kernels.compiler import run
from hardgate.kernels.dispatch import Backend
from tests.support.kernel_cases import (
    CASES,
    EVERY,
    NAMES,
    TOLERANCE,
    Case,
    Tensors,
    call,
    computed,
    defined,
    differentiate,
    error,
)


def assert_equal(case: Case, backend: Backend) -> None:
    got, expected = computed(case, backend), defined(case.tensors(), case.relu)
    assert got.keys() == expected.keys()
    errors = {k: error(got[k], expected[k]) for k in got}
    assert max(errors.values()) <= TOLERANCE[case.dtype], errors


# --- equality ----------------------------------------------------------------------------------


@EVERY
@settings(max_examples=120, deadline=None, derandomize=True)
@given(case=CASES)
def test_values_and_gradients_are_those_of_the_reference(backend: Backend, case: Case) -> None:
    assert_equal(case, backend)


@EVERY
@pytest.mark.parametrize("block", [1, 4, 16, 64])  # 64: one gate for all
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_blocks(backend: Backend, block: int, density: float, dtype: torch.dtype) -> None:
    case = Case(B=19, gates=64 // block, block=block, density=density, dtype=dtype, out=33)
    for relu in (False, True):
        assert_equal(replace(case, relu=relu), backend)
        assert_equal(replace(case, relu=relu, out=None), backend)


PAPER = Case(n_in=784, gates=2000, out=10, density=0.1, dtype=torch.float32)
WIDE = Case(n_in=64, gates=512, out=130, density=0.2, dtype=torch.float32)
LARGE = {
    "paper": PAPER,
    "paper, blocks of 16": replace(PAPER, gates=125, block=16),
    "wide": WIDE,
    "wide, blocks of 4": replace(WIDE, gates=128, block=4),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("B", [1, 33])
@pytest.mark.parametrize("relu", [False, True])
def test_large_layers(name: str, B: int, relu: bool) -> None:
    case = replace(LARGE[name], B=B, relu=relu)
    expected = differentiate(
        {k: None if v is None else v.double() for k, v in case.tensors().items()},
        lambda t: call(t, "dense", relu),
    )
    got = computed(case, "sparse")
    errors = {k: error(got[k], expected[k]) for k in got}
    assert max(errors.values()) <= 3e-5, errors
    with torch.no_grad():
        y = call(case.tensors(), "sparse", relu)
    assert error(y, expected["y"]) <= 3e-5


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("density", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_one_example_without_gradients(block: int, density: float, dtype: torch.dtype) -> None:
    for relu in (False, True):
        case = Case(B=1, gates=11, block=block, density=density, dtype=dtype, relu=relu)
        for out in (1, 3, 40):
            t = replace(case, out=out).tensors()
            assert error(call(t, "sparse", relu), defined(t, relu)["y"]) <= TOLERANCE[dtype]


@EVERY
@pytest.mark.parametrize("block", [1, 4])
def test_skewed_gates(backend: Backend, block: int) -> None:
    """Some units always on, some never; one example with everything off, one with all on."""
    t = Case(B=40, gates=32, block=block, density=0.2, dtype=torch.float32, out=40).tensors()
    gates = t["gates"]
    gates[:, :3], gates[:, -9:], gates[7], gates[8] = 1.5, 0.0, 0.0, -1.0
    got, expected = differentiate(t, lambda leaves: call(leaves, backend)), defined(t)
    assert max(error(got[k], expected[k]) for k in got) <= 3e-5
    assert torch.equal(got["y"][7], t["b_out"])
    assert got["w_in"][-9 * block :].all()  # thanks to example 8
    gates[8] = 0
    never = differentiate(t, lambda leaves: call(leaves, backend))["w_in"]
    assert not never[-9 * block :].any()


@EVERY
def test_shapes_at_the_edge(backend: Backend) -> None:
    empty = [Case(B=0), Case(B=0, out=None), Case(B=0, block=4), Case(n_in=0), Case(out=0)]
    for case in (*empty, Case(B=1, gates=1, n_in=1)):
        assert_equal(case, backend)
        assert_equal(replace(case, dtype=torch.float32), backend)


@EVERY
@pytest.mark.parametrize("leading", [(), (2, 3), (0, 3), (2, 0), (1, 1, 4)])
@pytest.mark.parametrize("n_in", [7, 0])
def test_leading_dimensions(backend: Backend, leading: tuple[int, ...], n_in: int) -> None:
    t = Case(B=math.prod(leading), n_in=n_in).tensors()
    flat = differentiate(t, lambda leaves: call(leaves, backend))
    x, gates, dy = t["x"], t["gates"], t["dy"]
    shaped = {k: v.reshape(*leading, v.shape[-1]) for k, v in (("x", x), ("gates", gates))}
    got = differentiate(
        {**t, **shaped, "dy": dy.reshape(*leading, 3)}, lambda leaves: call(leaves, backend)
    )
    assert got["y"].shape == (*leading, 3)
    assert all(torch.equal(got[k].flatten(), flat[k].flatten()) for k in got)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(backend: Backend, dtype: torch.dtype) -> None:
    half = Case(B=9, n_in=33, out=5, dtype=dtype, probe=0.5).tensors()
    single = {k: None if v is None else v.float() for k, v in half.items()}
    got = differentiate(half, lambda t: call(t, backend))
    expected = differentiate(single, lambda t: call(t, backend))
    for k in got:
        assert got[k].dtype == dtype
        assert torch.equal(got[k], expected[k].to(dtype)), k


@EVERY
def test_gates_and_weights_may_have_another_float_dtype(backend: Backend) -> None:
    t = Case(dtype=torch.float32).tensors()
    w_in, gates = t["w_in"], t["gates"]
    mixed = {**t, "w_in": w_in.double(), "gates": gates.bfloat16()}
    got = differentiate(mixed, lambda leaves: call(leaves, backend))
    assert got["y"].dtype == torch.float32
    assert got["w_in"].dtype == torch.float64
    assert got["gates"].dtype == torch.bfloat16
    rounded = {**t, "gates": gates.bfloat16().float()}
    assert error(got["y"], defined(rounded)["y"]) <= 3e-5


@EVERY
def test_only_the_gradients_that_are_wanted(backend: Backend) -> None:
    t, whole = Case(probe=0.3).tensors(), computed(Case(probe=0.3), backend)
    for name in NAMES:
        leaf = t[name]
        leaf = leaf.detach().requires_grad_()
        y = call({**t, name: leaf}, backend)
        (gradient,) = torch.autograd.grad(y, leaf, t["dy"])
        assert error(gradient, whole[name]) <= 1e-12


# --- gradients ---------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("block", [1, 4, 12])
@pytest.mark.parametrize("out", [None, 3])
@pytest.mark.parametrize("relu", [False, True])
def test_gradcheck(backend: Backend, block: int, out: int | None, relu: bool) -> None:
    case = Case(B=3, n_in=4, gates=12 // block, block=block, out=out, density=0.5, seed=1)
    t = case.tensors()
    gates, names = t["gates"], [k for k in NAMES if t[k] is not None]
    on = (gates != 0).double()  # an off gate stays off while it is disturbed

    def f(*leaves: Tensor) -> Tensor:
        d: Tensors = {**t, **dict(zip(names, leaves, strict=True))}
        return call({**d, "gates": d["gates"] * on}, backend, relu)

    leaves = [t[k].detach().requires_grad_() for k in names]
    assert torch.autograd.gradcheck(f, leaves)


@EVERY
@pytest.mark.parametrize("block", [1, 4])
def test_the_gates_gradient_is_weighted_by_the_probe(backend: Backend, block: int) -> None:
    """Weight 1 where the gate is on, the probe's where it is off, whatever the probe says."""
    t = Case(B=6, block=block, probe=0.5).tensors()
    x, gates, w_in, b_in, w_out, _ = (t[k] for k in NAMES)
    probe, dy = t["probe"], t["dy"]
    H, ds = x @ w_in.T + b_in, dy @ w_out
    exact = (H * ds).unflatten(1, (-1, block)).sum(-1)
    weight = torch.where(gates != 0, torch.ones_like(probe), probe)
    got = differentiate(t, lambda leaves: call(leaves, backend))
    assert error(got["gates"], exact * weight) <= 1e-12
    without = differentiate({**t, "probe": None}, lambda leaves: call(leaves, backend))
    assert error(without["gates"], exact * (gates != 0)) <= 1e-12
    assert all(torch.equal(got[k], without[k]) for k in got if k != "gates")
    assert {*weight.ne(0).flatten().tolist()} == {True, False}
    assert (gates * probe).any()


@EVERY
def test_a_probe_has_no_gradient(backend: Backend) -> None:
    t = Case(probe=0.5).tensors()
    probe = t["probe"]
    probe.requires_grad_()
    assert not call(t, backend).requires_grad


@EVERY
def test_derivatives_of_second_order_are_refused(backend: Backend) -> None:
    t = Case().tensors()
    x = t["x"]
    x.requires_grad_()
    for power in (1, 2):  # the gradient that comes in has no graph, or has one
        loss = call(t, backend).pow(power).sum()
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        with pytest.raises(RuntimeError, match=r"derivatives of first order.*linear\(linear"):
            gradient.sum().backward()
    with pytest.raises(RuntimeError, match="derivatives of first order"):
        torch.autograd.functional.hessian(lambda x: call({**t, "x": x}, backend).sum(), x)
    (gradient,) = torch.autograd.grad(call(t, backend).sum(), x)
    assert not gradient.requires_grad


@EVERY
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, inside jvp
def test_forward_mode_is_refused(backend: Backend) -> None:
    t = Case().tensors()
    x = t["x"]
    with pytest.raises(NotImplementedError, match="forward-mode"):
        torch.func.jvp(lambda v: call({**t, "x": v}, backend), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError, match="forward-mode"):
            call({**t, "x": dual}, backend)
        assert call(t, backend).shape == (5, 3)


@EVERY
def test_backward_twice_and_a_changed_weight(backend: Backend) -> None:
    t = Case().tensors()
    x, w_in = t["x"], t["w_in"]
    x.requires_grad_()
    y = call(t, backend).sum()
    first, second = (torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    w_in.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


# --- what is off does not exist; what is on comes through --------------------------------------

BAD = [math.nan, math.inf, -math.inf]


@EVERY
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("name", "out"), [("w_in", None), ("b_in", None), ("w_in", 3), ("b_in", 3), ("w_out", 3)]
)
@pytest.mark.parametrize("relu", [False, True])
def test_units_that_are_off_do_not_leak(
    backend: Backend, bad: float, name: str, out: int | None, relu: bool
) -> None:
    t = Case(B=8, block=2, out=out, probe=0.3).tensors()
    gates, probe, w = t["gates"], t["probe"], t[name]
    t["x"] = t["x"].abs()  # so that -∞ stays -∞, and a ReLU hides it
    gates[:, 3], probe[:, 3] = 0.0, 0.0
    clean = differentiate(t, lambda leaves: call(leaves, backend, relu))
    if name == "w_out":
        w[:, 6:8] = bad
    else:
        w[6:8] = bad
    got = differentiate(t, lambda leaves: call(leaves, backend, relu))
    for k in got:
        assert got[k].isfinite().all(), k
        assert error(got[k], clean[k]) <= 1e-12, k
    t["dy"] = t["dy"] * 0
    still = differentiate(t, lambda leaves: call(leaves, backend, relu))
    assert all(v.isfinite().all() for v in still.values())


@EVERY
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["x", "w_in", "b_in", "w_out", "b_out", "dy", "gates", "probe"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("block", [1, 4])
def test_nan_and_infinity_go_where_the_reference_sends_them(
    backend: Backend, bad: float, name: str, relu: bool, block: int
) -> None:
    """And nowhere else: units that are on for some examples, off for others."""
    t = Case(B=9, block=block, density=0.4, probe=0.3).tensors()
    w = t[name]
    w.view(-1)[w.numel() // 2] = bad
    got = differentiate(t, lambda leaves: call(leaves, backend, relu))
    expected = defined(t, relu)
    for k in got:
        torch.testing.assert_close(got[k], expected[k], rtol=1e-9, atol=1e-9, equal_nan=True)


@EVERY
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ["x", "w_in", "b_in", "w_out", "b_out", "dy"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("B", [1, 6])
def test_with_every_gate_on_nan_and_infinity_are_those_of_torch(
    backend: Backend, bad: float, name: str, relu: bool, B: int
) -> None:
    t = Case(B=B, density=1.0).tensors()
    w = t[name]
    w.view(-1)[w.numel() // 2] = bad

    def plain(d: dict[str, Any]) -> Tensor:
        H = nn.functional.linear(d["x"], d["w_in"], d["b_in"])
        H = torch.relu(H) if relu else H
        return nn.functional.linear(H * d["gates"], d["w_out"], d["b_out"])

    got = differentiate(t, lambda leaves: call(leaves, backend, relu))
    expected = differentiate(t, plain)
    for k in got:
        torch.testing.assert_close(got[k], expected[k], rtol=1e-9, atol=1e-9, equal_nan=True)
    with torch.no_grad():
        y = call(t, backend, relu)
    torch.testing.assert_close(y, expected["y"], rtol=1e-9, atol=1e-9, equal_nan=True)


@EVERY
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("B", [1, 2])
def test_on_means_not_zero(backend: Backend, dtype: torch.dtype, B: int) -> None:
    """-0 is off; a denormal number is on: seen by a gradient, and by an infinite weight."""
    tiny = torch.finfo(dtype).smallest_normal / 4
    gates = torch.tensor([[-0.0, tiny, 0.0, -tiny]], dtype=dtype).repeat(B, 1).requires_grad_()
    x, w_in = torch.ones(B, 1, dtype=dtype), torch.ones(4, 1, dtype=dtype)
    conditional_mlp(x, gates, w_in, None, w_in.t(), None, backend=backend).sum().backward()
    assert gates.grad is not None
    assert gates.grad.tolist() == [[0.0, 1.0, 0.0, 1.0]] * B
    for unit, on in enumerate([False, True, False, True]):
        w_out = torch.ones(1, 4, dtype=dtype)
        w_out[0, unit] = math.inf
        with torch.no_grad():
            y = conditional_mlp(x, gates, w_in, None, w_out, None, backend=backend)
        assert y.isinf().all().item() is on


# --- layouts -----------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_gradient_of_w_out_has_its_layout(backend: Backend, dtype: torch.dtype) -> None:
    t = Case(dtype=dtype).tensors()
    for layout in (torch.randn(12, 3, dtype=dtype).t(), torch.randn(3, 12, dtype=dtype)):
        w_out = nn.Parameter(layout)
        call({**t, "w_out": w_out}, backend).sum().backward()
        assert w_out.grad is not None
        assert w_out.grad.stride() == w_out.stride()
    unit_major = torch.randn(12, 3, dtype=dtype).t().requires_grad_()
    y = call({**t, "w_out": unit_major}, backend)
    (gradient,) = torch.autograd.grad(y, unit_major, t["dy"])
    assert gradient.stride() == unit_major.stride() == (1, 3)


@pytest.mark.parametrize("B", [1, 5])
@pytest.mark.parametrize("gradients", [False, True])
def test_unit_major_weights_are_not_copied(
    monkeypatch: pytest.MonkeyPatch, B: int, gradients: bool
) -> None:
    """The kernels are given the memory of x, gates, w_in and the transposed w_out itself."""
    seen: set[float] = set()

    def spied(name: str, dtype: torch.dtype, *arguments: float) -> Any:
        seen.update(arguments)
        return run(name, dtype, *arguments)

    monkeypatch.setattr(sparse, "run", spied)
    t = Case(B=B, dtype=torch.float32).tensors()
    w_out = torch.randn(12, 3).t().requires_grad_(gradients)
    y = call({**t, "w_out": w_out}, "sparse")
    if gradients:
        y.sum().backward()
    used = [t["x"], t["gates"], t["w_in"], t["b_in"], w_out]
    assert all(tensor is not None and tensor.data_ptr() in seen for tensor in used)
    seen.clear()  # memory that was freed comes back
    output_major = torch.randn(3, 12)
    call({**t, "w_out": output_major}, "sparse")
    assert output_major.data_ptr() not in seen

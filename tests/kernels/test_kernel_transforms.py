"""The conditional layer under torch.func: examples folded, weights one sample at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import hardgate
from hardgate.functional import conditional_mlp
from hardgate.kernels import sparse
from hardgate.kernels.dispatch import Backend
from hardgate.kernels.problem import Problem
from tests.support.kernel_cases import EVERY, Case, Tensors, call, differentiate, path


def layer(t: Tensors, backend: Backend, **change: Tensor) -> Tensor:
    return call({**t, **change}, backend)


@EVERY
@pytest.mark.parametrize("probe", [0.0, 0.3])
def test_examples_are_folded_into_one_batch(backend: Backend, probe: float) -> None:
    t = Case(B=6, probe=probe).tensors()
    y = call(t, backend)
    stacked: Tensors = {k: t[k].unflatten(0, (2, 3)) for k in ("x", "gates")}
    mapped = torch.vmap(lambda x, gates: layer(t | {"probe": None}, backend, x=x, gates=gates))
    torch.testing.assert_close(mapped(*stacked.values()).flatten(0, 1), y)
    alone = torch.vmap(lambda x, gates: layer({**t, "probe": None}, backend, x=x, gates=gates))
    torch.testing.assert_close(alone(t["x"], t["gates"]), y)  # one example a sample


@EVERY
def test_one_input_for_many_gates(backend: Backend) -> None:
    t = Case(B=6).tensors()
    x = t["x"][:1]
    mapped = torch.vmap(lambda gates: layer(t, backend, x=x, gates=gates.unsqueeze(0)))
    together = layer(t, backend, x=x.expand(6, -1))
    torch.testing.assert_close(mapped(t["gates"]).squeeze(1), together)


@EVERY
def test_weights_of_their_own(backend: Backend) -> None:
    t = Case(B=4).tensors()
    w_in = torch.stack([t["w_in"], 2 * t["w_in"]])
    mapped = torch.vmap(lambda w: layer(t, backend, w_in=w))(w_in)
    for k in range(2):
        torch.testing.assert_close(mapped[k], layer(t, backend, w_in=w_in[k]))


@EVERY
def test_gradients_of_each_sample(backend: Backend) -> None:
    t = Case(B=3).tensors()

    def loss(w_in: Tensor, x: Tensor, gates: Tensor) -> Tensor:
        return layer(t, backend, w_in=w_in, x=x, gates=gates).square().sum()

    each = torch.vmap(torch.func.grad(loss), (None, 0, 0))(t["w_in"], t["x"], t["gates"])
    w_in = t["w_in"].clone().requires_grad_()
    for k in range(3):
        one = loss(w_in, t["x"][k : k + 1], t["gates"][k : k + 1])
        torch.testing.assert_close(each[k], torch.autograd.grad(one, w_in)[0])


@EVERY
def test_jacobian(backend: Backend) -> None:
    t = Case(B=2).tensors()
    jacobian = torch.func.jacrev(lambda x: layer(t, backend, x=x))(t["x"])
    assert jacobian.shape == (2, 3, 2, 7)
    for b in range(2):
        for o in range(3):
            dy = torch.zeros(2, 3, dtype=torch.float64)
            dy[b, o] = 1.0
            expected = differentiate({**t, "dy": dy}, lambda leaves: call(leaves, backend))["x"]
            torch.testing.assert_close(jacobian[b, o], expected)


def test_a_large_layer_takes_the_kernels_when_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Problem] = []
    forward = sparse.forward

    def noted(problem: Problem, keep: bool = True) -> Any:
        calls.append(problem)
        return forward(problem, keep)

    monkeypatch.setattr(sparse, "forward", noted)
    t = Case(B=64, n_in=100, gates=400, out=10, density=0.1, dtype=torch.float32).tensors()
    weights = (t["w_in"], t["b_in"], t["w_out"], t["b_out"])
    y = torch.vmap(lambda x, gates: conditional_mlp(x, gates, *weights))(t["x"], t["gates"])
    assert len(calls) == 1
    torch.testing.assert_close(y, call(t, "dense"), rtol=1e-4, atol=1e-4)


# --- who watches operations sees one -----------------------------------------------------------


def evaluated(backend: Backend) -> hardgate.ConditionalMLP:
    torch.manual_seed(0)
    unit = hardgate.Rectifier()
    return hardgate.ConditionalMLP(6, 32, 3, bottleneck=5, unit=unit, backend=backend).eval()


@EVERY
@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor:torch.jit.TracerWarning")
@pytest.mark.parametrize("learning", [False, True])
def test_a_trace_holds_the_layer(backend: Backend, learning: bool) -> None:
    """Of the kernels it would hold their output's memory, and not what fills it."""
    model, x = evaluated(backend), torch.randn(9, 6)
    with torch.set_grad_enabled(learning):
        traced = torch.jit.trace(model, x)
        graph = make_fx(model)(x)
        for other in (x + 1, torch.randn(9, 6)):
            torch.testing.assert_close(traced(other), model(other))
            torch.testing.assert_close(graph(other), model(other))
        torch.testing.assert_close(traced(torch.ones(3, 6)), model(torch.ones(3, 6)))


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("backend", ["auto", "sparse"])
def test_tensors_without_memory_of_their_own_run_dense(backend: Backend, learning: bool) -> None:
    """A DTensor, say: its address is 0, and a kernel would end the process."""
    t = Case(B=8, n_in=128, gates=1024, dtype=torch.float32).tensors()
    t["w_out"] = t["w_out"].t().contiguous().t()
    wrapped: Tensors = {k: v if v is None or k == "dy" else TwoTensor(v, v) for k, v in t.items()}
    with torch.set_grad_enabled(learning):
        if learning:
            wrapped["gates"].requires_grad_()
        y = call(wrapped, backend)
        taken = path(wrapped, backend)
    assert taken is not None
    assert taken.why == "a tensor of another class than torch's own"
    assert isinstance(y, TwoTensor)
    torch.testing.assert_close(y.a, call(t, "dense"))
    if learning:
        y.backward(TwoTensor(t["dy"], t["dy"]))
        expected = differentiate(t, lambda leaves: call(leaves, "dense"))["gates"]
        torch.testing.assert_close(wrapped["gates"].grad.a, expected)


def test_a_gater_of_such_tensors_runs_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hardgate.kernels.op.SMALL", 0)
    model, x = evaluated("sparse"), torch.randn(9, 6)
    model(x).sum().backward()
    expected = model.gater.output.weight.grad
    model.zero_grad()
    model(TwoTensor(x, x)).sum().backward()
    found = model.gater.output.weight.grad
    torch.testing.assert_close(getattr(found, "a", found), expected)

"""Layers of every size for the kernels: a case, its call, and what the reference makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from hardgate.functional import conditional_linear, conditional_mlp
from hardgate.kernels import reference
from hardgate.kernels.dispatch import Backend, ExecutionPath
from hardgate.kernels.op import conditional
from hardgate.kernels.problem import Gradients, Problem, Wanted, Weights

BACKENDS: tuple[Backend, ...] = ("dense", "sparse")
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-10}
NAMES = ("x", "gates", "w_in", "b_in", "w_out", "b_out")
Tensors = dict[str, Any]  # by name; None for what a layer does not have
EVERY = pytest.mark.parametrize("backend", BACKENDS)
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    "offset": lambda t: torch.cat([t[:1], t])[min(1, len(t)) :],
}


@dataclass(frozen=True)
class Case:
    """One layer and its input; `out` None is the layer without an output transform."""

    B: int = 5
    n_in: int = 7
    gates: int = 12
    block: int = 1
    out: int | None = 3
    density: float = 0.3
    dtype: torch.dtype = torch.float64
    relu: bool = False
    bias: bool = True
    probe: float = 0.0
    layout: str = "contiguous"
    seed: int = 0

    def tensors(self) -> Tensors:
        r = torch.Generator().manual_seed(self.seed)
        hidden = self.gates * self.block

        def normal(*shape: int) -> Tensor:
            return LAYOUTS[self.layout](torch.randn(shape, generator=r).to(self.dtype))

        def some(fraction: float) -> Tensor:
            on = torch.rand(self.B, self.gates, generator=r) < fraction
            return LAYOUTS[self.layout](on * normal(self.B, self.gates))

        return {
            "x": normal(self.B, self.n_in),
            "gates": some(self.density),
            "w_in": normal(hidden, self.n_in),
            "b_in": normal(hidden) if self.bias else None,
            "w_out": None if self.out is None else normal(self.out, hidden),
            "b_out": None if self.out is None or not self.bias else normal(self.out),
            "probe": some(self.probe) if self.probe else None,
            "dy": normal(self.B, hidden if self.out is None else self.out),
        }


def path(t: Tensors, backend: Backend = "auto") -> ExecutionPath | None:
    """The path that a call with these tensors takes."""
    x, gates, w_in, b_in, w_out, b_out = (t[name] for name in NAMES)
    weights = Weights(w_in, b_in, None if w_out is None else w_out.t(), b_out)
    return conditional(x, gates, weights, probe=t.get("probe"), backend=backend)[1]


def call(t: Tensors, backend: Backend = "auto", relu: bool = False) -> Tensor:
    x, gates, w_in, b_in, w_out, b_out = (t[name] for name in NAMES)
    options: dict[str, Any] = {"backend": backend, "relu": relu, "probe": t.get("probe")}
    if w_out is None:
        return conditional_linear(x, gates, w_in, b_in, **options)
    return conditional_mlp(x, gates, w_in, b_in, w_out, b_out, **options)


def differentiate(t: Tensors, f: Callable[[Tensors], Tensor]) -> dict[str, Tensor]:
    """y and the gradients of everything, from autograd."""
    leaves: Tensors = {k: v if v is None else v.detach().requires_grad_() for k, v in t.items()}
    y, names = f(leaves), [k for k in NAMES if t[k] is not None]
    gradients = torch.autograd.grad(y, [leaves[k] for k in names], t["dy"])
    return {"y": y.detach(), **dict(zip(names, gradients, strict=True))}


def computed(case: Case, backend: Backend) -> dict[str, Tensor]:
    return differentiate(case.tensors(), lambda t: call(t, backend, case.relu))


def defined(t: Tensors, relu: bool = False) -> dict[str, Tensor]:
    """The same from `reference`, in double precision."""
    d: Tensors = {k: None if v is None else v.double() for k, v in t.items()}
    w_out, dy = d["w_out"], d["dy"]
    x, gates, w_in, b_in, _, b_out = (d[k] for k in NAMES)
    weights = Weights(w_in, b_in, None if w_out is None else w_out.t(), b_out)
    problem = Problem(x, gates, weights, d["probe"], relu)
    found: Gradients = reference.backward(problem, dy, Wanted())
    result = {k: getattr(found, k) for k in NAMES if t[k] is not None}
    if w_out is not None:
        result["w_out"] = result["w_out"].t()
    return {"y": reference.forward(problem)[0], **result}


def error(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value; NaN is infinitely wrong."""
    assert got.shape == expected.shape
    if expected.numel() == 0:
        return 0.0
    scale = max(expected.abs().max().item(), 1e-300)
    return (got.double() - expected).abs().nan_to_num(math.inf).max().item() / scale


CASES = st.builds(
    Case,
    B=st.integers(0, 9),
    n_in=st.integers(1, 19),
    gates=st.sampled_from([1, 2, 5, 9, 24]),
    block=st.sampled_from([1, 2, 4, 7, 16]),
    out=st.sampled_from([None, 1, 3, 10, 33]),
    density=st.sampled_from([0.0, 0.05, 0.3, 0.7, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    relu=st.booleans(),
    bias=st.booleans(),
    probe=st.sampled_from([0.0, 0.2, 1.0]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    seed=st.integers(0, 2**20),
)

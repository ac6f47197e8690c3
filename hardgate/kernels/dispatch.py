"""Whether the tensors of a conditional layer fit together, which implementation runs, and why."""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from hardgate.kernels import sparse
from hardgate.kernels.compiled.layout import BLOCK
from hardgate.kernels.compiler import plain, unavailable
from hardgate.kernels.problem import Problem, Weights

Backend = Literal["auto", "dense", "sparse"]
BACKENDS = get_args(Backend)

# Measured by benchmarks/layer.py: below SMALL dense products win at any density.
SMALL = 1_000_000  # multiply-adds of the up-projection
_FEW = 8  # examples for which the kernels, which read each weight once, win at any density
_MANY = 128  # examples from which dense products keep the processor busier
MANY = 2**30  # gates that the kernels' index, of 32 bits, can hold


def few(kind: torch.dtype) -> int:
    """Up to how many examples density does not matter; dense products have to widen bf16 first."""
    return _MANY - 1 if kind is torch.bfloat16 else _FEW


def break_even(batch: int, block: int = 1) -> float:
    """The density above which dense products win, of weights in fp32 and fp64.

    In blocks the kernels keep the processor as busy as dense products do.
    """
    if batch <= _FEW:
        return 1.0
    return 0.6 if batch < _MANY or block >= BLOCK else 0.35


class ExecutionPath(NamedTuple):
    """What one call of the layer did: the backend, why, and the density if that decided."""

    backend: str
    why: str
    density: float | None = None


_SPARSE_ASKED = ExecutionPath("sparse", "asked for")
_DENSE_ASKED = ExecutionPath("dense", "asked for")
_EMPTY = ExecutionPath("dense", "nothing to compute")
_ELSEWHERE = ExecutionPath("dense", "not on a CPU")
_WRAPPED = ExecutionPath("dense", "a tensor of another class than torch's own")
_TOO_SMALL = ExecutionPath("dense", "too small for the kernels to pay")
_TOO_MANY = ExecutionPath("dense", "more gates than the kernels' 32-bit index can hold")
_FEW_EXAMPLES = ExecutionPath("sparse", "few examples: the weights that are read count")

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_warned: set[str] = set()


def fits(x: Tensor, gates: Tensor, weights: Weights, probe: Tensor | None) -> bool:
    """Whether the tensors certainly fit and need no conversion: matrices of one dtype on the CPU.

    This runs on every call with cold caches: keep it cheap.
    """
    w_in, b_in, w_out, b_out = weights
    dtype, shape, gated, experts = x.dtype, x.shape, gates.shape, w_in.shape
    if not len(shape) == len(gated) == len(experts) == 2 or not x.is_cpu:
        return False
    (B, n), (rows, width), (hidden, incoming) = shape, gated, experts
    out = None if w_out is None else w_out.shape
    return (
        (dtype is torch.float32 or dtype is torch.float64)
        and gates.dtype is dtype
        and gates.is_cpu
        and w_in.dtype is dtype
        and w_in.is_cpu
        and rows == B
        and n == incoming
        and width > 0 < hidden
        and hidden % width == 0
        and (b_in is None or _is(b_in, dtype, (hidden,)))
        and (w_out is None or (w_out.dtype is dtype and w_out.is_cpu))
        and (b_out is None if out is None else len(out) == 2 and out[0] == hidden)
        and (b_out is None or out is None or _is(b_out, dtype, out[1:]))
        and (probe is None or _is(probe, dtype, gated))
    )


def _is(t: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return t.dtype is dtype and t.shape == shape and t.is_cpu


def check(x: Tensor, gates: Tensor, weights: Weights, probe: Tensor | None) -> None:
    """Raise, in words, if something does not fit; other dtypes and leading axes may."""
    w_in, b_in, w_out, b_out = weights
    outer = None if w_out is None else tuple(reversed(w_out.shape))  # as in nn.Linear
    shape, gated, experts = x.shape, gates.shape, w_in.shape
    if len(experts) != 2 or (outer is not None and len(outer) != 2) or not shape or not gated:
        given = (tuple(shape), tuple(gated), tuple(experts), outer)
        shapes = ", ".join(str(s) for s in given if s is not None)
        raise ValueError(
            "conditional layers expected x [..., in], gates [..., gates], w_in [hidden, in] and "
            f"w_out [out, hidden], got the shapes {shapes}."
        )
    (hidden, n_in), leading, width = experts, shape[:-1], gated[-1]
    if shape[-1] != n_in:
        raise _wrong("x", x, "[..., in]", (*leading, n_in))
    if gated[:-1] != leading:
        raise _wrong("gates", gates, "[..., gates]", (*leading, width))
    if width == 0 or hidden == 0 or hidden % width:
        raise ValueError(
            f"gates expected a width that divides the {hidden} hidden units, got {width}."
        )
    if b_in is not None and b_in.shape != (hidden,):
        raise _wrong("b_in", b_in, "[hidden]", (hidden,))
    if outer is not None and outer[1] != hidden:
        raise ValueError(
            f"w_out expected shape [out, hidden] with {hidden} hidden units, got {outer}."
        )
    if b_out is not None and b_out.shape != (outer or ())[:1]:
        raise _wrong("b_out", b_out, "[out]", (outer or ())[:1])
    if probe is not None and probe.shape != gated:
        raise _wrong("probe", probe, "of gates", tuple(gated))
    for t in (x, gates, *weights, probe):
        if t is not None and (t.dtype not in _FLOATS or t.device != x.device):
            raise TypeError(
                "conditional layers expected floating point tensors on the device of x, "
                f"{x.device}, got {t.dtype} on {t.device}. Write .to(x) on the one of shape "
                f"{tuple(t.shape)}."
            )


def _wrong(name: str, tensor: Tensor, words: str, shape: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"{name} expected shape {words}, here {tuple(shape)}, got {tuple(tensor.shape)}."
    )


def choose(problem: Problem, backend: str) -> ExecutionPath:
    """Dense or sparse, and why."""
    if backend == "dense":
        return _DENSE_ASKED
    x, gates, (w_in, _, w_out, _), probe, _ = problem
    (B, n), hidden = x.shape, w_in.shape[0]
    if B * n == 0 or (w_out is not None and w_out.shape[1] == 0):
        return _EMPTY
    if not x.is_cpu:
        _warn_once(f"the kernels are for CPUs; on {x.device.type} the layer runs dense")
        return _ELSEWHERE
    if backend == "auto" and B * n * hidden < SMALL:
        return _TOO_SMALL
    if gates.numel() >= MANY:
        return _TOO_MANY
    if not plain(x, gates, w_in, w_out, probe):
        return _WRAPPED
    missing = unavailable()
    if missing is not None:
        _warn_once(f"the conditional layer runs dense: {missing}")
        return ExecutionPath("dense", missing)
    if backend == "sparse":
        return _SPARSE_ASKED
    if few(w_in.dtype) >= B:
        return _FEW_EXAMPLES
    density, limit = sparse.density(gates), break_even(B, hidden // gates.shape[1])
    evaluated = density
    if probe is not None and density <= limit:
        evaluated += sparse.density(probe.masked_fill(gates != 0, 0))
    if evaluated > limit:
        return ExecutionPath("dense", f"density {evaluated:.2f} is above {limit}", density)
    return ExecutionPath("sparse", f"density {evaluated:.2f} is at most {limit}", density)


def _warn_once(message: str) -> None:
    if message not in _warned:
        _warned.add(message)
        warnings.warn(f"hardgate: {message}.", RuntimeWarning, stacklevel=6)

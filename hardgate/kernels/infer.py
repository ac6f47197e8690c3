"""The usual call without gradients, in as few questions as possible.

After a large product Python runs out of a cold cache: to ask a tensor for its shape or its dtype
takes a microsecond then, and a small layer takes fifty. What is unusual is left to
`hardgate.kernels.op`, which says what is wrong or converts.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _functorch as functorch

from hardgate.kernels import dense, dispatch
from hardgate.kernels.compiled.layout import at_once
from hardgate.kernels.compiler import plain, run, tracing, unavailable
from hardgate.kernels.flops import tell
from hardgate.kernels.sparse import chunks, count

_FLOATS = (torch.float32, torch.float64)


def infer(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    relu: bool,
    backend: str,
) -> Tensor | None:
    """y; None unless all is contiguous and fits, and the kernels are there to be chosen."""
    if (
        w_out is None
        or backend == "dense"
        or tracing()
        or functorch.peek_interpreter_stack() is not None
    ):
        return None
    shape, gated, experts, outer = x.shape, gates.shape, w_in.shape, w_out.shape
    if not len(shape) == len(gated) == len(experts) == len(outer) == 2:
        return None
    (B, n), (rows, G), (hidden, columns), (out, units) = shape, gated, experts, outer
    dtype, kind = x.dtype, w_in.dtype
    if (
        dtype not in _FLOATS
        or not (kind is dtype or (kind is torch.bfloat16 and dtype is torch.float32))
        or rows != B
        or n != columns
        or hidden != units
        or B * n * out == 0
        or G == 0
        or G * B >= dispatch.MANY
        or hidden % G
        or not (x.is_cpu and x.is_contiguous())
        or not (gates.dtype is dtype and gates.is_cpu and gates.is_contiguous())
        or not (w_in.is_cpu and w_in.is_contiguous())
        or not (w_out.dtype is kind and w_out.is_cpu and w_out.stride() == (1, out))
        or not (b_in is None or _is_row(b_in, dtype, hidden))
        or not (b_out is None or _is_row(b_out, dtype, out))
        or not plain(x, gates, w_in, w_out)
        or unavailable() is not None
    ):
        return None
    if backend == "auto" and B * n * hidden < dispatch.SMALL:
        return None
    taken = dispatch.ASKED if backend == "sparse" else dispatch.FEW_EXAMPLES
    K = hidden // G
    if backend == "auto" and dispatch.few(kind) < B:
        density = count(gates.data_ptr(), dtype, B, G)
        taken = dispatch.by_density(density, dispatch.break_even(B, K))
    dispatch.note(taken)
    if taken.backend == "dense":
        return dense.infer(x, gates, w_in.to(dtype), b_in, w_out.to(dtype), b_out, relu)
    C, slots, T = chunks(G, K)
    if at_once(K, B, out):
        slots = T
    y = x.new_empty(B, out)
    run("forward", kind, y.data_ptr(), x.data_ptr(), gates.data_ptr(), w_in.data_ptr(),
        0 if b_in is None else b_in.data_ptr(), w_out.data_ptr(),
        0 if b_out is None else b_out.data_ptr(), 0, 0, slots, B, G, K, n, out, relu, C,
        T)  # fmt: skip
    tell(gates, K * (n + out))
    return y


def _is_row(t: Tensor, dtype: torch.dtype, length: int) -> bool:
    return t.dtype is dtype and t.shape == (length,) and t.is_cpu and t.is_contiguous()

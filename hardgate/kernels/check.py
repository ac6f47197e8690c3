"""Whether the tensors of a conditional layer fit together, and what to say if they do not."""

from __future__ import annotations

import torch
from torch import Tensor

_FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def fits(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    probe: Tensor | None,
) -> bool:
    """Whether they certainly do, and need no conversion: matrices of one dtype on the CPU.

    This is asked at every call, and after a large product Python runs out of a cold cache.
    """
    dtype, shape, gated, experts = x.dtype, x.shape, gates.shape, w_in.shape
    if not len(shape) == len(gated) == len(experts) == 2 or not x.is_cpu or not gates.is_cpu:
        return False
    (B, n), (rows, width), (hidden, incoming) = shape, gated, experts
    return (
        (dtype is torch.float32 or dtype is torch.float64)
        and gates.dtype is dtype
        and w_in.dtype is dtype
        and w_in.is_cpu
        and rows == B
        and n == incoming
        and width > 0 < hidden
        and hidden % width == 0
        and (b_in is None or _is(b_in, dtype, (hidden,)))
        and (b_out is None if w_out is None else _is(w_out, dtype, (*w_out.shape[:1], hidden)))
        and (b_out is None or w_out is None or _is(b_out, dtype, w_out.shape[:1]))
        and (probe is None or _is(probe, dtype, gated))
    )


def _is(t: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    return t.dtype is dtype and t.shape == shape and t.is_cpu


def check(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    b_in: Tensor | None,
    w_out: Tensor | None,
    b_out: Tensor | None,
    probe: Tensor | None,
) -> None:
    """Raise, in words, if something does not fit; other dtypes and leading axes may."""
    shape, gated, experts = x.shape, gates.shape, w_in.shape
    outer = (0, *experts[:1]) if w_out is None else w_out.shape
    if len(experts) != 2 or len(outer) != 2 or not shape or not gated:
        got = ", ".join(str(tuple(t.shape)) for t in (x, gates, w_in, w_out) if t is not None)
        raise ValueError(
            "conditional layers expected x [..., in], gates [..., gates], w_in [hidden, in] and "
            f"w_out [out, hidden], got the shapes {got}."
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
    if w_out is not None and outer[1] != hidden:
        raise ValueError(
            f"w_out expected shape [out, hidden] with {hidden} hidden units, got {tuple(outer)}."
        )
    if b_out is not None and (w_out is None or b_out.shape != outer[:1]):
        raise _wrong("b_out", b_out, "[out]", outer[:1] if w_out is not None else ())
    if probe is not None and probe.shape != gated:
        raise _wrong("probe", probe, "of gates", tuple(gated))
    _same_device(x, gates, w_in, b_in, w_out, b_out, probe)


def _same_device(x: Tensor, *others: Tensor | None) -> None:
    for t in (x, *others):
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

"""Which implementation of the conditional layer runs, and why."""

from __future__ import annotations

import threading
import warnings
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from hardgate.kernels import sparse
from hardgate.kernels.compiled.layout import BLOCK
from hardgate.kernels.compiler import plain, unavailable

Backend = Literal["auto", "dense", "sparse"]
BACKENDS = get_args(Backend)

# Measured by benchmarks/layer.py: below the one dense products win at any density, above the
# other they win at any size.
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


class Path(NamedTuple):
    """What the last call of the layer in this thread did."""

    backend: str
    why: str
    density: float | None


ASKED = Path("sparse", "asked for", None)
_ASKED_DENSE = Path("dense", "asked for", None)
_EMPTY = Path("dense", "nothing to compute", None)
_ELSEWHERE = Path("dense", "not on a CPU", None)
_WRAPPED = Path("dense", "a tensor of another class than torch's own", None)
_TOO_SMALL = Path("dense", "too small for the kernels to pay", None)
_TOO_MANY = Path("dense", "more gates than the kernels' 32-bit index can hold", None)
FEW_EXAMPLES = Path("sparse", "few examples: the weights that are read count", None)

_last = threading.local()
_said: set[str] = set()


def last_path() -> Path | None:
    """Which path the last call in this thread took, and why; None before the first."""
    path: Path | None = getattr(_last, "path", None)
    return path


def note(path: Path) -> None:
    """This is what `last_path` tells from now on."""
    _last.path = path


def choose(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    w_out: Tensor | None,
    probe: Tensor | None,
    backend: str,
) -> bool:
    """Whether the kernels run, noted for `last_path`."""
    path = _decide(x, gates, w_in, w_out, probe, backend)
    note(path)
    return path.backend == "sparse"


def _decide(
    x: Tensor,
    gates: Tensor,
    w_in: Tensor,
    w_out: Tensor | None,
    probe: Tensor | None,
    backend: str,
) -> Path:
    if backend == "dense":
        return _ASKED_DENSE
    (B, n), hidden, many = x.shape, w_in.shape[0], gates.numel()
    if B * n == 0 or (w_out is not None and w_out.numel() == 0):
        return _EMPTY
    if not x.is_cpu:
        _say_once(f"the kernels are for CPUs; on {x.device.type} the layer runs dense")
        return _ELSEWHERE
    if backend == "auto" and B * n * hidden < SMALL:
        return _TOO_SMALL
    if many >= MANY:
        return _TOO_MANY
    if not plain(x, gates, w_in, w_out, probe):
        return _WRAPPED
    missing = unavailable()
    if missing is not None:
        _say_once(f"the conditional layer runs dense: {missing}")
        return Path("dense", missing, None)
    if backend == "sparse":
        return ASKED
    if few(w_in.dtype) >= B:
        return FEW_EXAMPLES
    density, limit = sparse.density(gates), break_even(B, hidden // gates.shape[-1])
    if probe is None or density > limit:
        return by_density(density, limit)
    return by_density(density, limit, sparse.density(probe.masked_fill(gates != 0, 0)))


def by_density(density: float, limit: float, probed: float = 0.0) -> Path:
    """The path for gates of this density, with a part of those that are off probed."""
    evaluated = density + probed
    if evaluated > limit:
        return Path("dense", f"density {evaluated:.2f} is above {limit}", density)
    return Path("sparse", f"density {evaluated:.2f} is at most {limit}", density)


def _say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        warnings.warn(f"hardgate: {message}.", RuntimeWarning, stacklevel=6)

"""Computing in at least fp32, also under torch.autocast."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


def widen(a: Tensor) -> Tensor:
    """`a` in fp32 where it came in half precision, else unchanged."""
    return a.float() if a.dtype in (torch.float16, torch.bfloat16) else a


def without_autocast(f: Callable[_P, _R]) -> Callable[_P, _R]:
    """f with autocast switched off: with it, a layer's products would have two dtypes."""

    @functools.wraps(f)
    def run(*arguments: _P.args, **named: _P.kwargs) -> _R:
        if not torch.is_autocast_enabled("cpu"):
            return f(*arguments, **named)
        with torch.autocast("cpu", enabled=False):
            return f(*arguments, **named)

    return run

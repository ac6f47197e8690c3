"""The precision of the layer is that of its tensors, whatever torch.autocast asks for around it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


def unmixed(f: Callable[_P, _R]) -> Callable[_P, _R]:
    """f with autocast switched off: else products of a layer would come in two dtypes."""

    @functools.wraps(f)
    def run(*arguments: _P.args, **named: _P.kwargs) -> _R:
        if not torch.is_autocast_enabled("cpu"):
            return f(*arguments, **named)
        with torch.autocast("cpu", enabled=False):
            return f(*arguments, **named)

    return run

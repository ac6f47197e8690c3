"""Buffers that take their size from the first call, or from a state_dict that comes before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hardgate.functional import widen

_HALF = (torch.float16, torch.bfloat16)


class LazyState(nn.Module):
    """A module all of whose own buffers may change shape, and stay in at least fp32.

    Per-unit state is created when the number of units is first seen. Loading adopts the shape
    that is stored, so a fresh module needs no call before `load_state_dict`. A moving average
    kept in bf16 stops moving (its increments are below the rounding step), so
    `model.bfloat16()` moves the state but does not narrow it.

    `synchronised`: it is that of the batch of all processes; see `hardgate.synchronise_`.
    """

    synchronised: bool = False

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        # The default dtype may be bfloat16 while a model is built.
        super().register_buffer(name, None if tensor is None else widen(tensor), persistent)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name, buffer in self._buffers.items():
            stored = state_dict.get(prefix + name)
            if isinstance(stored, Tensor) and buffer is not None and stored.shape != buffer.shape:
                setattr(self, name, buffer.new_empty(stored.shape))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> LazyState:
        before = {name: b for name, b in self._buffers.items() if b is not None}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in before.items():
            after = self._buffers[name]
            if after is not None and after.dtype in _HALF:
                self._buffers[name] = buffer.to(after.device)
        return self


def decay_(sums: tuple[Tensor, ...], by: tuple[Tensor, ...], decay: float) -> None:
    """In place: sum ← decay · sum + by, for all or, where one would not be finite, for none.

    One bad batch must not spoil all that follow.
    """
    given = [x.detach().to(s) for s, x in zip(sums, by, strict=True)]
    moved = torch._foreach_add(given, sums, alpha=decay)
    if all(map(finite, moved)):
        torch._foreach_copy_(sums, moved)


def finite(x: Tensor) -> bool:
    """Whether no entry is NaN or infinite, nor their sum: a third of the time of isfinite."""
    return math.isfinite((x.sum() if x.dim() else x).item())


def proper_decay(decay: float, like: float = 0.9) -> float:
    """`decay`, or an error if sums that decay so would grow or change their sign."""
    if not (isinstance(decay, int | float) and 0 <= decay < 1):
        raise ValueError(f"decay expected a number in [0, 1), like {like}, got {decay!r}.")
    return decay

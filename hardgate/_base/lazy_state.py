"""Buffers that take their size from the first call, or from a state_dict loaded before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hardgate._base.precision import widen

_HALF = (torch.float16, torch.bfloat16)


class LazyState(nn.Module):
    """A module whose own buffers may change shape, and stay in at least fp32.

    Per-unit state is created when the number of units is first seen. Loading adopts the stored
    shapes, so a fresh module needs no call before `load_state_dict`. A moving average in bf16 would
    stop moving, as its increments are below the rounding step: `model.bfloat16()` does not narrow
    the state.

    `synchronised`: the state is that of the batches of all processes; see
    `hardgate.synchronise_`.
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

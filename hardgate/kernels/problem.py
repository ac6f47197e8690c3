"""What every implementation of the conditional layer is given, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Problem(NamedTuple):
    """One call of the layer, in matching dtypes: y = ((x w_inᵀ + b_in) ⊙ gates) w_out + b_out.

    Without gradients, w_in and w_out may be bf16 while the others are fp32: the kernels read them.
    `w_out` is unit-major, [hidden, out], so that the outgoing weights of one unit are one row;
    None leaves the output transform out. One gate serves `block` consecutive hidden units.
    """

    x: Tensor  # [B, in]
    gates: Tensor  # [B, hidden / block]
    w_in: Tensor  # [hidden, in]
    b_in: Tensor | None  # [hidden]
    w_out: Tensor | None  # [hidden, out]
    b_out: Tensor | None  # [out]
    probe: Tensor | None  # [B, hidden / block]
    relu: bool

    @classmethod
    def of(
        cls,
        x: Tensor,
        gates: Tensor,
        w_in: Tensor,
        b_in: Tensor | None,
        w_out: Tensor | None,
        b_out: Tensor | None,
        probe: Tensor | None,
        relu: bool,
    ) -> Problem:
        """The same with w_out as in `nn.Linear`, [out, hidden]."""
        rows = None if w_out is None else w_out.t()
        return cls(x, gates, w_in, b_in, rows, b_out, probe, relu)

    @property
    def hidden(self) -> int:
        """The number of hidden units (experts)."""
        return self.w_in.shape[0]

    @property
    def block(self) -> int:
        """How many hidden units one gate serves."""
        return self.hidden // max(1, self.gates.shape[1])

    def widened(self) -> Problem:
        """The same with weights in the dtype of x."""
        if self.w_in.dtype is self.x.dtype:
            return self
        w_out = None if self.w_out is None else self.w_out.to(self.x.dtype)
        return self._replace(w_in=self.w_in.to(self.x.dtype), w_out=w_out)

    def gate(self, b: Tensor, u: Tensor) -> Tensor:
        """The gates of the hidden units u for the examples b."""
        return self.gates[b, u // self.block]


class Wanted(NamedTuple):
    """Which gradients are wanted."""

    x: bool = True
    gates: bool = True
    w_in: bool = True
    b_in: bool = True
    w_out: bool = True
    b_out: bool = True


@dataclass
class Gradients:
    """The gradients that were wanted; None for the others."""

    x: Tensor | None = None
    gates: Tensor | None = None
    w_in: Tensor | None = None
    b_in: Tensor | None = None
    w_out: Tensor | None = None
    b_out: Tensor | None = None

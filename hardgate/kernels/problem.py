"""What every implementation of the conditional layer is given, and what it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Weights(NamedTuple):
    """The weights of a conditional layer, which always travel together.

    `w_out` is unit-major: the outgoing weights of one hidden unit are one row. None leaves the
    output transform out, and `b_out` with it.
    """

    w_in: Tensor  # [hidden, in]
    b_in: Tensor | None = None  # [hidden]
    w_out: Tensor | None = None  # [hidden, out]
    b_out: Tensor | None = None  # [out]


class Problem(NamedTuple):
    """One call of the layer, in matching dtypes: y = ((x w_inᵀ + b_in) ⊙ gates) w_out + b_out.

    Without gradients, w_in and w_out may be bf16 while the others are fp32: the kernels read them.
    One gate serves hidden / gates consecutive hidden units. The gradient of a gate that is off is
    multiplied by its `probe`; without a probe it is zero.
    """

    x: Tensor  # [B, in]
    gates: Tensor  # [B, gates]
    weights: Weights
    probe: Tensor | None = None  # [B, gates]
    relu: bool = False

    @property
    def hidden(self) -> int:
        """The number of hidden units (experts)."""
        return self.weights.w_in.shape[0]

    @property
    def block(self) -> int:
        """How many hidden units one gate serves."""
        return self.hidden // max(1, self.gates.shape[1])


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

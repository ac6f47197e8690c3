"""A linear layer that keeps the outgoing weights of each input unit in one row of memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class UnitMajorLinear(nn.Linear):
    """`nn.Linear` whose weight `[out, in]` is the transposed view of a contiguous `[in, out]`.

    A kernel that skips input units reads whole rows of `weight.T`. The layout survives
    optimiser steps, `.to`, `deepcopy` and `load_state_dict` (with `assign=True` the tensor is
    laid out anew, unless it has the layout). `state_dict` holds the weight as `nn.Linear` does,
    contiguous `[out, in]`: a copy, which any format can store. A weight that is computed from
    others (a parametrization, pruning) has the layout that they give it.

    Args:
        in_features, out_features, device, dtype: as in `nn.Linear`; there is always a bias.

    Example:
        >>> layer, dense = UnitMajorLinear(4, 3), nn.Linear(4, 3)
        >>> _ = layer.load_state_dict(dense.state_dict())
        >>> layer.weight.T.is_contiguous(), torch.equal(layer.weight, dense.weight)
        (True, True)
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, device=device, dtype=dtype)
        self._lay_out()

    def _lay_out(self) -> None:
        weight = self._parameters.get("weight")
        if weight is not None and not weight.T.is_contiguous():
            data = weight.detach().T.contiguous().T
            self.weight = nn.Parameter(data, requires_grad=weight.requires_grad)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._lay_out()

    def _save_to_state_dict(
        self, destination: dict[str, Tensor], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        key = prefix + "weight"
        if not keep_vars and key in destination:
            destination[key] = destination[key].contiguous()

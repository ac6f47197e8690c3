"""A linear layer that stores its weight as the kernels read it: one row per input unit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class TransposedLinear(nn.Module):
    """y = x W + b, with W stored as `[in, out]`: `nn.Linear` with its weight transposed.

    A kernel that skips input units reads whole rows of W, and here each row is one piece of
    memory. `state_dict` and `load_state_dict` use the names and shapes of `nn.Linear`, so weights
    can be moved to and from one: every tensor of two axes is transposed on the way, the mask of
    `torch.nn.utils.prune` included. The tensors in `state_dict` are copies.

    Args:
        in_features, out_features, device, dtype: as in `nn.Linear`; there is always a bias.

    Example:
        >>> layer, dense = TransposedLinear(4, 3), nn.Linear(4, 3)
        >>> _ = layer.load_state_dict(dense.state_dict())
        >>> tuple(layer.weight.shape), torch.equal(layer.weight, dense.weight.T)
        ((4, 3), True)
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        empty = torch.empty(in_features, out_features, device=device, dtype=dtype)
        self.weight = nn.Parameter(empty)
        self.bias = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, as `nn.Linear` does."""
        bound = 1 / math.sqrt(self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """y `[..., out]` for x `[..., in]`."""
        return linear(x, self.weight.t(), self.bias)

    def _matrices(self) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
        """The layer's own tensors of two axes, and the dictionary that each is in."""
        for tensors in (self._parameters, self._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.dim() == 2:
                    yield tensors, name, tensor

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for _, name, _ in self._matrices():
            if prefix + name in destination:  # a buffer may not be persistent
                transposed = destination[prefix + name].t()
                destination[prefix + name] = transposed if keep_vars else transposed.contiguous()

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Let torch load into transposed views, so that its hooks and errors see [out, in]."""
        stored = list(self._matrices())
        views = [_view(tensor) for _, _, tensor in stored]
        for (tensors, name, _), view in zip(stored, views, strict=True):
            tensors[name] = view
        try:
            super()._load_from_state_dict(*args, **kwargs)
        finally:
            for (tensors, name, tensor), view in zip(stored, views, strict=True):
                tensors[name] = _loaded(tensor, view, tensors[name])

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def _view(tensor: Tensor) -> Tensor:
    view = tensor.detach().t()
    return nn.Parameter(view, tensor.requires_grad) if _is_parameter(tensor) else view


def _loaded(tensor: Tensor, view: Tensor, now: Tensor) -> Tensor:
    """What the layer holds after loading: `tensor`, unless `assign=True` replaced its view."""
    if now is view:
        if torch.__future__.get_swap_module_params_on_conversion():  # the view has other memory
            tensor.detach().copy_(view.detach().t())
        return tensor
    rows = now.detach().t().contiguous()
    return nn.Parameter(rows, now.requires_grad) if _is_parameter(tensor) else rows


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)

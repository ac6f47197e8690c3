"""A hard limit on the norm of each unit's incoming weights (App. A.4)."""

from __future__ import annotations

import torch
from torch import nn

from hardgate._base.arguments import positive
from hardgate.kernels.transposed_linear import TransposedLinear

_LAYERS = (nn.Linear, TransposedLinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def max_norm_(module: nn.Module, limit: float = 2.0) -> nn.Module:
    """Scale down, in place, every incoming weight vector longer than `limit`.

    Call it after the optimiser's step. Applies to each linear and convolutional layer in
    `module` (not to transposed convolutions); biases are left alone.

    Args:
        module: a layer or a whole model.
        limit: the largest Euclidean norm of one unit's incoming weights; about 2 in the paper.

    Returns:
        `module`.

    Example:
        >>> layer = nn.Linear(100, 3)
        >>> _ = layer.weight.data.fill_(1.0)
        >>> tuple(round(v, 4) for v in max_norm_(layer, 2.0).weight.norm(dim=1).tolist())
        (2.0, 2.0, 2.0)
    """
    positive("limit", limit)
    for layer in module.modules():
        if isinstance(layer, _LAYERS):
            if not isinstance(layer.weight, nn.Parameter):  # a limit on it would not last
                raise TypeError(
                    f"max_norm_ expected weights that are parameters, got {layer} with one that is "
                    "computed from others, as by weight_norm. Leave that out, or limit the other "
                    "layers one by one: max_norm_(layer, limit)."
                )
            units_axis = 1 if isinstance(layer, TransposedLinear) else 0
            layer.weight.renorm_(2, units_axis, limit)
    return module

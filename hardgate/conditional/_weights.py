"""The weights of a linear layer that is read and never called."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

_MAKERS = (BasePruningMethod, SpectralNorm, WeightNorm)  # of weights, before each call


def weights_of(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """W and b of `nn.Linear`, as a call would find them.

    Pruning and torch's older norms of weights make them anew in a hook before each call. Nobody
    calls the layer here, so that is done for it. A module that took its place and does more than
    W x + b is refused: only its weight would count.

    Example:
        >>> from torch.nn.utils import prune
        >>> layer = prune.random_unstructured(nn.Linear(4, 3), "weight", 0.5)
        >>> _ = layer.weight_orig.data.fill_(1.0)
        >>> int(weights_of(layer)[0].sum())
        6
    """
    if not isinstance(layer, nn.Linear):
        raise TypeError(
            "conditional layers expected torch.nn.Linear for experts, output and gates, got "
            f"{type(layer).__name__}: they read its weight, and do not call it. To change the "
            "weight, write torch.nn.utils.parametrize.register_parametrization."
        )
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, _MAKERS):
            hook(layer, ())
    return layer.weight, layer.bias

"""Batches that are shared out among processes: what is averaged over a batch, over all of it."""

from __future__ import annotations

from torch import nn

from hardgate._base.lazy_state import LazyState

__all__ = ["synchronise_"]


def synchronise_(model: nn.Module) -> nn.Module:
    """Make controllers, baselines, thresholds and estimators see all processes' batch, in place.

    For `DistributedDataParallel`, which averages gradients, while some of what a gated network
    learns from is not linear in the batch: the mean inside `KLTarget`, λ of `AdaptiveL1`, firing
    rates, the ratio in a baseline. With it two processes with half of a batch each take the step
    that one takes with the whole. Every process must then run the same training passes; in
    evaluation mode a model exchanges nothing, except in `calibrate_thresholds`.

    Args:
        model: on every process, before or after it is wrapped. Losses are averaged by DDP as
            always: equal shares of the batch.

    Returns:
        the model.

    Example:
        >>> import hardgate
        >>> model = hardgate.ConditionalMLP(8, 32, 3, bottleneck=4, unit=hardgate.Rectifier())
        >>> synchronise_(model) is model
        True
    """
    for module in model.modules():
        if isinstance(module, LazyState):
            module.synchronised = True
    return model

"""Distributed training: statistics of the whole batch, not of one process's share."""

from __future__ import annotations

from torch import nn

from hardgate._base.lazy_state import LazyState

__all__ = ["synchronise_"]


def synchronise_(model: nn.Module) -> nn.Module:
    """Make controllers, baselines, thresholds and estimators use the batches of all processes.

    It changes the model in place. `DistributedDataParallel` averages gradients, but some statistics
    of a gated network are not linear in the batch: the mean inside `KLTarget`, λ of `AdaptiveL1`,
    firing rates, the ratio in a baseline. With `synchronise_`, two processes with half a batch each
    take the step that one process takes with the whole batch. Every process must then run the same
    training passes. In evaluation mode nothing is exchanged, except in `calibrate_thresholds`.

    Args:
        model: on every process, before or after it is wrapped. DDP averages losses as always: give
            each process an equal share of the batch.

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

"""Test-time thresholds that leave the target fraction of units on (App. A.3)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hardgate._base.arguments import fraction
from hardgate._base.distributed import gather
from hardgate._base.precision import widen
from hardgate._base.run_eagerly import as_written
from hardgate.sparsity._controller import examples
from hardgate.units._unit import Unit

_MOST_NUMBERS = 2**26  # pre-activations kept per unit module; beyond it every second example


def calibrate_thresholds(
    model: nn.Module, batches: Iterable[Any], rate: float = 0.1, *, per_unit: bool = False
) -> dict[str, float]:
    """Set each unit's evaluation threshold so that a fraction `rate` of `a` lies above it.

    Units are calibrated in the order in which the model runs them, one pass over the data each,
    so that the second layer of a stack sees the first as it will be at test time. Use training
    data. The model runs in evaluation mode, compiled or not, and is put back as it was.

    Args:
        model: contains the units, all with `eval_mode="threshold"`.
        batches: inputs x, or tuples whose first entry is x (a DataLoader); a generator is
            kept in memory where it is needed more than once.
        rate: the fraction of units on.
        per_unit: one threshold for each unit instead of one for the layer (the paper's).

    Returns:
        the density that each unit reaches on these data, by module name.

    Example:
        >>> from hardgate import StraightThrough
        >>> model = nn.Sequential(nn.Linear(4, 50), StraightThrough())
        >>> reached = calibrate_thresholds(model, [torch.randn(64, 4)], rate=0.1)
        >>> round(reached["1"], 3)
        0.1
    """
    fraction("rate", rate)
    units = {name: m for name, m in model.named_modules() if isinstance(m, Unit)}
    if not units:
        raise ValueError("calibrate_thresholds found no hardgate unit in this model.")
    _check_modes(units)
    if len(units) > 1 and iter(batches) is batches:
        batches = list(batches)
    reached: dict[str, float] = {}
    # Thresholds made in inference mode could not be loaded into again.
    with torch.inference_mode(False), _evaluating(model), as_written(), torch.no_grad():
        waiting = dict(units)
        while waiting:
            name, a = _collect_next(model, waiting, batches)
            if a.isnan().any():  # as a threshold it would close every gate
                raise ValueError(
                    f"calibrate_thresholds expected pre-activations that are numbers, got NaN for "
                    f"{name!r}. Look at the weights and at the batches: x.isnan().any()."
                )
            unit = waiting.pop(name)
            reached[name] = _set_threshold(unit, gather(a, unit.synchronised), rate, per_unit)
    return reached


def _check_modes(units: dict[str, Unit]) -> None:
    """The other modes ignore the threshold: they would not have the density that is reported."""
    for name, unit in units.items():
        if unit.eval_mode != "threshold":
            raise ValueError(
                f"calibrate_thresholds expected units with eval_mode='threshold', got "
                f"{unit.eval_mode!r}, which uses no threshold, for {name!r} "
                f"({type(unit).__name__}). Write unit.eval_mode = 'threshold' first."
            )


def _set_threshold(unit: Unit, a: Tensor, rate: float, each: bool) -> float:
    """The k-th largest value of `a` stays below or at the threshold, k = rate·N; ties are off."""
    rows = a if each else a.reshape(-1, 1)
    n = rows.shape[0]
    on = min(max(round(rate * n), 0), n - 1)
    values = rows.kthvalue(n - on, dim=0).values  # the on-th values above it are larger
    unit.threshold = values if each else values[0]
    return (unit.gate(a) != 0).float().mean().item()


def _collect_next(
    model: nn.Module, waiting: dict[str, Unit], batches: Iterable[Any]
) -> tuple[str, Tensor]:
    """The first unit still waiting that the model runs, and its pre-activations `[N, D]`."""
    order: list[str] = []
    kept: list[Tensor] = []
    stride = 1

    def watch(name: str) -> Any:
        def hook(_: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            nonlocal stride, kept
            if name not in order:
                order.append(name)
            if name != order[0]:
                return
            a = examples(widen(args[0] if args else named["a"]))
            if kept and kept[0].shape[-1] != a.shape[-1]:
                raise ValueError(
                    f"calibrate_thresholds expected {name!r} to serve one layer, got layers of "
                    f"{kept[0].shape[-1]} and {a.shape[-1]}. Give each a unit of its own."
                )
            kept.append(a[::stride].clone())
            if sum(k.numel() for k in kept) > _MOST_NUMBERS:
                kept, stride = [torch.cat(kept)[::2].clone()], stride * 2

        return hook

    handles = [
        unit.register_forward_pre_hook(watch(name), with_kwargs=True)
        for name, unit in waiting.items()
    ]
    try:
        for batch in batches:
            model(batch[0] if isinstance(batch, (tuple, list)) else batch)
    finally:
        for handle in handles:
            handle.remove()
    if not kept or sum(k.numel() for k in kept) == 0:
        raise ValueError(
            "calibrate_thresholds saw no pre-activations for "
            f"{', '.join(repr(n) for n in waiting)}: the batches were empty (a generator that was "
            "used before?), or the model does not run these units."
        )
    return order[0], torch.cat(kept)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode

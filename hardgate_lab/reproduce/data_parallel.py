"""A row that several processes train: each has its rows of every batch, and of its noise.

All processes hold the same weights and the same state of the random generator. Each draws the
order of the images, the noise and the dropout for the whole batch, and keeps what belongs to its
own rows: together they take the step that one process takes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hardgate import synchronise_
from hardgate.units import Unit
from hardgate.units._unit import NoiseTensors
from hardgate_lab.reproduce.network import Gated, Network

_T = TypeVar("_T")


class Shard:
    """The part of one process among `world`; by default the whole, of a process alone.

    Args:
        rank: of this process; the first one, 0, writes.
        world: how many there are.
    """

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.first, self.world = rank == 0, world
        self._rank, self._batch = rank, 0

    def take(self, index: Tensor) -> Tensor:
        """This process's rows of a batch, which is the running one from here on.

        The parts differ by one row at most; in a batch of few some are empty.
        """
        self._batch = len(index)
        return index[self._rows()]

    def weight(self) -> float:
        """What a mean over the own rows counts: DDP takes the mean over processes."""
        rows = self._rows()
        return float((rows.stop - rows.start) * self.world / self._batch)

    def sum(self, *numbers: float) -> list[float]:
        """Their sums over all processes."""
        if self.world == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(number) for number in sums]

    def broadcast(self, find: Callable[[], _T]) -> _T:
        """What the first process finds, on every process."""
        found = [find() if self.first else None]
        if self.world > 1:
            dist.broadcast_object_list(found)
        return found[0]  # type: ignore[return-value]

    def wrap(self, model: Network) -> nn.Module:
        """The model to call in training; `model` itself is made to draw for the whole batch."""
        if self.world == 1:
            return model
        synchronise_(model)
        if isinstance(model, Gated):
            unit = model.layer.gater.unit
            unit.synchronised = False  # its threshold: each process calibrates on all images
            self._shard_noise(unit)
        for module in model.modules():
            if isinstance(module, nn.Dropout) and module.p > 0:
                module.register_forward_pre_hook(self._fill)
                module.register_forward_hook(self._cut)
        return DistributedDataParallel(model)

    def _shard_noise(self, unit: Unit) -> None:
        draw = unit.sample_noise

        def sample_noise(a: Tensor, generator: torch.Generator | None = None) -> NoiseTensors:
            noise = draw(a.new_empty(self._batch, *a.shape[1:]), generator)
            if isinstance(noise, tuple):
                return tuple(z[self._rows()] for z in noise)
            return noise[self._rows()]

        unit.sample_noise = sample_noise  # type: ignore[method-assign]

    def _fill(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        """The whole batch, zero but for the own rows: dropout draws for all of it."""
        if not module.training:
            return None
        (x,) = args
        whole = x.new_zeros(self._batch, *x.shape[1:])
        whole[self._rows()] = x
        return (whole,)

    def _cut(self, module: nn.Module, args: tuple[Any, ...], whole: Tensor) -> Tensor | None:
        return whole[self._rows()] if module.training else None

    def _rows(self) -> slice:
        n, rank, world = self._batch, self._rank, self.world
        return slice(n * rank // world, n * (rank + 1) // world)

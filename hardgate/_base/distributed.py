"""Sums and means over the examples of all distributed processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def active(synchronised: bool) -> bool:
    """Whether several processes synchronise."""
    return synchronised and dist.is_available() and dist.is_initialized()


def total(x: Tensor, synchronised: bool) -> Tensor:
    """The sum of x over all processes; it has no gradient where there are several."""
    if not active(synchronised):
        return x
    x = x.detach().clone()
    dist.all_reduce(x)
    return x


def count(x: Tensor, synchronised: bool) -> float:
    """How many numbers x has in all processes."""
    return total(torch.tensor(float(x.numel())), True).item() if active(synchronised) else x.numel()


def mean(x: Tensor, synchronised: bool) -> Tensor:
    """The mean of `[N, ...]` over the examples of all processes, which may have unequal shares.

    Its gradient is that of this process's examples, times the number of processes. DDP averages
    gradients, which divides by that number: each example counts once.
    """
    if not active(synchronised):
        return x.mean(0)
    own = x.sum(0)
    sums = total(torch.cat([own.detach().reshape(-1), own.new_tensor([len(x)])]), True)
    everyone, n = sums[:-1].reshape(own.shape), sums[-1]
    spread = own * dist.get_world_size()
    return (everyone + (spread - spread.detach())) / n


def gather(x: Tensor, synchronised: bool) -> Tensor:
    """The rows of `[N, D]` of all processes, in the order of their ranks."""
    if not active(synchronised):
        return x
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, x.detach().cpu())
    return torch.cat(parts).to(x.device)

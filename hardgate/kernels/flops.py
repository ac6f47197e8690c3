"""What torch's FlopCounterMode is told: the multiplications that the kernels really do.

A kernel is a call that torch does not see. While somebody listens to operations, each gives a sign:
an operation that does nothing, with a formula for what the kernel did. A multiplication and its
addition are two operations, as everywhere in torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula


@torch.library.custom_op("hardgate::multiplied", mutates_args=())
def _multiplied(on: Tensor, each: int) -> Tensor:
    return on.new_empty(0)


@register_flop_formula(torch.ops.hardgate.multiplied, get_raw=True)
def _(on: Tensor, each: int, **_: Any) -> int:
    return 2 * each * int(on.count_nonzero())


def tell(on: Tensor, each: int) -> None:
    """Say to who listens: `each` multiplications were done for each entry of `on` that is not 0."""
    if torch._C._len_torch_dispatch_stack() > 0:
        _multiplied(on, each)

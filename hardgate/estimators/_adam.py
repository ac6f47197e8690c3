"""Adam for buffers: how an estimator trains its own parts (Kingma & Ba 2015)."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import not_negative
from hardgate._base.distributed import total
from hardgate._base.lazy_state import LazyState

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8


class Adam(LazyState):
    """x ← x - rate · m̂ / (√v̂ + ε), with the moments m and v in buffers.

    torch's optimisers hold parameters. An estimator has none: what it learns must not appear among
    the model's parameters, and `state_dict` alone saves and resumes it.

    Args:
        rate: the step size.
    """

    first: Tensor
    second: Tensor
    steps: Tensor

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = not_negative("rate", rate, like=0.003)
        self.register_buffer("first", torch.zeros(0))
        self.register_buffer("second", torch.zeros(0))
        self.register_buffer("steps", torch.zeros(()))

    @torch.no_grad()
    def step_(self, x: Tensor, gradient: Tensor) -> None:
        """Move the vector `x` in place; a gradient that is not finite moves nothing."""
        gradient = total(gradient, self.synchronised).to(x.dtype)
        if not gradient.sum().isfinite():  # NaN and ±∞ stay in a sum
            return
        if self.first.numel() == 0:
            self.first, self.second = torch.zeros_like(x), torch.zeros_like(x)
        self.steps.add_(1)
        self.first.lerp_(gradient, 1 - FIRST)
        self.second.mul_(SECOND).addcmul_(gradient, gradient, value=1 - SECOND)
        n = self.steps.item()
        spread = self.second.sqrt().div_((1 - SECOND**n) ** 0.5).add_(EPSILON)
        x.addcdiv_(self.first, spread, value=-self.rate / (1 - FIRST**n))

    def extra_repr(self) -> str:
        return f"rate={self.rate}"

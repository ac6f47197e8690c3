"""A small network that an estimator trains by itself: NVIL's baseline, RELAX's control variate."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.lazy_state import LazyState
from hardgate.estimators._adam import Adam

_SEED = 0  # of the first layer: the program's own random numbers are left alone


class Network(LazyState):
    """x ↦ w·tanh(W x + b) + c, with all its weights in one buffer ψ; zero at the start.

    Args:
        hidden: units of the hidden layer.
        rate: Adam's step size.
    """

    weights: Tensor
    state = ("weights", "adam.first", "adam.second", "adam.steps")

    def __init__(self, hidden: int, rate: float) -> None:
        super().__init__()
        if not isinstance(hidden, int) or hidden < 1:
            raise ValueError(f"hidden expected a number of units, like 32, got {hidden!r}.")
        self.hidden = hidden
        self.register_buffer("weights", torch.zeros(0))
        self.adam = Adam(rate)

    def psi(self, x: Tensor, *, keep: bool) -> Tensor:
        """ψ for inputs `[..., N]`; where there is none yet its start, kept by who learns."""
        H, inputs, weights = self.hidden, x.shape[-1], self.weights
        if weights.numel() == 0:
            first = torch.randn(H * inputs, generator=torch.Generator().manual_seed(_SEED))
            rest = torch.zeros(2 * H + 1)
            start = torch.cat([first / max(1, inputs) ** 0.5, rest])
            weights = start.to(x.device, weights.dtype)
            if keep:
                self.weights = weights
        if len(weights) != H * inputs + 2 * H + 1:
            raise ValueError(
                f"the network of an estimator expected the {(len(weights) - 1) // H - 2} inputs "
                f"that it was first used with, got {inputs}. Give each layer an estimator of its "
                "own."
            )
        return weights

    def forward(self, x: Tensor, psi: Tensor) -> Tensor:
        """Outputs `[...]` for inputs `[..., N]`."""
        W, b, w, c = self._split(psi, x.shape[-1])
        out: Tensor = torch.tanh(x.to(psi.dtype) @ W.T + b) @ w + c
        return out

    def pullback(self, x: Tensor, psi: Tensor, by: Tensor) -> Tensor:
        """Σ by · ∂out/∂ψ for inputs `[..., N]` and factors `[...]`: a third of autograd's time."""
        W, b, w, _ = self._split(psi, x.shape[-1])
        x, by = x.to(psi.dtype).unsqueeze(0).flatten(0, -2), by.to(psi.dtype).flatten()
        h = torch.tanh(torch.addmm(b, x, W.T))
        back = torch.outer(by, w) * (1 - h * h)
        return torch.cat([(back.T @ x).flatten(), back.sum(0), by @ h, by.sum(0, keepdim=True)])

    def learn(self, gradient: Tensor) -> None:
        """One step down a gradient by ψ."""
        self.adam.step(self.weights, gradient)

    def _split(self, psi: Tensor, inputs: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        H = self.hidden
        W, b, w, c = psi.split([H * inputs, H, H, 1])
        return W.view(H, inputs), b, w, c[0]

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}"

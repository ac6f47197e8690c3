"""A small network that an estimator trains by itself: NVIL's baseline, RELAX's control variate."""

from __future__ import annotations

import torch
from torch import Tensor

from hardgate._base.arguments import at_least
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
        self.hidden = at_least("hidden", hidden, 1)
        self.register_buffer("weights", torch.zeros(0))
        self.adam = Adam(rate)

    def psi(self, x: Tensor, *, keep: bool) -> Tensor:
        """ψ for inputs `[..., N]`, made on the first call; `keep` stores it."""
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
        H, inputs = self.hidden, x.shape[-1]
        W, b, w, c = psi.split([H * inputs, H, H, 1])
        hidden = torch.tanh(x.to(psi.dtype) @ W.view(H, inputs).T + b)
        out: Tensor = hidden @ w + c[0]
        return out

    def pullback(self, x: Tensor, psi: Tensor, by: Tensor) -> Tensor:
        """Σ by · ∂out/∂ψ for inputs `[..., N]` and factors `[...]`: a third of autograd's time."""
        H, inputs = self.hidden, x.shape[-1]
        W, b, w, _ = psi.split([H * inputs, H, H, 1])
        x, by = x.to(psi.dtype).unsqueeze(0).flatten(0, -2), by.to(psi.dtype).flatten()
        h = torch.tanh(torch.addmm(b, x, W.view(H, inputs).T))
        back = torch.outer(by, w) * (1 - h * h)
        return torch.cat([(back.T @ x).flatten(), back.sum(0), by @ h, by.sum(0, keepdim=True)])

    def learn_(self, gradient: Tensor) -> None:
        """One step of Adam, given the gradient with respect to ψ."""
        self.adam.step_(self.weights, gradient)

    def extra_repr(self) -> str:
        return f"hidden={self.hidden}"

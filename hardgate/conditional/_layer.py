"""What the conditional layers share: a gater, its experts, and what the last pass did."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from hardgate._base.arguments import at_least_one, one_of
from hardgate.conditional.gater import Gater, Init, weights_of
from hardgate.conditional.telemetry import Telemetry, measure
from hardgate.kernels.dispatch import Backend, ExecutionPath
from hardgate.kernels.op import conditional
from hardgate.kernels.problem import Weights
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate.kernels.update import Update
from hardgate.sparsity._controller import Controller
from hardgate.units._unit import Unit

Activation = Literal["linear", "relu"]


class ConditionalLayer(nn.Module):
    """Experts, each computed only where its gate is not zero.

    `out` is the output transform, or None.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None,
        bottleneck: int,
        unit: Unit,
        *,
        block_size: int,
        backend: Backend,
        activation: Activation,
        rate: float | None,
        sparsity: Controller | None,
        init: Init,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        at_least_one("block_size", block_size)
        if at_least_one("hidden_features", hidden_features) % block_size:
            raise ValueError(
                f"hidden_features expected a multiple of block_size={block_size}, got "
                f"{hidden_features}. Write hidden_features="
                f"{-(-hidden_features // block_size) * block_size}, or another block_size."
            )
        self.block_size = block_size
        self.backend: Backend = one_of("backend", backend, get_args(Backend))
        self.activation: Activation = one_of("activation", activation, get_args(Activation))
        self.gater = Gater(
            in_features,
            hidden_features // block_size,
            bottleneck,
            unit,
            rate=rate,
            sparsity=sparsity,
            init=init,
            device=device,
            dtype=dtype,
        )
        self.experts = nn.Linear(in_features, hidden_features, device=device, dtype=dtype)
        self.out: TransposedLinear | None = None
        if out_features is not None:
            at_least_one("out_features", out_features)
            self.out = TransposedLinear(hidden_features, out_features, device=device, dtype=dtype)
        self.update: Update | None = None  # set by FusedSGD
        self._last: tuple[Tensor, ExecutionPath] | None = None
        self._draw_experts()

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output for x `[..., in_features]`."""
        gates, probe = self.gater(x, with_probe=True)
        y, path = conditional(
            x,
            gates,
            self._weights(),
            probe=probe,
            relu=self.activation == "relu",
            backend=self.backend,
            update=self.update,
        )
        if path is not None:
            self._last = gates.detach(), path
        return y

    def _weights(self) -> Weights:
        if self.out is None:
            return Weights(*weights_of(self.experts))
        w_out, b_out = weights_of(self.out)
        rows = w_out if isinstance(self.out, TransposedLinear) else w_out.t()
        return Weights(*weights_of(self.experts), rows, b_out)

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.gater.reset_parameters()
        self._draw_experts()

    @torch.no_grad()
    def _draw_experts(self) -> None:
        """Weights uniform ±√(6/(fan_in + fan_out)), biases zero, as the authors' experts."""
        for layer in (self.experts, self.out):
            if isinstance(layer, (nn.Linear, TransposedLinear)):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def fan_out(self) -> int:
        """How many outgoing weights each expert has."""
        return 0 if self.out is None else self.out.out_features

    def telemetry(self) -> Telemetry:
        """What the last forward pass did: density, active examples, multiplications, the path.

        Computed here, from the gates of the last pass in eager mode; nothing else is kept.
        """
        if self._last is None:
            raise RuntimeError(
                "telemetry expected a forward pass before it, outside of torch.compile and "
                "torch.func. Call layer(x) first."
            )
        gates, path = self._last
        hidden, output = self.gater.hidden.weight, self.gater.output.weight
        return measure(
            gates,
            gater=hidden.numel() + output.numel(),
            expert=self.experts.in_features + self.fan_out(),
            block=self.block_size,
            path=path,
        )

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        gater, experts = self.gater, self.experts
        parts = {name: getattr(gater, name) for name in ("unit", "rate", "sparsity", "init")}
        sizes = {"in_features": experts.in_features, "bottleneck": gater.hidden.out_features}
        return {**parts, **sizes, "hidden_features": experts.out_features}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, "update": None}  # a copy has no FusedSGD

    def extra_repr(self) -> str:
        options = f"block_size={self.block_size}, backend={self.backend!r}"
        return f"{options}, activation={self.activation!r}"

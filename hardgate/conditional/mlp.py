"""The network of Fig. 1 as one module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardgate import functional
from hardgate._base.arguments import at_least_one
from hardgate.conditional._layer import Activation, ConditionalLayer, glorot_
from hardgate.conditional._weights import weights_of
from hardgate.conditional.gater import Init
from hardgate.conditional.unit_major import UnitMajorLinear
from hardgate.kernels.op import Backend
from hardgate.sparsity import Controller
from hardgate.units import Unit


class ConditionalMLP(ConditionalLayer):
    """y = ((x W_inᵀ + b_in) ⊙ gater(x)) W_outᵀ + b_out, computing only what the gates let through.

    `experts` and `out` hold their weights under the names and in the shapes of `nn.Linear`:
    `layer.experts.load_state_dict(nn.Linear(784, 2000).state_dict())`, and the other way.
    Experts and output start uniform ±√(6/(fan_in + fan_out)), biases zero; the gater as
    `hardgate.Gater` says, with a fraction `rate` of the gates on. Layers stack: the output of one
    is the input of the next. Before evaluation mode, `hardgate.calibrate_thresholds` sets the
    threshold at which as many gates are on as in training.

    Args:
        in_features: the width of x.
        hidden_features: the number of experts.
        out_features: the width of y.
        bottleneck: the width of the gater's hidden layer.
        unit: the gates' unit, one of its own for each layer. `StraightThrough()` needs every
            expert in training; `StraightThrough(off_units="sampled")` a fraction of them.
        block_size: how many consecutive experts share a gate.
        backend: `"auto"`, `"dense"` or `"sparse"`; see `functional.conditional_mlp`.
        activation: of the experts: `"linear"`, as in the paper, or `"relu"`.
        rate, sparsity, init: as in `hardgate.Gater`.
        device, dtype: of the weights.

    Example:
        >>> from hardgate import NoisyRectifier
        >>> layer = ConditionalMLP(8, 64, 3, bottleneck=4, unit=NoisyRectifier(), block_size=16)
        >>> tuple(layer(torch.randn(2, 5, 8)).shape)
        (2, 5, 3)
        >>> layer.telemetry().examples
        10

    References:
        Bengio, Léonard & Courville 2013, §5, Fig. 1, App. A.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        *,
        bottleneck: int,
        unit: Unit,
        block_size: int = 1,
        backend: Backend = "auto",
        activation: Activation = "linear",
        rate: float | None = None,
        sparsity: Controller | None = None,
        init: Init = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_features,
            hidden_features,
            bottleneck,
            unit,
            block_size=block_size,
            backend=backend,
            activation=activation,
            rate=rate,
            sparsity=sparsity,
            init=init,
            device=device,
            dtype=dtype,
        )
        at_least_one("out_features", out_features)
        self.out = UnitMajorLinear(hidden_features, out_features, device=device, dtype=dtype)
        self._draw_experts()

    def forward(self, x: Tensor) -> Tensor:
        """y `[..., out_features]` for x `[..., in_features]`."""
        gates, probe = self.gater(x, with_probe=True)
        y = functional.conditional_mlp(
            x,
            gates,
            *weights_of(self.experts),
            *weights_of(self.out),
            backend=self.backend,
            probe=probe,
            relu=self.activation == "relu",
            update=self.update,
        )
        self._note(gates)
        return y

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        self.gater.reset_parameters()
        self._draw_experts()

    def _draw_experts(self) -> None:
        glorot_(self.experts)
        glorot_(self.out)

    def fan_out(self) -> int:
        return self.out.out_features

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        return {**super().constructor_arguments(), "out_features": self.out.out_features}

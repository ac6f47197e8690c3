"""The network of Fig. 1 as one module."""

from __future__ import annotations

from typing import Any

import torch

from hardgate.conditional._layer import Activation, ConditionalLayer
from hardgate.conditional.gater import Init
from hardgate.kernels.dispatch import Backend
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate.sparsity._controller import Controller
from hardgate.units._unit import Unit


class ConditionalMLP(ConditionalLayer):
    """y = ((x W_inᵀ + b_in) ⊙ gater(x)) W_outᵀ + b_out, computing only what the gates let through.

    `state_dict` holds `experts` and `out` under the names and in the shapes of `nn.Linear`, so
    `layer.out.load_state_dict(nn.Linear(2000, 10).state_dict())` works, and the other way. The
    parameter `out.weight` itself is `[hidden_features, out_features]`: the kernels read its rows.
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

    out: TransposedLinear

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
            out_features,
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

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        return {**super().constructor_arguments(), "out_features": self.out.out_features}

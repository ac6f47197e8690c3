"""The conditional layer without its output transform."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hardgate import functional
from hardgate.conditional._layer import Activation, ConditionalLayer, glorot_
from hardgate.conditional._weights import weights_of
from hardgate.conditional.gater import Init
from hardgate.kernels.op import Backend
from hardgate.sparsity import Controller
from hardgate.units import Unit


class ConditionalLinear(ConditionalLayer):
    """y = (x Wᵀ + b) ⊙ gater(x), computing only where the gates are not zero.

    The paper's conditional layer, for stacks and for heads of one's own. y is exactly zero where
    its gate is. `experts` holds W and b under the names and in the shapes of `nn.Linear`.

    Args:
        in_features: the width of x.
        out_features: the number of experts, the width of y.
        bottleneck, unit, block_size, backend, activation, rate, sparsity, init, device, dtype:
            as in `hardgate.ConditionalMLP`.

    Example:
        >>> from hardgate import StraightThrough
        >>> layer = ConditionalLinear(8, 50, bottleneck=4, unit=StraightThrough())
        >>> y = layer(torch.randn(20, 8))
        >>> tuple(y.shape), layer.telemetry().density < 0.5
        ((20, 50), True)
    """

    def __init__(
        self,
        in_features: int,
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
        glorot_(self.experts)

    def forward(self, x: Tensor) -> Tensor:
        """y `[..., out_features]` for x `[..., in_features]`."""
        gates, probe = self.gater(x, with_probe=True)
        y = functional.conditional_linear(
            x,
            gates,
            *weights_of(self.experts),
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
        glorot_(self.experts)

    def fan_out(self) -> int:
        return 0

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        return {**super().constructor_arguments(), "out_features": self.experts.out_features}

"""The conditional layer without its output transform."""

from __future__ import annotations

from typing import Any

import torch

from hardgate.conditional._layer import Activation, ConditionalLayer
from hardgate.conditional.gater import Init
from hardgate.kernels.dispatch import Backend
from hardgate.sparsity._controller import Controller
from hardgate.units._unit import Unit


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
            None,
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
        return {**super().constructor_arguments(), "out_features": self.experts.out_features}

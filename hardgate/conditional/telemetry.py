"""What a conditional layer did in its last forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hardgate.kernels.dispatch import ExecutionPath


@dataclass(frozen=True)
class Telemetry:
    """One forward pass of a conditional layer; multiplications are counted over the batch.

    - `density`: the fraction of (example, gate) pairs that are on; NaN for an empty batch.
    - `active`: for how many examples each gate was on, `[gates]`.
    - `examples`: the size of the batch, all leading axes together.
    - `needed`: the multiplications of the gater and of the experts that are on, output included.
    - `dense`: those of the same layer without skipping, the gater included.
    - `multiplications`: those done: `needed` where the path skips, `dense` where not.
    - `path`: which backend ran, and why.

    Example:
        >>> import torch, hardgate
        >>> from hardgate.conditional import ConditionalMLP
        >>> layer = ConditionalMLP(8, 20, 3, bottleneck=4, unit=hardgate.StraightThrough())
        >>> _ = layer(torch.randn(5, 8))
        >>> layer.telemetry().dense  # 5 · (8·4 + 4·20 + 20·8 + 20·3)
        1660
    """

    density: float
    active: Tensor
    examples: int
    needed: int
    dense: int
    path: ExecutionPath | None

    @property
    def multiplications(self) -> int:
        """The multiplications really done."""
        skipped = self.path is not None and self.path.backend != "dense"
        return self.needed if skipped else self.dense

    @property
    def saving(self) -> float:
        """dense / multiplications: 1 where nothing was skipped."""
        return self.dense / self.multiplications if self.multiplications else 1.0


def measure(
    gates: Tensor, *, gater: int, expert: int, block: int, path: ExecutionPath | None = None
) -> Telemetry:
    """The telemetry of a pass with these gates.

    Args:
        gates: `[..., gates]`.
        gater: multiplications of the gater per example.
        expert: multiplications of one hidden unit, incoming and outgoing.
        block: how many hidden units a gate serves.
        path: what ran.
    """
    on = (gates != 0).reshape(-1, gates.shape[-1])
    active, (examples, width) = on.sum(0), on.shape
    pairs = int(active.sum())
    return Telemetry(
        density=pairs / on.numel() if on.numel() else float("nan"),
        active=active,
        examples=examples,
        needed=examples * gater + pairs * block * expert,
        dense=examples * (gater + width * block * expert),
        path=path,
    )

"""The penalties of a whole network, collected in one call."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from hardgate._base import torch_state
from hardgate.sparsity._controller import Controller
from hardgate.units._unit import Unit

_HOW = "(loss + hardgate.sparsity_loss(model)).backward()"
_PATIENCE = 100  # forward passes whose penalty nobody collects, before a warning


class Steered(nn.Module):
    """A module that owns the sparsity controller of its gates, such as `hardgate.Gater`.

    Its forward pass calls `steer`, which keeps the penalty of that pass for `sparsity_loss`.
    Only the last one is kept: a pass whose penalty is not collected holds its graph until the
    next, and no longer. Copies and pickles start without it.

    Args:
        sparsity: the controller, or None. May be set later: `gater.sparsity = FiringRate(0.1,
            gater.output)`.
    """

    sparsity: Controller | None

    def __init__(self, sparsity: Controller | None = None) -> None:
        super().__init__()
        if sparsity is not None and not isinstance(sparsity, Controller):
            raise TypeError(
                "sparsity expected a hardgate.Controller or None, got "
                f"{sparsity!r}. Write sparsity=hardgate.KLTarget(0.1, weight=0.01)."
            )
        self.sparsity = sparsity
        self._penalty: Tensor | None = None
        self._uncollected = 0

    def steer(self, unit: Unit, a: Tensor, h: Tensor) -> None:
        """Keep this pass's penalty; does nothing in evaluation mode or without gradients."""
        if self.sparsity is None or not self.training or not torch.is_grad_enabled():
            return
        if torch_state.compiling():
            self._penalty = self.sparsity(unit, a, h)
        elif torch_state.backward_pass() != -1:
            self._recompute(unit, a, h)
        else:
            self._penalty = self.sparsity(unit, a, h)
            self._count()

    def take_penalty(self) -> Tensor | None:
        """The last pass's penalty, which is forgotten here; None if there is none."""
        penalty, self._penalty, self._uncollected = self._penalty, None, 0
        return penalty

    def _recompute(self, unit: Unit, a: Tensor, h: Tensor) -> None:
        """A checkpoint runs the pass again: the same operations, but nothing moves twice."""
        assert self.sparsity is not None
        mode, self.sparsity.training = self.sparsity.training, False
        self.sparsity(unit, a, h)
        self.sparsity.training = mode

    def _count(self) -> None:
        self._uncollected += 1
        if self._uncollected == _PATIENCE:
            warnings.warn(
                f"{_PATIENCE} forward passes in training mode, and the penalty of {self.sparsity} "
                f"was never collected: it has no effect. Write\n    {_HOW}",
                stacklevel=4,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_penalty": None, "_uncollected": 0}


def sparsity_loss(model: nn.Module) -> Tensor:
    """The sum of the penalties of every controller that a `Gater` in `model` owns.

    Each penalty is that of the gater's last forward pass in training mode with gradients enabled.
    It counts once: a second call without a forward pass returns zero, and so does evaluation mode.
    A controller in training mode that no gater owns is refused, because nothing calls it.

    Args:
        model: any module that contains gaters (or is one).

    Returns:
        a scalar to add to the loss.

    Example:
        >>> import hardgate
        >>> from hardgate.conditional import ConditionalMLP
        >>> layer = ConditionalMLP(
        ...     8, 20, 3, bottleneck=4, unit=hardgate.StraightThrough(),
        ...     sparsity=hardgate.KLTarget(0.1, weight=0.01),
        ... )
        >>> loss = layer(torch.randn(5, 8)).square().mean()
        >>> (loss + sparsity_loss(layer)).backward()
        >>> sparsity_loss(layer.eval()).item()
        0.0
    """
    owners = [m for m in model.modules() if isinstance(m, Steered) and m.sparsity is not None]
    _check_owned(model, owners)
    penalties = [p for p in (owner.take_penalty() for owner in owners) if p is not None]
    if not penalties and any(owner.training for owner in owners):
        raise RuntimeError(
            "sparsity_loss found no penalty: no gater of this model ran in training mode with "
            "gradients enabled since the last sparsity_loss. Call model(x) first, then "
            f"sparsity_loss once per forward pass, on the same model object:\n    {_HOW}"
        )
    total = torch.zeros((), device=penalties[0].device if penalties else None)
    for penalty in penalties:
        total = total + penalty.to(total.device)
    return total


def _check_owned(model: nn.Module, owners: list[Steered]) -> None:
    for name, m in model.named_modules():
        if not isinstance(m, Controller) or not m.training:
            continue
        if not any(owner.sparsity is m for owner in owners):
            raise RuntimeError(
                f"sparsity_loss expected controllers that a Gater owns, got {type(m).__name__}, "
                f"owned by no Gater ({name or 'the model itself'}): its penalty would be left out. "
                "Write\n    penalty = controller(unit, a, h)\nand add it to the loss; call "
                "sparsity_loss on the gaters alone, if there are any: sparsity_loss(model.gater)."
            )

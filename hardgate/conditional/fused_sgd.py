"""SGD that changes the weights of conditional layers inside the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hardgate._base.arguments import positive
from hardgate.conditional._layer import ConditionalLayer
from hardgate.conditional.gater import Gater
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate.kernels.update import Step, Update
from hardgate.sparsity.max_norm import max_norm_


class FusedSGD(torch.optim.SGD):
    """w ← w - lr·∂L/∂w, for conditional layers while the backward pass has their weights at hand.

    The gradients of experts, output and gates are never stored: only rows of units that were on are
    touched. All other parameters get an ordinary step in
    `step()`. A learning-rate scheduler works as with any optimiser. It refuses what it cannot do:
    more than one backward pass per step (accumulation, a layer used twice, weights in two places),
    DistributedDataParallel, momentum or weight decay, parametrized or pruned weights, hooks on
    them, `GradScaler`, and modes that are not eager. Gradient clipping does not see those weights.
    A loss that is NaN has changed them by the time you look: check it before `backward()`.
    `torch.autograd.grad` changes nothing.

    Args:
        model: contains `ConditionalMLP`s, `ConditionalLinear`s or `Gater`s, in fp32 or fp64.
        lr: the learning rate.
        gater_lr: that of the gaters, which are then a group of parameters of their own, the
            second one; None for the same as the rest.
        max_norm: limit the norm of every unit's incoming weights, as `max_norm_` does after each
            step; None for no limit.

    Example:
        >>> from hardgate import ConditionalMLP, NoisyRectifier
        >>> model = ConditionalMLP(8, 20, 3, bottleneck=4, unit=NoisyRectifier())
        >>> optimiser, before = FusedSGD(model, lr=0.1), model.experts.weight.clone()
        >>> model(torch.randn(5, 8)).square().mean().backward()
        >>> optimiser.step()
        >>> bool((model.experts.weight != before).any()), model.experts.weight.grad
        (True, None)
    """

    _step_supports_amp_scaling = True  # so that a GradScaler says that it is there; see `step`

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        gater_lr: float | None = None,
        max_norm: float | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(
                f"FusedSGD expected the model itself, got {type(model).__name__}: it changes the "
                "weights of layers. Write FusedSGD(model, lr=0.1)."
            )
        super().__init__(_groups(model, gater_lr), lr=positive("lr", lr), foreach=True)
        self.max_norm = None if max_norm is None else positive("max_norm", max_norm)
        self._model = model
        self._updates: list[Update] = []
        _refuse_shared(model)
        for module in model.modules():
            if isinstance(module, (ConditionalLayer, Gater)):
                _check(module)
                group = 1 if isinstance(module, Gater) and gater_lr is not None else 0
                module.update = Update(partial(self._fused_step, group))
                self._updates.append(module.update)
        if not self._updates:
            raise ValueError(
                "FusedSGD found no ConditionalMLP, ConditionalLinear or Gater in this model. "
                "Use torch.optim.SGD."
            )

    def _fused_step(self, group: int) -> Step:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise RuntimeError(
                "FusedSGD expected one process: it changes weights before their gradients could "
                "be averaged over processes. Use torch.optim.SGD."
            )
        options = self.param_groups[group]
        _plain(options)
        return Step(float(options["lr"]), self.max_norm or 0.0)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step all other parameters, limit norms, and allow the next backward pass."""
        if closure is not None:
            raise RuntimeError("FusedSGD takes no closure: write backward(), then step().")
        if hasattr(self, "found_inf"):
            raise RuntimeError(
                "FusedSGD expected the loss itself, got one scaled by a GradScaler: by now the "
                "weights have changed by as much more. Use torch.optim.SGD, or bfloat16, which "
                "needs no scaling."
            )
        for hook in [*self._optimizer_step_pre_hooks.values()]:
            hook(self, (), {})
        for group in self.param_groups:
            _plain(group)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])
        if self.max_norm is not None:
            for module in self._model.modules():
                stepped = isinstance(module, nn.Linear) and module.weight.grad is not None
                # The backward pass limits rows, and the rows of an output are no unit's inputs.
                if stepped or isinstance(module, TransposedLinear):
                    max_norm_(module, self.max_norm)
        for update in self._updates:
            update.renew()
        for hook in [*self._optimizer_step_post_hooks.values()]:
            hook(self, (), {})

    # Else torch wraps `step` for its profiler, which takes as long as a small layer.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that there are; most were never stored."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.detach_().zero_()

    def detach(self) -> None:
        """Give the layers back to ordinary optimisers."""
        for module in self._model.modules():
            if isinstance(module, (ConditionalLayer, Gater)):
                module.update = None


def _groups(model: nn.Module, gater_lr: float | None) -> list[dict[str, Any]]:
    """All parameters, or those of the gaters apart."""
    if gater_lr is None:
        return [{"params": list(model.parameters())}]
    gaters = [module for module in model.modules() if isinstance(module, Gater)]
    own = {id(p) for gater in gaters for p in gater.parameters()}
    rest = [p for p in model.parameters() if id(p) not in own]
    theirs = [p for p in model.parameters() if id(p) in own]
    return [{"params": rest}, {"params": theirs, "lr": positive("gater_lr", gater_lr)}]


def _plain(group: dict[str, Any]) -> None:
    """Raise if a group asks for more than SGD; a schedule or a state that is loaded can do so."""
    if group["momentum"] or group["weight_decay"] or group["maximize"]:
        raise RuntimeError(
            "FusedSGD expected no momentum, weight decay or maximize in its groups, got "
            f"{group['momentum']}, {group['weight_decay']} and {group['maximize']}. Use "
            "torch.optim.SGD; in a schedule like OneCycleLR write cycle_momentum=False."
        )


def _refuse_shared(model: nn.Module) -> None:
    """Each weight that a backward pass changes belongs to one layer."""
    owners: dict[int, nn.Module] = {}
    for module in model.modules():
        fused = isinstance(module, (ConditionalLayer, Gater))
        linear = (nn.Linear, TransposedLinear)
        parts = [part for part in module.children() if isinstance(part, linear)]
        for parameter in (p for part in parts if fused for p in part.parameters()):
            if owners.setdefault(id(parameter), module) is not module:
                raise ValueError(
                    "FusedSGD expected weights of one layer each, got some that two layers share: "
                    "one would see them half changed. Use torch.optim.SGD."
                )


def _check(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.dtype not in (torch.float32, torch.float64) or _not_on_cpu(parameter):
            raise TypeError(
                f"FusedSGD expected fp32 or fp64 weights on the CPU, got {parameter.dtype} on "
                f"{parameter.device} for {name}. Use torch.optim.SGD."
            )


def _not_on_cpu(parameter: Tensor) -> bool:
    return parameter.device.type != "cpu"

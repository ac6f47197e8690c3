"""The gater: the network that decides which experts are computed (§5, Fig. 1, left)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from hardgate._base import torch_state
from hardgate._base.arguments import at_least_one, fraction, one_of
from hardgate._base.run_eagerly import run_eagerly
from hardgate.conditional.init import sparse_, starting_bias
from hardgate.kernels.compiler import usable
from hardgate.kernels.op import gate_linear, gater_network
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate.kernels.update import Update
from hardgate.noise import FEW, kernel_generator, rectify
from hardgate.sparsity._controller import Controller
from hardgate.sparsity.collect import Steered
from hardgate.units._unit import NoiseTensors, Unit

Init = Literal["auto", "uniform", "sparse"]

_EXAMPLES = 200  # N(0, 1) inputs on which the starting biases are found
_ENOUGH = 1000  # gates, from which a density means something
_HOOKS_THAT_MAKE_WEIGHTS = (BasePruningMethod, SpectralNorm, WeightNorm)


class Gater(Steered):
    """gates = unit(V tanh(U x + c) + d): through a bottleneck to one gate per expert or block.

    Weights start as in the authors' runs: U uniform ±√(6/(fan_in + fan_out)), V four times
    that; for rectifiers V is sparse, 15 weights N(0, 1) per gate. c = 0, and each bias in d is the
    one at which P(gate ≠ 0) averages to `rate` over N(0, 1) inputs; `start_(x)` finds it for
    yours, `hardgate.start_gates_(model, x)` for a stack. Units that are never off (`Sigmoid`)
    start at d = 0.

    In evaluation mode a gate is on where a lies above the unit's threshold. Until
    `hardgate.calibrate_thresholds(model, batches, rate)` has set it, that is a > 0 for most units,
    and nearly all gates of a sparse layer are off (App. A.3).

    Args:
        in_features: the width of x.
        gates: the number of gates.
        bottleneck: the width of the hidden layer; 400 for 2000 gates in the paper. The gater is
            computed densely, so this bounds what a conditional layer can save.
        unit: a unit of its own for each gater.
        rate: the fraction of gates that are on at the start; None for the controller's, or 0.1.
        sparsity: a controller that keeps them there; `hardgate.sparsity_loss(model)` collects its
            penalty.
        init: of V. `"uniform"`, `"sparse"`, or `"auto"`: sparse for units with
            `starts_sparse`, which are `NoisyRectifier` and `Rectifier`.
        device, dtype: of the weights.

    Example:
        >>> from hardgate import KLTarget, StraightThrough
        >>> gater = Gater(8, 100, 4, StraightThrough(), sparsity=KLTarget(0.1, weight=0.01))
        >>> tuple(gater(torch.randn(5, 8)).shape)
        (5, 100)

    References:
        Bengio, Léonard & Courville 2013, §5 and App. A.
    """

    _checked_density: bool = False  # in evaluation mode, once

    def __init__(
        self,
        in_features: int,
        gates: int,
        bottleneck: int,
        unit: Unit,
        *,
        rate: float | None = None,
        sparsity: Controller | None = None,
        init: Init = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(sparsity)
        if not isinstance(unit, Unit):
            raise TypeError(
                f"unit expected a hardgate unit, got {unit!r}. "
                "Write unit=hardgate.StraightThrough()."
            )
        sizes = {"in_features": in_features, "gates": gates, "bottleneck": bottleneck}
        for name, size in sizes.items():
            at_least_one(name, size)
        wanted = 0.1 if sparsity is None else sparsity.rate
        self.rate = fraction("rate", wanted if rate is None else rate)
        self.init: Init = one_of("init", init, get_args(Init))
        self.hidden = nn.Linear(in_features, bottleneck, device=device, dtype=dtype)
        self.output = nn.Linear(bottleneck, gates, device=device, dtype=dtype)
        self.unit = unit
        self.update: Update | None = None  # set by FusedSGD
        self.reset_parameters()

    def forward(
        self, x: Tensor, *, with_probe: bool = False
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """The gates for inputs x.

        Args:
            x: `[..., in_features]`.
            with_probe: return the probe as well, which `functional.conditional_mlp` takes: which
                experts the unit needs evaluated for its gradient though their gate is off.

        Returns:
            the gates `[..., gates]`, or (gates, probe); the probe is None where no expert that is
            off is needed.
        """
        unit = self.unit
        sampling = unit.training or unit.eval_mode == "sample"
        if sampling and unit.rectified_noise is not None and self._draws_in_kernel(x):
            rectified = self._network(x, partial(rectify, scale=unit.rectified_noise))
            return (rectified, None) if with_probe else rectified
        a = self.pre_activation(x)
        noise = self._draw(a) if sampling else None
        h: Tensor = unit(a, noise)
        if self.sparsity is not None:
            self.steer(unit, a, h)
        if not (sampling or self._checked_density):
            self._check_density(a, h)
        if not with_probe:
            return h
        return h, unit.probe(a, noise) if torch.is_grad_enabled() else None

    def _draw(self, a: Tensor) -> NoiseTensors:
        generator = kernel_generator(a)
        if generator is None:
            return self.unit.sample_noise(a)
        return self.unit.sample_noise(a, generator)

    def pre_activation(self, x: Tensor) -> Tensor:
        """a = V tanh(U x + c) + d."""
        return self._network(x)

    def _draws_in_kernel(self, x: Tensor) -> bool:
        """Whether h comes from x in one node: nothing else needs a, or a call of the unit.

        Noise and ReLU in torch are three passes over the gates on torch's own threads, and those
        and the kernels' threads wait for each other. Drawing in the kernels takes 15 to 25 % off
        a training step of 32 examples.
        """
        unit, hidden = self.unit, self.hidden
        return (
            self.sparsity is None
            and x.dtype is torch.float32
            and x.dim() > 0
            and x.numel() // max(1, x.shape[-1]) * self.output.out_features > FEW
            and torch.is_grad_enabled()
            and "sample_noise" not in vars(unit)  # which a user may have replaced
            and type(hidden) is nn.Linear
            and hidden.weight.dtype is torch.float32 is self.output.weight.dtype
            and not (torch_state.has_hooks(unit) or torch_state.has_hooks(hidden))
            and not torch.is_autocast_enabled("cpu")
            and torch_state.eager()
            and usable(x, hidden.weight, self.output.weight)
        )

    def _network(self, x: Tensor, rectify: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        if x.shape[-1:] != (self.hidden.in_features,):
            raise ValueError(
                f"expected x of shape [..., {self.hidden.in_features}], got {tuple(x.shape)}."
            )
        hidden, (V, d) = self.hidden, weights_of(self.output)
        if type(hidden) is nn.Linear and not torch_state.has_hooks(hidden):
            return gater_network(x, hidden.weight, hidden.bias, V, d, self.update, rectify)
        return gate_linear(torch.tanh(hidden(x)), V, d, self.update)

    def _check_density(self, a: Tensor, h: Tensor) -> None:
        """Warn, once, where evaluation closes gates that are on when sampled (A.3)."""
        unit = self.unit
        unreadable = h.is_meta or torch_state.tracing() or torch_state.transforming()
        if unreadable or torch_state.has_hooks(unit):  # such as that of calibrate_thresholds
            return
        self._checked_density = True
        untouched = unit.threshold.dim() == 0 and unit.threshold == unit.natural_threshold
        if unit.eval_mode != "threshold" or h.numel() < _ENOUGH or not untouched:
            return
        density = int(torch.count_nonzero(h)) / h.numel()
        sampled = unit.active_probability(a.detach()).float().mean().item()
        if density < sampled / 2:
            warnings.warn(
                f"{100 * density:.2g} % of the gates are on in evaluation mode, where sampled ones "
                f"are on {100 * sampled:.2g} % of the time: the threshold is still where it "
                "started. Once the model is trained, write\n    hardgate.calibrate_thresholds("
                f"model, batches, rate={sampled:.2g})\nwith training data.",
                stacklevel=5,
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew, and start at `rate` on N(0, 1) inputs."""
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        if self.init == "sparse" or (self.init == "auto" and self.unit.starts_sparse):
            sparse_(self.output.weight)
        else:
            nn.init.xavier_uniform_(self.output.weight, gain=4.0)
        if self.output.weight.is_meta:
            nn.init.zeros_(self.output.bias)
        else:
            weight = self.hidden.weight
            self.start_(weight.new_empty(_EXAMPLES, weight.shape[1]).normal_())

    @torch.no_grad()
    def start_(self, x: Tensor) -> Gater:
        """Set the gates' biases, in place, so that each is on for a fraction `rate` of `x`.

        Args:
            x: `[..., in_features]`, some hundred examples of what the layer will see.

        Returns:
            the gater.
        """
        nn.init.zeros_(self.output.bias)
        a = self.pre_activation(x).reshape(-1, self.output.out_features)
        self.output.bias.copy_(starting_bias(self.unit, a, self.rate))
        return self

    def constructor_arguments(self) -> dict[str, Any]:
        """Those that are not attributes of the same names, for `hardgate.save`."""
        hidden, output = self.hidden, self.output
        sizes = {"in_features": hidden.in_features, "bottleneck": hidden.out_features}
        return {**sizes, "gates": output.out_features}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "update": None}  # a copy has no FusedSGD

    def extra_repr(self) -> str:
        return f"rate={self.rate}, init={self.init!r}"


def weights_of(layer: nn.Module) -> tuple[Tensor, Tensor]:
    """The weight and the bias of a linear layer that is read and never called.

    Pruning and torch's older norms of weights compute them in a hook before each call, so those
    hooks run here. A module that took the layer's place and does more than W x + b is refused:
    only its weight would count.

    Example:
        >>> from torch.nn.utils import prune
        >>> layer = prune.random_unstructured(nn.Linear(4, 3), "weight", 0.5)
        >>> _ = layer.weight_orig.data.fill_(1.0)
        >>> int(weights_of(layer)[0].sum())
        6
    """
    if not isinstance(layer, (nn.Linear, TransposedLinear)):
        raise TypeError(
            "conditional layers expected torch.nn.Linear for experts, output and gates, got "
            f"{type(layer).__name__}: they read its weight, and do not call it. To change the "
            "weight, write torch.nn.utils.parametrize.register_parametrization."
        )
    for hook in torch_state.forward_pre_hooks(layer):
        if isinstance(hook, _HOOKS_THAT_MAKE_WEIGHTS):
            hook(layer, ())
    return layer.weight, layer.bias


@torch.no_grad()
def start_gates_(model: nn.Module, x: Tensor) -> nn.Module:
    """Set the gates' biases, in place, so that each is on for a fraction `rate` of the examples.

    A fresh `Gater` is at its rate on N(0, 1) inputs. Real inputs, and above all the outputs of a
    layer below, have another scale, and the upper gates of a stack may start dead. One forward
    pass starts each gater on its own inputs, from the bottom up. Call it before training.

    Args:
        model: contains `Gater`s, alone or in conditional layers.
        x: the model's input, some hundred examples.

    Returns:
        `model`.

    Example:
        >>> from hardgate import ConditionalMLP, Rectifier
        >>> layers = [ConditionalMLP(8, 50, 8, bottleneck=4, unit=Rectifier()) for _ in range(3)]
        >>> x = torch.randn(200, 8)
        >>> y = start_gates_(nn.Sequential(*layers), x)(x)
        >>> tuple(round(layer.telemetry().density, 3) for layer in layers)
        (0.1, 0.1, 0.1)
    """
    gaters = [m for m in model.modules() if isinstance(m, Gater)]
    if not gaters:
        raise ValueError("start_gates_ found no hardgate.Gater in this model.")
    hooks = [g.register_forward_pre_hook(_start) for g in gaters]
    try:
        with run_eagerly():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return model


def _start(gater: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    assert isinstance(gater, Gater)
    gater.start_(inputs[0])

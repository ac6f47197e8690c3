"""The gater: the network that decides which experts are computed (§5, Fig. 1, left)."""

from __future__ import annotations

import warnings
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch

from hardgate._base.arguments import at_least_one, fraction, one_of
from hardgate.conditional._weights import weights_of
from hardgate.conditional.init import sparse_, starting_bias
from hardgate.kernels.compiler import tracing
from hardgate.kernels.gate_linear import gate_linear
from hardgate.kernels.gater_network import Rectify, gater_network
from hardgate.kernels.update import Update
from hardgate.noise import Gaussian, fast, rectify
from hardgate.sparsity._controller import Controller
from hardgate.sparsity.collect import Steered
from hardgate.units import NoisyRectifier, Rectifier, StraightThrough, Unit
from hardgate.units._unit import NoiseTensors

Init = Literal["auto", "uniform", "sparse"]

_EXAMPLES = 200  # N(0, 1) inputs on which the starting biases are found
_ENOUGH = 1000  # gates that tell how many are on


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
        init: of V. `"uniform"`, `"sparse"`, or `"auto"`: sparse for `NoisyRectifier` and
            `Rectifier`.
        device, dtype: of the weights.

    Example:
        >>> from hardgate import KLTarget, StraightThrough
        >>> gater = Gater(8, 100, 4, StraightThrough(), sparsity=KLTarget(0.1, weight=0.01))
        >>> tuple(gater(torch.randn(5, 8)).shape)
        (5, 100)

    References:
        Bengio, Léonard & Courville 2013, §5 and App. A.
    """

    _looked: bool = False  # at what evaluation mode leaves on

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
        sampling = self.unit.training or self.unit.eval_mode == "sample"
        if sampling and self.sparsity is None and self._is_noisy_rectifier():
            gates = self._network(x, self._rectify)
            return (gates, None) if with_probe else gates
        a = self.pre_activation(x)
        with fast():
            noise = self.unit.sample_noise(a) if sampling else None
        h: Tensor = self.unit(a, noise)
        self.steer(self.unit, a, h)
        if not (sampling or self._looked):
            self._look(a, h)
        return (h, _probe(self.unit, a, noise)) if with_probe else h

    def pre_activation(self, x: Tensor) -> Tensor:
        """a = V tanh(U x + c) + d."""
        return self._network(x)

    def _network(self, x: Tensor, rectify: Rectify | None = None) -> Tensor:
        hidden, output = self.hidden, self.output
        if x.shape[-1:] != (hidden.in_features,):
            raise ValueError(
                f"expected x of shape [..., {hidden.in_features}], got {tuple(x.shape)}."
            )
        V, d = weights_of(output)
        if type(hidden) is nn.Linear and not _hooked(hidden):
            return gater_network(x, hidden.weight, hidden.bias, V, d, self.update, rectify)
        a = gate_linear(torch.tanh(hidden(x)), V, d, self.update)
        return a if rectify is None else rectify(a)

    def _is_noisy_rectifier(self) -> bool:
        """Whether h comes from x in one go: nobody else asks for a, and no hook for the unit."""
        unit = self.unit
        return (
            type(unit) is NoisyRectifier
            and type(unit.noise) is Gaussian
            and "sample_noise" not in vars(unit)  # somebody else draws
            and not _hooked(unit)
            and not torch.compiler.is_compiling()
            and functorch.peek_interpreter_stack() is None
        )

    def _look(self, a: Tensor, h: Tensor) -> None:
        """Warn, once, where evaluation closes gates that are on when sampled (A.3)."""
        unit = self.unit
        unreadable = h.is_meta or tracing() or functorch.peek_interpreter_stack() is not None
        if unreadable or _hooked(unit):  # the hook may be calibrate_thresholds'
            return
        self._looked = True
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

    def _rectify(self, a: Tensor) -> Tensor:
        assert isinstance(self.unit, NoisyRectifier)
        with fast():
            return rectify(a, self.unit.noise.scale)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the weights anew, and start at `rate` on N(0, 1) inputs."""
        rectifier = isinstance(self.unit, (NoisyRectifier, Rectifier))
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        if self.init == "sparse" or (self.init == "auto" and rectifier):
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


def _hooked(module: nn.Module) -> bool:
    """Whether somebody waits for the module to be called."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _probe(unit: Unit, a: Tensor, noise: NoiseTensors | None) -> Tensor | None:
    """Which experts the unit's gradient needs though they are off; weights stay with the unit."""
    if not torch.is_grad_enabled():
        return None
    if unit.off_gradient == "expert" and isinstance(unit, StraightThrough):
        return unit.probe(a, noise)
    # The deterministic counterpart of a unit that learns from the loss is back-propagated.
    deterministic = unit.off_gradient == "score" and noise is None
    return torch.ones_like(a) if unit.off_gradient == "expert" or deterministic else None

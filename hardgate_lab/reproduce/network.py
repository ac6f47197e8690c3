"""The network of a row: Fig. 1 with the row's unit, or a plain dense one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch
from torch import Tensor, nn

from hardgate import (
    AdaptiveL1,
    ConditionalMLP,
    Controller,
    FiringRate,
    KLTarget,
    NoisyRectifier,
    Rectifier,
    Sigmoid,
    StochasticBinary,
    StochasticTimesSmooth,
    StraightThrough,
    Unit,
    max_norm_,
    start_gates_,
)
from hardgate.conditional._layer import Activation
from hardgate.kernels.transposed_linear import TransposedLinear
from hardgate.noise import Beta, Gaussian
from hardgate_lab.reproduce.settings import Settings, SettingsError

_START = 500  # training images on which the gates' biases start

UNITS: dict[str, Callable[[Settings], Unit]] = {
    "noisy_rectifier": lambda s: NoisyRectifier(scale=s.noise),
    "straight_through": lambda s: StraightThrough(
        s.sigmoid_derivative, off_units=_any(s.off_units), off_rate=s.off_rate
    ),
    "stochastic_times_smooth": lambda s: StochasticTimesSmooth(
        s.corrected,
        noise=Beta(s.beta, s.rate) if s.beta else None,
        placement=_any(s.placement),
    ),
    "stochastic_binary": lambda s: StochasticBinary(_any(s.baseline), decay=s.baseline_decay),
    "rectifier": lambda s: Rectifier(),
    "sigmoid": lambda s: Sigmoid(Gaussian(s.noise) if s.noise else None),
}

CONTROLLERS: dict[str, Callable[[Settings], Controller | None]] = {
    "kl": lambda s: KLTarget(s.target, s.sparsity_weight),
    "l1": lambda s: AdaptiveL1(s.target, weight=s.sparsity_weight),
    "rate": lambda s: FiringRate(s.target, strength=s.sparsity_weight),
    "none": lambda s: None,
}


class Gated(nn.Module):
    """The paper's network, with dropout on its input and on its gated experts where asked for.

    It counts the gates that are on in training: `density()`.

    Args:
        settings: the row's.
        features: the width of x.
        classes: the width of the output.
    """

    def __init__(self, settings: Settings, features: int, classes: int) -> None:
        super().__init__()
        self.layer = ConditionalMLP(
            features,
            settings.hidden,
            classes,
            bottleneck=settings.bottleneck,
            unit=make_unit(settings),
            sparsity=make_controller(settings),
            rate=settings.rate,
            activation=_any(settings.activation),
        )
        gater = self.layer.gater
        with torch.no_grad():
            gater.output.weight.mul_(settings.gater_init)
            gater.hidden.weight.mul_(settings.bottleneck_init)
            self.layer.experts.weight.mul_(settings.expert_init)
            self.layer.out.weight.mul_(settings.out_init)
        gater.hidden.requires_grad_(settings.bottleneck_learns)
        self.input_dropout = nn.Dropout(settings.input_dropout)
        self.hidden_dropout = nn.Dropout(settings.hidden_dropout)
        self.mixed = settings.precision != "float32"
        gater.register_forward_hook(self._drop)
        gater.unit.register_forward_hook(self._count)
        self._on = self._seen = 0

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, classes]` for x `[B, features]`."""
        with _products(self):  # of the gater: the experts' are in fp32
            y: Tensor = self.layer(self.input_dropout(x))
        return y

    @property
    def out(self) -> nn.Module:
        """The layer of the classes."""
        return self.layer.out

    def density(self) -> float:
        """The fraction of gates on in training passes since the last call of this."""
        density = self._on / self._seen if self._seen else 1.0
        self._on = self._seen = 0
        return density

    def _drop(self, gater: nn.Module, args: Any, output: Any) -> Any:
        if not gater.training:
            return output
        gates, probe = output
        return self.hidden_dropout(gates), probe

    def _count(self, unit: nn.Module, args: Any, h: Tensor) -> None:
        if unit.training:
            self._on += int(torch.count_nonzero(h))
            self._seen += h.numel()


class Dense(nn.Module):
    """A plain ReLU network of the same width: what the gates cost or gain is seen against it."""

    def __init__(self, settings: Settings, features: int, classes: int) -> None:
        super().__init__()
        self.experts = nn.Linear(features, settings.hidden)
        self.out = nn.Linear(settings.hidden, classes)
        self.input_dropout = nn.Dropout(settings.input_dropout)
        self.hidden_dropout = nn.Dropout(settings.hidden_dropout)
        gains = {self.experts: settings.expert_init, self.out: settings.out_init}
        self.mixed = settings.precision != "float32"
        for layer, gain in gains.items():
            nn.init.xavier_uniform_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[B, classes]` for x `[B, features]`."""
        with _products(self):
            h = torch.relu(self.experts(self.input_dropout(x)))
            y: Tensor = self.out(self.hidden_dropout(h))
        return y

    def density(self) -> float:
        """1: nothing is ever off."""
        return 1.0


Network = Gated | Dense


def _products(network: Network) -> torch.autocast:
    """The precision of the products: bf16 in training, where the settings ask for it."""
    return torch.autocast("cpu", torch.bfloat16, enabled=network.mixed and network.training)


def build(settings: Settings, x: Tensor, classes: int) -> Network:
    """The network, its gates started at the target rate.

    Args:
        settings: the row's.
        x: the training images; the gates' biases are found on the first few.
        classes: the number of classes.
    """
    if settings.unit == "none":
        return Dense(settings, x.shape[1], classes)
    model = Gated(settings, x.shape[1], classes)
    if settings.bottleneck_start == "differences":
        differences_(model.layer.gater.hidden, x, settings.bottleneck_init)
    limit_norms_(model, settings)  # first: it changes how often a gate is on
    start_gates_(model.eval(), x[:_START])  # evaluation mode: biases are found without dropout
    return model.train()


@torch.no_grad()
def differences_(layer: nn.Linear, x: Tensor, spread: float) -> None:
    """Start each unit at the difference of two images: what tells one from the other.

    Directions in which images differ much are frequent among them, and pixels that are always
    alike have no weight. Units are centred, and vary by `spread` (a standard deviation) over the
    images. With images of different classes: McDonnell et al. 2015, *Fast, simple and accurate
    handwritten digit classification by training shallow neural network classifiers with the
    'extreme learning machine' algorithm*.
    """
    n, units = len(x), layer.out_features
    one = torch.randint(n, (units,))
    other = (one + torch.randint(1, max(2, n), (units,))) % n
    w = x[one] - x[other]
    a = x[:_START] @ w.T
    factor = spread / a.std(0).clamp(min=1e-6)  # two images may be the same
    layer.weight.copy_(w * factor.unsqueeze(1))
    layer.bias.copy_(-a.mean(0) * factor)


def limit_norms_(model: Network, settings: Settings) -> None:
    """Scale down, in place, the incoming weights of every unit beyond its limit (A.4)."""
    limits = {model.out: settings.out_max_norm}
    if isinstance(model, Gated):
        limits[model.layer.gater.hidden] = settings.bottleneck_max_norm
        limits[model.layer.gater.output] = settings.gate_max_norm
    for layer in model.modules():
        linear = isinstance(layer, (nn.Linear, TransposedLinear))
        if linear and (limit := limits.get(layer, settings.max_norm)):
            max_norm_(layer, limit)


def check(settings: Settings) -> None:
    """Raise `SettingsError` where the settings describe no network."""
    if settings.unit != "none":
        make_unit(settings)
    make_controller(settings)
    if settings.activation not in get_args(Activation):
        raise SettingsError(
            f"activation expected one of {', '.join(get_args(Activation))}, "
            f"got {settings.activation!r}."
        )


def make_unit(settings: Settings) -> Unit:
    """The gates' unit; `SettingsError` where the settings do not describe one."""
    unit: Unit = _make("unit", UNITS, settings.unit, settings)
    return unit


def make_controller(settings: Settings) -> Controller | None:
    """The sparsity controller, if any; `SettingsError` where the settings do not describe one."""
    controller: Controller | None = _make("sparsity", CONTROLLERS, settings.sparsity, settings)
    return controller


def _make(field: str, choices: dict[str, Any], name: str, settings: Settings) -> Any:
    if name not in choices:
        raise SettingsError(f"{field} expected one of {', '.join(choices)}, got {name!r}.")
    try:
        return choices[name](settings)
    except ValueError as error:
        raise SettingsError(str(error)) from None


def _any(word: str) -> Any:
    """A word whose choices the unit itself checks."""
    return word

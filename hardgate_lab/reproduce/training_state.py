"""All that changes while a row trains: what a checkpoint holds, to resume bit for bit."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hardgate import FusedSGD
from hardgate_lab.reproduce.data_parallel import Shard
from hardgate_lab.reproduce.evaluate import Evaluation
from hardgate_lab.reproduce.network import Gated, Network, build, limit_norms_
from hardgate_lab.reproduce.settings import Settings
from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.checkpoint import part
from hardgate_lab.rig.idx import CLASSES

if TYPE_CHECKING:
    from hardgate_lab.rig.mnist import Split

_NORMS = 4  # steps between two looks at the norms; they grow little in between
_AVERAGE = 16  # steps between two moves of the averaged weights
CURVES = ("train_loss", "valid_error", "valid_loss", "density", "weight", "seconds")


class TrainingState:
    """The model, its averaged copy, the optimiser, the best weights so far, and the curves.

    Args:
        settings: the row's.
        train: the training images.
        shard: of this process, where several train together.
    """

    def __init__(self, settings: Settings, train: Split, shard: Shard | None = None) -> None:
        self.settings, self.shard = settings, shard or Shard()
        self.model = build(settings, train.x, CLASSES)
        self.averaged = copy.deepcopy(self.model) if settings.average else None
        self.forward = self.shard.wrap(self.model)  # what training calls
        self.optimiser = _optimiser(self.model, settings, self.shard)
        self.best: dict[str, Tensor] = {}
        self.curves: dict[str, list[float]] = {name: [] for name in CURVES}
        self.steps = 0
        self._climbed: list[tuple[Tensor, Tensor]] = []  # weights, and how far they were moved
        self._begun = (0, time.perf_counter())

    @property
    def epoch(self) -> int:
        """The epochs done."""
        return len(self.curves["seconds"])

    def schedule(self, fraction: float) -> None:
        """Set learning rate and momentum, when this fraction of the epoch is done."""
        for group in self.optimiser.param_groups:
            group["lr"] = group["scale"] * self.settings.learning_rate(self.epoch + fraction)
            group["momentum"] = self.settings.momentum_in(self.epoch)

    @torch.no_grad()
    def climb(self) -> None:
        """Move the weights up the gradient by ρ: w + ρ ∇L/‖∇L‖.

        The next backward pass takes the gradient there, and `step` moves back before it applies
        it: sharpness-aware minimisation (Foret, Kleiner, Mobahi & Neyshabur 2021).
        """
        gradients = {p: p.grad for p in self.model.parameters() if p.grad is not None}
        norm = torch.stack([g.norm() for g in gradients.values()]).norm().item()
        scale = self.settings.rho / max(norm, 1e-12)
        self._climbed = [(w, g * scale) for w, g in gradients.items()]
        for w, way in self._climbed:
            w.add_(way)
        self.optimiser.zero_grad()

    def step(self) -> None:
        """After the backward pass: move the weights, limit their norms, move their average."""
        with torch.no_grad():
            for w, way in self._climbed:
                w.sub_(way)
        self._climbed = []
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.steps += 1
        if self.steps % _NORMS == 0:
            limit_norms_(self.model, self.settings)
        if self.averaged is not None and self.steps % _AVERAGE == 0:
            moves = self.steps // _AVERAGE
            keep = min(self.settings.average**_AVERAGE, moves / (moves + 2))  # faster at first
            pairs = zip(self.averaged.parameters(), self.model.parameters(), strict=True)
            with torch.no_grad():
                for mean, w in pairs:
                    mean.lerp_(w, 1 - keep)

    def evaluated(self) -> Network:
        """The network that is evaluated: that of the averaged weights, where there are some."""
        return self.model if self.averaged is None else self.averaged

    def note(self, loss: float, density: float, valid: Evaluation, seconds: float) -> None:
        """Add an epoch to the curves, and keep its weights if they are the best so far."""
        values = (loss, valid.error, valid.loss, density, self._weight(), seconds)
        for name, value in zip(CURVES, values, strict=True):
            self.curves[name].append(value)
        if self.best_epoch() == self.epoch:
            self.best = {k: v.clone() for k, v in self.evaluated().state_dict().items()}

    def best_epoch(self) -> int:
        """The epoch, counted from 1, of least validation error, ties broken by the loss."""
        scores = list(zip(self.curves["valid_error"], self.curves["valid_loss"], strict=True))
        return 1 + scores.index(min(scores))

    def last(self, curve: str) -> float:
        """The last value of a curve; NaN before the first epoch."""
        return self.curves[curve][-1] if self.epoch else float("nan")

    def best_error(self) -> float:
        """The least validation error so far."""
        return min(self.curves["valid_error"], default=float("nan"))

    def seconds_left(self, fraction: float) -> float:
        """An estimate, when this fraction of the epoch is done."""
        begun, start = self._begun
        done = self.epoch + fraction - begun
        if done <= 0:
            return float("nan")
        return (time.perf_counter() - start) / done * (self.settings.epochs - self.epoch - fraction)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the run, the state of the random generator with them."""
        named = {"model": self.model.state_dict(), "best": self.best}
        if self.averaged is not None:
            named["averaged"] = self.averaged.state_dict()
        named["momentum"] = {
            name: self.optimiser.state[p]["momentum_buffer"].contiguous()
            for name, p in self.model.named_parameters()
            if "momentum_buffer" in self.optimiser.state[p]
        }
        return {**checkpoint.packed(named), "random": torch.get_rng_state()}

    def state(self) -> dict[str, Any]:
        """The rest."""
        return {"steps": self.steps, "curves": self.curves}

    def resume(self, saved: tuple[dict[str, Tensor], dict[str, Any]] | None) -> None:
        """Take over a checkpoint, if there is one."""
        if saved is None:
            return
        tensors, state = saved
        self.model.load_state_dict(part(tensors, "model"))
        if self.averaged is not None:
            self.averaged.load_state_dict(part(tensors, "averaged"))
        momentum = part(tensors, "momentum")
        for name, p in self.model.named_parameters():
            if name in momentum:  # in the layout of p, on which the optimiser's kernel relies
                self.optimiser.state[p]["momentum_buffer"] = torch.empty_like(
                    p, requires_grad=False
                ).copy_(momentum[name])
        self.best, self.curves, self.steps = part(tensors, "best"), state["curves"], state["steps"]
        torch.set_rng_state(tensors["random"])
        self._begun = (self.epoch, time.perf_counter())

    def _weight(self) -> float:
        """λ as it stands."""
        control = self.model.layer.gater.sparsity if isinstance(self.model, Gated) else None
        return 0.0 if control is None else float(getattr(control, "weight", float("nan")))


def _optimiser(model: Network, settings: Settings, shard: Shard) -> torch.optim.SGD:
    """FusedSGD where it can do what the settings ask for, else SGD; the gater has its own rate."""
    plain = settings.momentum == settings.rho == 0 and shard.world == 1
    if isinstance(model, Gated) and plain:
        fused = FusedSGD(model, settings.lr, gater_lr=settings.lr * settings.gater_lr)
        for group, scale in zip(fused.param_groups, (1.0, settings.gater_lr), strict=True):
            group["scale"] = scale
        return fused
    gater = list(model.layer.gater.parameters()) if isinstance(model, Gated) else []
    own = {id(p) for p in gater}
    rest = [p for p in model.parameters() if id(p) not in own]
    groups: list[dict[str, Any]] = [{"params": rest, "scale": 1.0}]
    if gater:
        groups.append({"params": gater, "scale": settings.gater_lr})
    return torch.optim.SGD(groups, lr=settings.lr, fused=True)

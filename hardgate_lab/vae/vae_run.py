"""The training with one estimator: all that changes, and what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.checkpoint import Say, part
from hardgate_lab.rig.progress import Pace
from hardgate_lab.rig.same_run import check_same
from hardgate_lab.vae.autoencoder import BernoulliVAE
from hardgate_lab.vae.elbo import elbo
from hardgate_lab.vae.vae_candidates import trainable
from hardgate_lab.vae.vae_data import Digits

_SPLITS = ("train", "valid", "test")
CURVE = ("step", *_SPLITS, *(f"{split}_error" for split in _SPLITS))
EVALUATED = 10_000  # images of each split; validation and test have no more
_DRAWS = 2  # of b for each of them
_TELL_EVERY = 0.3  # seconds


@dataclass(frozen=True)
class VaeSettings:
    """All that decides where a run goes. How far it goes is not one of them."""

    estimator: str  # the code that makes it
    seed: int = 0  # of weights, batches and noise; the batches are the same for all estimators
    units: int = 200  # D
    batch: int = 100  # images per step
    lr: float = 1e-3  # of Adam, constant, the same for encoder, decoder and prior
    every: int = 500  # steps between two points of the curve, each with a checkpoint


class DivergedError(RuntimeError):
    """The weights are not finite any more."""


class VaeRun:
    """Model, optimiser, the estimator with what it has learnt, and the curve.

    Args:
        settings: of the run.
        data: to train and evaluate on.
    """

    def __init__(self, settings: VaeSettings, data: Digits) -> None:
        self.settings, self.data = settings, data
        torch.manual_seed(settings.seed)
        self.model = BernoulliVAE(data.train.float().mean(0), settings.units)
        self.estimator = trainable([settings.estimator])[settings.estimator].make()
        self.optimiser = torch.optim.Adam(self.model.parameters(), settings.lr, fused=True)
        self.curve: dict[str, list[float]] = {name: [] for name in CURVE}
        self._random = torch.get_rng_state()
        self._done, self._epoch, self._order = 0, -1, torch.empty(0)

    @property
    def steps(self) -> int:
        """Steps done, up to the last point of the curve."""
        return int(self.curve["step"][-1]) if self.curve["step"] else 0

    @property
    def same(self) -> dict[str, Any]:
        """What must agree for a run to be continued."""
        return {"data": self.data.digest, "settings": asdict(self.settings)}

    def advance(self, tell: Callable[[int], None]) -> None:
        """Train to the next point of the curve, and add it.

        Args:
            tell: given the number of steps done, a few times a second.
        """
        torch.set_rng_state(self._random)  # other runs take their turns in between
        pace = Pace(_TELL_EVERY)
        for _ in range(self.settings.every):
            self.step()
            if pace.due():
                tell(self._done)
        self._random = torch.get_rng_state()
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise DivergedError(f"weights that are not finite by step {self._done}")
        self._note()

    def step(self) -> None:
        """One step of training."""
        x = self.data.train[self._batch(self._done)].float()
        self.model.loss(x, self.estimator).mean().backward()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self._done += 1

    def _batch(self, step: int) -> Tensor:
        """The images of a step: each epoch has an order that depends on nothing but the seed."""
        n, batch = len(self.data.train), min(self.settings.batch, len(self.data.train))
        epoch, number = divmod(step, n // batch)
        if epoch != self._epoch:
            self._epoch = epoch
            generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + epoch)
            self._order = torch.randperm(n, generator=generator)
        return self._order[number * batch : (number + 1) * batch]

    def _note(self) -> None:
        """The ELBO on each part; nothing is chosen by it."""
        found = [
            elbo(self.model, getattr(self.data, split)[:EVALUATED], _DRAWS, self._done)
            for split in _SPLITS
        ]
        values = (self._done, *(e.mean for e in found), *(e.error for e in found))
        for name, value in zip(CURVE, values, strict=True):
            self.curve[name].append(value)

    def save(self, folder: Path) -> None:
        """Write a checkpoint."""
        number = len(self.curve["step"])
        checkpoint.save(folder, number, self._tensors(), {**self.same, "curve": self.curve})

    def resume(self, folder: Path, say: Say) -> None:
        """Continue from the last checkpoint that is whole, if there is one."""
        saved = checkpoint.load(folder, say)
        if saved is None:
            return
        tensors, state = saved
        check_same(state, self.same, folder)
        self.model.load_state_dict(part(tensors, "model"))
        self.estimator.load_state_dict(part(tensors, "estimator"))
        for name, parameter in self.model.named_parameters():
            self.optimiser.state[parameter] = part(tensors, f"adam/{name}")
        self.curve, self._random = state["curve"], tensors["random"]
        self._done = self.steps

    def _tensors(self) -> dict[str, Tensor]:
        named = {"model": self.model.state_dict(), "estimator": self.estimator.state_dict()}
        for name, parameter in self.model.named_parameters():
            named[f"adam/{name}"] = self.optimiser.state[parameter]
        return {**checkpoint.packed(named), "random": self._random}

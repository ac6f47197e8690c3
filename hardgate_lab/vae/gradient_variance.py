"""The variance of every estimator's gradient along one trajectory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hardgate.estimators import Estimator, expectation
from hardgate.units import Unit
from hardgate_lab.rig.candidates import Candidate
from hardgate_lab.rig.idx import DataError
from hardgate_lab.vae.autoencoder import BernoulliVAE
from hardgate_lab.vae.take_turns import SNAPSHOT, snapshots
from hardgate_lab.vae.vae_candidates import n_evals
from hardgate_lab.vae.vae_data import Digits

_BATCH = 100
_IMAGES = 100  # the fixed images, in minibatches
_WARM_UP = 200  # minibatches before each measurement, for estimators that learn
_BLOCKS, _DRAWS = 10, 10  # the variance of 10 draws, ten times: hence its standard error
METHOD = (
    "sum over units of Var(g), g the gradient of one image's loss at its encoder logits; mean over "
    f"{_IMAGES} fixed training images, {_BLOCKS * _DRAWS} draws; estimators that learn: "
    f"{_WARM_UP} minibatches at each step"
)


@dataclass(frozen=True)
class Spread:
    """Σ_i Var(g_i) over the units, g the gradient of one image's loss at its encoder logits.

    - `variance`: its mean over the images, and `error`, its standard error;
    - `square`: ‖E g‖², the mean over the images, to hold it against.
    """

    variance: float
    error: float
    square: float


def along(
    trajectory: Path, units: int, candidate: Candidate, data: Digits, seed: int
) -> Iterator[tuple[int, Spread]]:
    """The spread at each step whose weights the trajectory has kept.

    What the estimator has learnt is carried on from step to step, so it has seen as many
    minibatches of each model as every other one.

    Args:
        trajectory: the folder of a run.
        units: D.
        candidate: measured on the models of the trajectory, which it does not move.
        data: whose first training images are the fixed minibatches.
        seed: of the draws.
    """
    torch.manual_seed(seed)
    made = candidate.make()
    model = BernoulliVAE(data.train.float().mean(0), units).requires_grad_(False)
    for step in snapshots(trajectory):
        model.load_state_dict(_weights(trajectory / SNAPSHOT.format(step)))
        if candidate.learns:
            _learn(made, model, data.train)
        yield step, spread(made, model, data.train[:_IMAGES].float())


def _weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{path}: expected the weights of a run, got “{error}”. Remove the file, and the "
            "variance is measured without it; or start the run anew with --fresh."
        ) from error


def spread(made: Estimator | Unit, model: BernoulliVAE, images: Tensor) -> Spread:
    """Measure an estimator as it stands; what it has learnt is not moved."""
    if isinstance(made, Estimator):
        made.eval()  # units would stop sampling
    blocks, means = [], []
    for _ in range(_BLOCKS):
        g = torch.stack([_gradient(made, model, images) for _ in range(_DRAWS)])  # [draws, n, D]
        blocks.append(g.var(0).sum(-1).mean())
        means.append(g.mean(0))
    made.train()
    variance, mean = torch.stack(blocks), torch.stack(means).mean(0)
    # The mean of n draws has variance/n of its own in its square.
    square = mean.square().sum(-1).mean() - variance.mean() / (_BLOCKS * _DRAWS)
    error = variance.std() / _BLOCKS**0.5
    return Spread(variance.mean().item(), error.item(), max(square.item(), 0.0))


def _gradient(made: Estimator | Unit, model: BernoulliVAE, images: Tensor) -> Tensor:
    """One draw at every image, minibatch by minibatch; KL is a formula and does not scatter."""
    return torch.cat([_at(made, model, x) for x in images.split(_BATCH)])


def _at(made: Estimator | Unit, model: BernoulliVAE, x: Tensor) -> Tensor:
    a = model.logits(x).requires_grad_()
    context = x if isinstance(made, Estimator) and made.uses_context else None
    value = expectation(model.reconstruction(x), a, made, context=context)
    (gradient,) = torch.autograd.grad(value.sum(), a)
    return gradient


def _learn(made: Estimator | Unit, model: BernoulliVAE, images: Tensor) -> None:
    for _ in range(_WARM_UP):
        _at(made, model, images[torch.randint(len(images), (_BATCH,))].float())


Tell = Callable[[str, int], None]


def measure(
    trajectory: Path,
    units: int,
    chosen: dict[str, Candidate],
    data: Digits,
    seed: int,
    tell: Tell,
) -> list[dict[str, Any]]:
    """The rows of `variance.json`: one for each candidate and step.

    Args:
        trajectory: see `along`.
        units: D.
        chosen: the candidates.
        data: see `along`.
        seed: of the draws.
        tell: given the candidate and the step that is done.
    """
    rows = []
    for name, candidate in chosen.items():
        for step, found in along(trajectory, units, candidate, data, seed):
            facts = {"unbiased": _unbiased(candidate), "n_evals": n_evals(candidate.make())}
            rows.append({"estimator": name, "step": step, **facts, **_rounded(found)})
            tell(name, step)
    return rows


def _unbiased(candidate: Candidate) -> bool:
    return isinstance(candidate.make(), Estimator) and candidate.unbiased


def _rounded(found: Spread) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in vars(found).items()}

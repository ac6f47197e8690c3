"""One row of the table, top to bottom: data → model → loop → evaluation → record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hardgate import score_loss, sparsity_loss
from hardgate_lab.reproduce.data_parallel import Shard
from hardgate_lab.reproduce.evaluate import calibrate, evaluate
from hardgate_lab.reproduce.row_record import check_same_row, finished, identity, make_record
from hardgate_lab.reproduce.settings import Settings
from hardgate_lab.reproduce.tensorboard_curves import Board
from hardgate_lab.reproduce.training_state import TrainingState
from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.checkpoint import Say
from hardgate_lab.rig.lock import lock
from hardgate_lab.rig.progress import Pace

if TYPE_CHECKING:
    from hardgate_lab.rig.mnist import Dataset, Split

RECORD, WEIGHTS, BOARD = "record.json", "weights.safetensors", "tensorboard"
_TELL_EVERY = 0.3  # seconds


@dataclass(frozen=True)
class Job:
    """A row to train: what to do, with which seed, and where."""

    row: str
    seed: int
    settings: Settings
    preset: str
    folder: Path
    threads: int = 1
    tensorboard: bool = False  # also write the curves for TensorBoard


@dataclass(frozen=True)
class RowProgress:
    """How far a row is; errors in percent, NaN where there is none yet."""

    epoch: float  # done, with the fraction of the running one
    epochs: int
    loss: float  # in training, of the running epoch
    valid_error: float  # of the last epoch
    best_error: float  # of the best epoch
    density: float  # in training, of the last epoch
    weight: float  # the sparsity penalty's λ
    left: float  # seconds


class DivergedError(RuntimeError):
    """The loss is not a number any more."""


Tell = Callable[[RowProgress], None]


def train(
    job: Job, data: Dataset, tell: Tell, say: Say, shard: Shard | None = None
) -> dict[str, Any]:
    """Train a row to its end, from its last checkpoint if there is one.

    If it is killed at any time, the same call continues and ends with the same bits, given the
    same number of threads. Where several processes train the row, it is equal to rounding.

    Args:
        job: the row.
        data: what to train, validate and test on.
        tell: given the progress a few times a second.
        say: given what the user should read, such as that a checkpoint was damaged.
        shard: of this process where several train the row; only the first reads and writes files.

    Returns:
        the record, which is also in `record.json`, beside `weights.safetensors`; processes other
        than the first may return an empty one.
    """
    shard = shard or Shard()
    with lock(job.folder) if shard.first else nullcontext():
        same = identity(job.row, job.seed, job.settings, job.threads, shard.world, data)
        record = shard.broadcast(lambda: finished(job.folder / RECORD, same))
        drawn = job.tensorboard and shard.first
        board = Board(job.folder / BOARD, job.settings) if drawn else None
        if record is None:
            torch.set_num_threads(job.threads)
            torch.manual_seed(job.seed)
            run = TrainingState(job.settings, data.train, shard)
            run.resume(shard.broadcast(lambda: _saved(job.folder, same, say)))
            while run.epoch < job.settings.epochs:
                advance(run, data, tell)
                if shard.first:
                    checkpoint.save(job.folder, run.epoch, run.tensors(), {**same, **run.state()})
                if board is not None:
                    board.write(run.curves)
                tell(_progress(run, 0.0, run.last("train_loss")))
            if not shard.first:
                return {}
            record = make_record(run, data, job.preset, same)
            _finish(job.folder, run, record)
        if shard.first:
            checkpoint.clear(job.folder)  # also what a kill left after the record was written
        if board is not None:
            board.finish(record)
        return record


def advance(run: TrainingState, data: Dataset, tell: Tell) -> None:
    """One epoch of training, then what the network does on validation, noted in the curves."""
    start = time.perf_counter()
    loss, density = _epoch(run, data.train, tell)
    model = run.evaluated()
    calibrate(model, data.train, run.settings.rate)
    valid = evaluate(model, data.valid)
    if not math.isfinite(valid.loss):  # the last step of all went wrong
        steps = math.ceil(len(data.train.y) / run.settings.batch)
        raise DivergedError(
            f"the validation loss is {valid.loss} after epoch {run.epoch + 1}, step {steps}"
        )
    run.note(loss, density, valid, time.perf_counter() - start)


def _epoch(run: TrainingState, train: Split, tell: Tell) -> tuple[float, float]:
    """One pass over the training images: mean cross-entropy and density, both as trained."""
    shard, model = run.shard, run.model.train()
    batches = torch.randperm(len(train.y)).split(run.settings.batch)
    total, seen, own, pace = 0.0, 0, 0, Pace(_TELL_EVERY)
    for step, batch in enumerate(batches):
        run.schedule(step / len(batches))
        index = shard.take(batch)
        x, y = train.x[index], train.y[index]
        total, seen, own = total + _backward(run, x, y, step), seen + len(batch), own + len(index)
        if run.settings.rho:
            run.climb()
            _backward(run, x, y, step)
        run.step()
        if pace.due():
            tell(_progress(run, step / len(batches), total / seen))
    return total / seen, shard.sum(model.density() * (own / seen))[0]


def _backward(run: TrainingState, x: Tensor, y: Tensor, step: int) -> float:
    """Back-propagate the loss of this process's rows; the cross-entropy of all, summed."""
    shard, model = run.shard, run.model
    losses = cross_entropy(run.forward(x).float(), y, reduction="none")
    (total,) = shard.sum(losses.detach().sum().item())
    if not math.isfinite(total):  # before the backward pass, where FusedSGD steps
        raise DivergedError(f"the loss is {total} in epoch {run.epoch + 1}, step {step + 1}")
    loss = shard.weight() * (losses.mean() + score_loss(model, losses))
    (loss + sparsity_loss(model)).backward()
    return total


def _saved(
    folder: Path, same: dict[str, Any], say: Say
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The last checkpoint, after a check that it is of the same run."""
    saved = checkpoint.load(folder, say)
    if saved is not None:
        check_same_row(saved[1], same, folder)
    return saved


def _progress(run: TrainingState, fraction: float, loss: float) -> RowProgress:
    """How far it is, when this fraction of the epoch is done."""
    return RowProgress(
        epoch=run.epoch + fraction,
        epochs=run.settings.epochs,
        loss=loss,
        valid_error=run.last("valid_error"),
        best_error=run.best_error(),
        density=run.last("density"),
        weight=run.last("weight"),
        left=run.seconds_left(fraction),
    )


def _finish(folder: Path, run: TrainingState, record: dict[str, Any]) -> None:
    """The weights, then the record that says the run is finished: checkpoints may go."""
    checkpoint.write_tensors(folder / WEIGHTS, run.best)
    checkpoint.write_json(folder / RECORD, record)

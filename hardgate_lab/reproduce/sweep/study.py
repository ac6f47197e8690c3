"""The trials of a sweep: each trains a row for a few epochs, and may be given up."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.exceptions import ExperimentalWarning
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from hardgate_lab.reproduce.settings import Settings, change, settings_of
from hardgate_lab.reproduce.sweep.space import start, suggest
from hardgate_lab.reproduce.train import DivergedError, advance
from hardgate_lab.reproduce.training_state import TrainingState
from hardgate_lab.rig.mnist import load

_PACKAGES = {"psycopg": "'psycopg[binary]'", "MySQLdb": "mysqlclient"}  # by what they install
_HEARTBEAT = 30  # seconds between two signs of life of a worker
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


class SweepError(ValueError):
    """A storage that cannot be opened."""


@dataclass(frozen=True)
class Sweep:
    """What all workers of a sweep agree on.

    Attributes:
        row: of the table.
        epochs: of each trial.
        trials: how many in all, those of earlier commands and of other workers included.
        storage: an SQLAlchemy URL.
        dataset: by name.
        data: the folder of the data, or None.
        seed: of weights and batches; the same in every trial, so that settings compare.
        changes: settings that hold in all trials.
    """

    row: str
    epochs: int
    trials: int
    storage: str
    dataset: str = "mnist"
    data: Path | None = None
    seed: int = 0
    changes: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The name of the study: sweeps that differ in what a trial is do not mix."""
        fixed = "".join(f",{name}={value}" for name, value in self.changes)
        return f"{self.dataset}-{self.row}-{self.epochs}-epochs-seed-{self.seed}{fixed}"

    def settings(self) -> Settings:
        """The settings that the trials start from."""
        base = settings_of(self.row, "quick")
        schedule = {"epochs": self.epochs, "decay_start": max(1, self.epochs // 2)}
        return change(change(base, schedule), dict(self.changes))


def open_study(sweep: Sweep, worker: int = 0) -> optuna.Study:
    """The study in its storage. A new one gets the row's own settings as its first trial."""
    if ":memory:" in sweep.storage or sweep.storage in ("sqlite://", "sqlite:///"):
        raise SweepError(
            "--storage expected a database that workers share, got one in the memory of a single "
            f"process: {sweep.storage!r}. Write sqlite:///sweep.db."
        )
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        _make_folder(sweep.storage)
        # A worker that was killed leaves a trial behind, which another runs again.
        warnings.simplefilter("ignore", ExperimentalWarning)  # of that very callback
        storage = RDBStorage(
            sweep.storage,
            heartbeat_interval=_HEARTBEAT,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=1),
        )
        study = optuna.create_study(
            storage=storage,
            study_name=sweep.name,
            load_if_exists=True,
            direction="minimize",
            sampler=optuna.samplers.TPESampler(seed=1000 * sweep.seed + worker),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
        )
    except Exception as error:  # the disk's, SQLAlchemy's, the driver's, or a missing driver
        why, driver = str(error).splitlines()[0], error.__cause__ or error.__context__
        if isinstance(error, ImportError) and isinstance(driver, ModuleNotFoundError):
            package = _PACKAGES.get(str(driver.name), driver.name)
            why = f"its driver, {driver.name}, is missing. Type: pip install {package}"
        raise SweepError(
            f"--storage expected a database, like sqlite:///sweep.db or postgresql://user@host/db, "
            f"got {sweep.storage!r}: {why}"
        ) from None
    first = start(sweep.row, sweep.settings(), dict(sweep.changes))
    study.enqueue_trial(first, skip_if_exists=True)
    return study


def _make_folder(storage: str) -> None:
    if storage.startswith("sqlite:///"):
        Path(storage.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)


def work(sweep: Sweep, worker: int) -> None:
    """TrainingState trials until the study has as many as it should; safe beside other workers."""
    study = open_study(sweep, worker)
    data = load(sweep.dataset, sweep.data, say=lambda message: None)

    def objective(trial: optuna.Trial) -> float:
        settings = suggest(trial, sweep.row, sweep.settings(), dict(sweep.changes))
        torch.manual_seed(sweep.seed)
        run = TrainingState(settings, data.train)
        try:
            while run.epoch < settings.epochs:
                advance(run, data, lambda progress: None)
                trial.report(run.best_error(), run.epoch)
                if trial.should_prune():
                    raise optuna.TrialPruned
        except DivergedError:
            raise optuna.TrialPruned from None
        trial.set_user_attr("density", run.last("density"))
        return run.best_error()

    def stop(study: optuna.Study, trial: FrozenTrial) -> None:
        if len(finished(study)) >= sweep.trials:
            study.stop()

    if len(finished(study)) < sweep.trials:
        study.optimize(objective, callbacks=[stop])


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that were trained to the end, or given up."""
    return study.get_trials(deepcopy=False, states=_DONE)


def epochs_done(study: optuna.Study, sweep: Sweep) -> int:
    """The epochs trained so far; those of a finished trial count in full, also if given up."""
    return sum(
        sweep.epochs if trial.state in _DONE else len(trial.intermediate_values)
        for trial in study.get_trials(deepcopy=False)
    )


def importances(study: optuna.Study) -> dict[str, float]:
    """How much of the spread among the better trials each setting explains, largest first."""
    evaluator: Any = optuna.importance.PedAnovaImportanceEvaluator()
    return optuna.importance.get_param_importances(study, evaluator=evaluator)

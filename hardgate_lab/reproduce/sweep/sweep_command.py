"""The options of `hardgate sweep`, and what it prints."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hardgate_lab.reproduce.run_rows import CORES
from hardgate_lab.reproduce.settings import ROWS, SettingsError, read_changes
from hardgate_lab.rig.mnist import DataError, load
from hardgate_lab.rig.options import Changes, DatasetName, IdxFolder, Seed
from hardgate_lab.rig.progress import Bar, say
from hardgate_lab.rig.text_tables import terminal_table

if TYPE_CHECKING:
    import optuna

    from hardgate_lab.reproduce.sweep.study import Sweep

console = Console()

_LOOK = 1.0  # seconds between two looks at the study
_NEAR = 0.01  # of the target density, in training
_SHOWN = 5  # trials, side by side: what fits into 80 columns


def sweep_command(
    row: Annotated[str, typer.Argument(help=f"A row of the table: {', '.join(ROWS)}.")],
    trials: Annotated[
        int, typer.Option(min=1, help="Stop when the storage has this many finished trials.")
    ] = 20,
    storage: Annotated[
        str, typer.Option(help="Database that the workers share: sqlite:///… or postgresql://…")
    ] = "sqlite:///out/sweep.db",
    epochs: Annotated[int, typer.Option(min=1, help="Train each trial this many epochs.")] = 6,
    jobs: Annotated[
        int, typer.Option(min=1, help="Run this many workers here, with one thread each.")
    ] = CORES,
    seed: Seed = 0,
    dataset: DatasetName = "mnist",
    data: IdxFolder = None,
    change: Changes = None,
    figure: Annotated[
        Path, typer.Option(help="Draw the importance of each setting to this file.")
    ] = Path("out/sweep.png"),
) -> None:
    r"""Search for better settings of one row, on validation images.

    A trial trains the row for a few epochs with other settings. If after an
    epoch it is worse than the median of the other trials at that epoch, it is
    given up. The first trial uses the row's own settings. The test images are
    never read.

    You may stop it at any time; the same command carries on. Run it on
    several machines with one --storage, and they share the work.

    It needs Optuna: pip install 'hardgate\[sweep]'.

    Examples:

        hardgate sweep straight_through --trials 30

        hardgate sweep best --trials 100 --epochs 12 --storage postgresql://me@host/sweeps
    """
    try:
        import optuna  # noqa: F401

        from hardgate_lab.reproduce.sweep.study import Sweep, SweepError, finished, open_study
    except ImportError:
        raise typer.BadParameter(
            "sweeps need Optuna. Type: pip install 'hardgate[sweep]'"
        ) from None
    try:
        changes = tuple(read_changes(change or []).items())
        sweep = Sweep(row, epochs, trials, storage, dataset, data, seed, changes)
        sweep.settings()
        load(dataset, data, say=lambda message: say(console, message))
        study = open_study(sweep)  # last: a command that is refused leaves no study behind
    except (SettingsError, SweepError, DataError) as error:
        raise typer.BadParameter(str(error)) from None
    before = len(finished(study))
    say(console, f"{sweep.name}: {before} of {trials} trials are finished.")
    if before < trials:
        _run(study, sweep, jobs)
    _print(study, sweep, figure)


def _run(study: optuna.Study, sweep: Sweep, jobs: int) -> None:
    """Run the workers, each a process. A trial that is cut off is run again later."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_work, args=(sweep, number), daemon=True) for number in range(jobs)
    ]
    try:
        for worker in workers:
            worker.start()
        _watch(study, sweep, workers)
    except KeyboardInterrupt:
        for worker in workers:
            worker.terminate()
        return say(console, "Stopped. The same command carries on.")
    if any(worker.exitcode for worker in workers):
        say(console, "A worker ended early; the same command carries on.", style="red")


def _work(sweep: Sweep, number: int) -> None:
    """Inside the process of a worker."""
    os.environ["NUMBA_NUM_THREADS"] = "1"
    import torch

    from hardgate_lab.reproduce.sweep.study import work
    from hardgate_lab.rig.memory import reuse_memory

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    reuse_memory()
    work(sweep, number)


def _watch(study: optuna.Study, sweep: Sweep, workers: Sequence[BaseProcess]) -> None:
    """Until the workers end: print each trial that is finished, and show the time left."""
    from hardgate_lab.reproduce.sweep.study import epochs_done, finished

    before, told = epochs_done(study, sweep), {trial.number for trial in finished(study)}
    running = True
    with Bar(console, "sweep", sweep.trials * sweep.epochs - before) as bar:
        while running:
            time.sleep(_LOOK)
            running = any(worker.is_alive() for worker in workers)
            for trial in finished(study):
                if trial.number not in told:
                    told.add(trial.number)
                    bar.say(_line(trial))
            bar.now(f"{len(told)} of {sweep.trials} trials finished")
            bar.reach(epochs_done(study, sweep) - before)


def _line(trial: optuna.trial.FrozenTrial) -> str:
    error = "given up" if trial.value is None else f"valid {trial.value:.2f} %"
    drawn = ", ".join(f"{name} {value:.3g}" for name, value in trial.params.items())
    return f"trial {trial.number}: {error}  ({drawn})"


def _print(study: optuna.Study, sweep: Sweep, figure: Path) -> None:
    """Print the best trials and the command for the best one; draw the importances."""
    from optuna.trial import TrialState

    from hardgate_lab.reproduce.sweep.space import command
    from hardgate_lab.reproduce.sweep.study import importances
    from hardgate_lab.reproduce.sweep.sweep_figure import draw

    done = study.get_trials(states=(TrialState.COMPLETE,))
    if not done:
        say(console, "No trial was finished yet.")
        return
    rate = sweep.settings().rate

    def merit(trial: optuna.trial.FrozenTrial) -> tuple[bool, float]:
        """Trials whose density is near the target come first, then those of low error."""
        return abs(trial.user_attrs["density"] - rate) > _NEAR, trial.value or 0.0

    best = sorted(done, key=merit)[:_SHOWN]
    rows = [
        ["valid %", *(f"{trial.value:.2f}" for trial in best)],
        ["on %", *(f"{100 * trial.user_attrs['density']:.1f}" for trial in best)],
    ]
    for name in best[0].params:
        drawn = (trial.params.get(name) for trial in best)  # None: an older study varied less
        rows.append([name, *("" if value is None else f"{value:.3g}" for value in drawn)])
    columns = ["trial", *(str(trial.number) for trial in best)]
    console.print(terminal_table(columns, rows, title="The best trials"))
    say(console, "Train the best one at full length:")
    options = [f"--set {name}={value}" for name, value in sweep.changes]
    say(console, command(sweep.row, "paper", best[0].params, options))
    if len(done) > 3:
        draw(importances(study), sweep.name, figure)
        say(console, f"→ {figure}")

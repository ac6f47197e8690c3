"""The options of `hardgate sweep`, and what it prints."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from hardgate_lab.reproduce.session import CORES
from hardgate_lab.reproduce.settings import ROWS, SettingsError
from hardgate_lab.rig.images import DataError, load

if TYPE_CHECKING:
    import optuna

    from hardgate_lab.reproduce.sweep.study import Sweep

console = Console()

_NEAR = 0.01  # of the target, in training
_SHOWN = 5  # trials, side by side: what fits into 80 columns


def sweep_command(
    row: Annotated[str, typer.Argument(help=f"A row of the table: {', '.join(ROWS)}.")],
    trials: Annotated[
        int, typer.Option(min=1, help="How many in all; those that are in the storage count.")
    ] = 20,
    storage: Annotated[
        str, typer.Option(help="The database that workers share: sqlite:///… or postgresql://…")
    ] = "sqlite:///out/sweep.db",
    epochs: Annotated[int, typer.Option(min=1, help="Of each trial.")] = 6,
    jobs: Annotated[int, typer.Option(min=1, help="Workers here, one thread each.")] = CORES,
    seed: Annotated[int, typer.Option(min=0, help="Of weights and batches, in every trial.")] = 0,
    dataset: Annotated[str, typer.Option(help="mnist or fashion-mnist.")] = "mnist",
    data: Annotated[Path | None, typer.Option(help="The folder of the four IDX files.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting that holds in all trials; repeatable."),
    ] = None,
    figure: Annotated[Path, typer.Option(help="Where the PNG of the importances goes.")] = Path(
        "out/sweep.png"
    ),
) -> None:
    r"""Search the settings that the paper left open, on validation.

    Each trial trains the row for a few epochs on a fast-falling learning
    rate; a trial that is worse than the median of the others at the same
    epoch is given up. The first one runs the row's own settings. The test
    images are never read. The same command carries on, also after a kill;
    run it on several machines with one storage, and they share the work.

    Needs Optuna: pip install 'hardgate\[sweep]'.

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
    changes = tuple(_pair(each) for each in change or [])
    sweep = Sweep(row, epochs, trials, storage, dataset, data, seed, changes)
    try:
        sweep.settings()
        load(dataset, data, say=lambda message: console.print(message, highlight=False))
        study = open_study(sweep)  # last: a command that is refused leaves no study behind
    except (SettingsError, SweepError, DataError) as error:
        raise typer.BadParameter(str(error)) from None
    before = len(finished(study))
    console.print(f"{sweep.name}: {before} of {trials} trials are there.", highlight=False)
    _run(sweep, jobs if before < trials else 0)
    _print(study, sweep, figure)


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise typer.BadParameter(f"--set expected NAME=VALUE, like lr=0.05, got {text!r}.")
    return name, value


def _run(sweep: Sweep, jobs: int) -> None:
    """The workers, each a process; a trial that is cut off is run again later."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_worker, args=(sweep, number), daemon=True) for number in range(jobs)
    ]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        console.print("Stopped. The same command carries on.", highlight=False)
        for worker in workers:
            worker.terminate()
    if any(worker.exitcode for worker in workers):
        console.print("A worker ended early; the same command carries on.", style="red")


def _worker(sweep: Sweep, number: int) -> None:
    import os

    os.environ["NUMBA_NUM_THREADS"] = "1"
    import torch

    from hardgate_lab.reproduce.sweep.study import work
    from hardgate_lab.rig.memory import reuse_memory

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    reuse_memory()

    def tell(trial: optuna.trial.FrozenTrial) -> None:
        error = "given up" if trial.value is None else f"valid {trial.value:.2f} %"
        drawn = ", ".join(f"{name} {value:.3g}" for name, value in trial.params.items())
        console.print(f"trial {trial.number}: {error}  ({drawn})", highlight=False, soft_wrap=True)

    work(sweep, number, tell)


def _print(study: optuna.Study, sweep: Sweep, figure: Path) -> None:
    """The table of the best trials, the command for the best, the plot of the importances."""
    from optuna.trial import TrialState

    from hardgate_lab.reproduce.sweep.space import command
    from hardgate_lab.reproduce.sweep.study import importances
    from hardgate_lab.reproduce.sweep.sweep_figure import draw

    done = study.get_trials(states=(TrialState.COMPLETE,))
    if not done:
        console.print("No trial was finished yet.")
        return
    rate = sweep.settings().rate

    def merit(trial: optuna.trial.FrozenTrial) -> tuple[bool, float]:
        """Those whose gates are on about as often as they should come first."""
        return abs(trial.user_attrs["density"] - rate) > _NEAR, trial.value or 0.0

    ranked = sorted(done, key=merit)[:_SHOWN]
    table = Table("trial", *(str(trial.number) for trial in ranked), box=SIMPLE)
    table.add_row("valid %", *(f"{trial.value:.2f}" for trial in ranked))
    table.add_row("on %", *(f"{100 * trial.user_attrs['density']:.1f}" for trial in ranked))
    for name in ranked[0].params:
        drawn = (trial.params.get(name) for trial in ranked)  # None: an older study varied less
        table.add_row(name, *("" if value is None else f"{value:.3g}" for value in drawn))
    console.print(table)
    options = [f"--set {name}={value}" for name, value in sweep.changes]
    console.print("The best, at full length:", highlight=False)
    line = command(sweep.row, "paper", ranked[0].params, options)
    console.print(line, highlight=False, soft_wrap=True)
    if len(done) > 3:
        figure.parent.mkdir(parents=True, exist_ok=True)
        draw(importances(study), sweep.name, figure)
        console.print(f"→ {figure}", highlight=False)

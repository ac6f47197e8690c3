"""The options of `hardgate reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hardgate_lab.reproduce import tensorboard_curves, torchrun
from hardgate_lab.reproduce.next_steps import next_steps
from hardgate_lab.reproduce.report.report_command import make_report
from hardgate_lab.reproduce.report.runs import RunsError
from hardgate_lab.reproduce.run_rows import DEFAULT_JOBS, plan, reproduce
from hardgate_lab.reproduce.settings import (
    PAPER_ROWS,
    ROWS,
    SettingsError,
    read_changes,
)
from hardgate_lab.reproduce.workers import Source
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.idx import DataError
from hardgate_lab.rig.lock import LockedError
from hardgate_lab.rig.options import Changes, DatasetName, Fresh, IdxFolder, JsonFile, Seed
from hardgate_lab.rig.outputs import check_writable
from hardgate_lab.rig.progress import say

_REFUSALS = (SaveError, DataError, LockedError, RunsError)  # the message says what to do


def reproduce_command(
    preset: Annotated[
        str,
        typer.Option(
            help="quick: four epochs of each row, a few minutes; paper: the full length, hours."
        ),
    ] = "quick",
    row: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A row of the table; repeatable. One of {', '.join(ROWS)}. If left out: the "
            f"first {len(PAPER_ROWS)}, which are the paper's."
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Train this many epochs, not the preset's.")
    ] = None,
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Train each row with this many seeds from --seed.")
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Train this many rows side by side; they share the cores.",
            show_default=str(DEFAULT_JOBS),
        ),
    ] = None,
    dataset: DatasetName = "mnist",
    data: IdxFolder = None,
    out: Annotated[
        Path, typer.Option(help="Folder for checkpoints, weights, records and the report.")
    ] = Path("out/reproduce"),
    json_file: JsonFile = None,
    change: Changes = None,
    fresh: Fresh = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard, by epoch.")
    ] = False,
) -> None:
    """Train the paper's network with each of its gaters, and compare with its results.

    The network learns MNIST. For each image, a gater opens 10 % of 2000
    gates, and only the experts behind open gates are computed. Each row of
    the table trains another kind of gater. The table shows the test errors
    beside those of the recorded full-length runs and the paper's, and the
    gates that are on; a page, report.html, shows all else. Test images are
    read once, when a row is finished.

    You may stop it at any time. The same command then carries on, and ends
    with the same bits. If a row in --out was trained with other settings, the
    command refuses: type --fresh to start anew, or choose another --out.

    Started with torchrun, all processes train one row together.

    Examples:

        hardgate reproduce

        hardgate reproduce --row straight_through --row rectifier --epochs 20 --out longer

        hardgate reproduce --preset paper --seeds 3 --out runs --json all.json

        hardgate reproduce --row best --set lr=0.05 --out trial

        torchrun --nproc-per-node=4 -m hardgate reproduce --row dense --set batch=128
    """
    if torchrun.launched() and not torchrun.is_first():
        torchrun.leave(torchrun.follow())
    console = Console()
    try:
        changes = read_changes([*(change or []), *([f"epochs={epochs}"] if epochs else [])])
        width = torchrun.here() if torchrun.launched() else jobs or DEFAULT_JOBS
        seeds_ = range(seed, seed + seeds)
        planned = plan(row or [], seeds_, preset, changes, out, dataset, width, tensorboard)
        if torchrun.launched():
            torchrun.check(planned, jobs)
        if tensorboard:
            tensorboard_curves.check()
        if json_file is not None:
            check_writable(json_file)
        code, records = reproduce(planned, width, Source(dataset, data), json_file, console, fresh)
        if records:
            make_report(out, None, console)
            say(console, next_steps(records, out))
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    except _REFUSALS as error:
        say(console, str(error), style="red")
        raise typer.Exit(1) from None
    if torchrun.launched():
        torchrun.leave(code)
    raise typer.Exit(code)

"""The options of `hardgate reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hardgate_lab.reproduce import board, torchrun
from hardgate_lab.reproduce.session import DEFAULT_JOBS, REFUSALS, plan, reproduce, writable
from hardgate_lab.reproduce.settings import PAPER_ROWS, PRESETS, ROWS, SettingsError
from hardgate_lab.reproduce.workers import Source
from hardgate_lab.rig.outputs import MOST_SEED


def reproduce_command(
    preset: Annotated[
        str, typer.Option(help=f"How long to train: {' or '.join(PRESETS)}.")
    ] = "quick",
    row: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A row of the table; repeatable. One of {', '.join(ROWS)}. "
            f"The first {len(PAPER_ROWS)}, the paper's, if left out."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Other than the preset's.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Of weights, batches and noise.")
    ] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="How many seeds of each row, counted from --seed.")
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rows side by side; the cores are shared out among them.",
            show_default=str(DEFAULT_JOBS),
        ),
    ] = None,
    dataset: Annotated[str, typer.Option(help="mnist or fashion-mnist.")] = "mnist",
    data: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the four IDX files, gzipped or not. If left out, MNIST is taken "
            "from the cache, and downloaded on first use."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Checkpoints, weights and records.")] = Path(
        "out/reproduce"
    ),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the list of records here.")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Another setting, like lr=0.05; repeatable."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start these rows anew; removes what they left.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard, by epoch.")
    ] = False,
) -> None:
    """Train the paper's network with each of its gaters; show its table and ours.

    The network of Fig. 1 learns MNIST: a gater with 400 hidden units opens
    10 % of 2000 gates, and behind each is a linear expert. The table shows
    the test errors beside those of the recorded full-length runs and the
    paper's, and the gates that are on. A page, report.html, shows all else.
    Settings were chosen on validation; the test images are read once, when
    a row is finished.

    It may be killed at any time: the same command carries on, and ends with
    the same bits. Other settings for rows that are there already are refused:
    type --fresh, or another --out.

    Under torchrun all processes train one row together.

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
        given = [*(change or []), *([] if epochs is None else [f"epochs={epochs}"])]
        changes, range_ = _changes(given), range(seed, seed + seeds)
        width = torchrun.here() if torchrun.launched() else jobs or DEFAULT_JOBS
        jobs_ = plan(row or [], range_, preset, changes, out, dataset, width, tensorboard)
        source = Source(dataset, data)
        if torchrun.launched():
            torchrun.check(jobs_, jobs)
        if tensorboard:
            board.check()
        if json_file is not None:
            writable(json_file)
        code = reproduce(jobs_, width, source, json_file, console, fresh)
    except SettingsError as error:
        raise typer.BadParameter(str(error)) from None
    except REFUSALS as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
    if torchrun.launched():
        torchrun.leave(code)
    raise typer.Exit(code)


def _changes(given: list[str]) -> dict[str, str]:
    """The settings to change, of which none may be given twice."""
    changes: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--set expected NAME=VALUE, like --set lr=0.05, got {text!r}.")
        if name in changes:
            raise SettingsError(f"{name} expected one value, got {changes[name]} and {value}.")
        changes[name] = value
    return changes

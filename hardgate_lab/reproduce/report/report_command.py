"""`hardgate report RUNS`, and the same at the end of `hardgate reproduce`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hardgate_lab.reproduce.report.runs import Runs, RunsError, read
from hardgate_lab.reproduce.report.write_report import PAGE, Tell, write_report
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.outputs import check_writable

_LOOSE = Path("out/report")  # for records in a folder that may not be ours to write to
_PATIENCE = 2.0  # seconds between two lines, where there is no terminal


def report_command(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            help="The --out folder of `hardgate reproduce`, a folder of records, or the list that "
            "its --json wrote.",
        ),
    ] = Path("out/reproduce"),
    out: Annotated[
        Path | None,
        typer.Option(
            help=f"The folder to write to. If left out: RUNS itself if it is an --out folder, "
            f"else {_LOOSE}."
        ),
    ] = None,
) -> None:
    """Write finished runs as one page, report.html, and its figures as PNG.

    The page needs no network and no other file. It opens with one table:
    these runs, the recorded full-length runs, the paper. Below are all
    numbers, learning curves, density and λ by epoch, firing rates, gates by
    class, cost, settings and versions. `hardgate reproduce` ends with the
    same page.

    Examples:

        hardgate report

        hardgate report results/reproduce --out out/report
    """
    console = Console()
    try:
        make_report(runs, out, console)
    except (RunsError, SaveError) as error:
        console.print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None


def make_report(path: Path, out: Path | None, console: Console) -> None:
    """Read the runs, draw, write, and say where.

    Args:
        path: of the runs.
        out: the folder to write to, or None for the usual one.
        console: to print on.
    """
    runs = read(path)
    folder = out or runs.folder or _LOOSE
    try:
        check_writable(folder / PAGE)
    except SaveError as error:
        raise SaveError(f"{error} Type `hardgate report {path} --out DIR`.") from error
    page = _watched(runs, folder, console)
    console.print(f"Page, for a browser: {page}", highlight=False, soft_wrap=True, markup=False)


def _watched(runs: Runs, folder: Path, console: Console) -> Path:
    """Write the report, with a bar on a terminal and a line now and then elsewhere."""
    if not console.is_interactive:
        return write_report(runs, folder, _lines(console))
    columns = (TextColumn("drawing the report"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("report")
        return write_report(
            runs, folder, lambda done, total: progress.update(task, completed=done, total=total)
        )


def _lines(console: Console) -> Tell:
    told = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() > told + _PATIENCE:
            told = time.monotonic()
            console.print(f"report: {done} of {total} drawings", highlight=False)

    return tell

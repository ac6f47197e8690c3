"""The options of `hardgate bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hardgate.units import UNITS
from hardgate_lab.bench.bench_figures import figures
from hardgate_lab.bench.bench_layer import record
from hardgate_lab.bench.bench_run import measure
from hardgate_lab.bench.bench_steps import DEFAULT
from hardgate_lab.bench.bench_tables import tables, write_tables
from hardgate_lab.rig.machine import machine
from hardgate_lab.rig.options import JsonFile, Page
from hardgate_lab.rig.outputs import check_outputs, check_page, write_outputs
from hardgate_lab.rig.progress import say


def bench_command(
    seconds: Annotated[
        float, typer.Option(min=0.05, max=60, help="Time each comparison for this long.")
    ] = 0.8,
    unit: Annotated[
        list[str] | None,
        typer.Option(
            help="Time training steps with this unit; repeatable, or 'all'. If left out: "
            f"{DEFAULT}."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("out"),
    json_file: JsonFile = None,
    write: Page = None,
) -> None:
    """Time the conditional layer against dense torch, on your machine.

    It times the forward and backward pass at 10 % density, the forward pass
    by density and by width, and whole training steps. Before anything is
    timed, it checks that the layer equals the dense one. The candidates take
    turns in one process, and the tables show medians. Run it on an idle
    machine, and compare figures within one run only.

    It takes about two minutes.

    Examples:

        hardgate bench

        hardgate bench --unit all --json out/bench.json
    """
    console, chosen = Console(), unit or [DEFAULT]
    chosen = list(UNITS) if "all" in chosen else chosen
    unknown = [name for name in chosen if name not in UNITS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not a unit; expected 'all' or one of {', '.join(UNITS)}.",
            param_hint="--unit",
        )
    check_outputs(out / "bench-density.png", json_file)
    check_page(write, ("bench",))
    timings = measure(chosen, seconds, console)
    for each in tables(timings):
        console.print(each)
    written = figures(timings, out) + write_outputs(record(timings), json_file, write, write_tables)
    say(console, ", ".join(f"{key} {value}" for key, value in machine().items()))
    say(console, f"→ {', '.join(map(str, written))}")

"""The command line: `hardgate reproduce`, `compare`, `bench`, `facts`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import hardgate
from hardgate.lab import facts as facts_table
from hardgate.lab.compare import Row, compare, figure, record, table
from hardgate.lab.facts import COLUMNS, facts, markdown
from hardgate.lab.problems import PROBLEMS
from hardgate.reproduce.checkpoint import SaveError
from hardgate.reproduce.cli import reproduce_command
from hardgate.reproduce.command import writable
from hardgate.units import UNITS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Networks that make hard decisions: the units of Bengio, Léonard & Courville (2013).",
)
console = Console()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        console.print(f"hardgate {hardgate.__version__}", highlight=False)
        raise typer.Exit


app.command("reproduce")(reproduce_command)


@app.command("compare")
def compare_command(
    problem: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A toy problem; repeatable. One of {', '.join(PROBLEMS)}. All if left out."
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=1000, max=10_000_000, help="Gradient draws per unit and problem.")
    ] = 200_000,
    seed: Annotated[int, typer.Option(help="Of the random draws.")] = 0,
    figure_file: Annotated[
        Path, typer.Option("--figure", help="Where the PNG goes.", dir_okay=False)
    ] = Path("out/compare.png"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows here.", dir_okay=False)
    ] = None,
) -> None:
    """Measure the gradient of every unit against the exact one.

    Each unit's output is fed into toy losses small enough that the true gradient of the expected
    loss is known. For each the table shows the relative BIAS of the mean gradient, its Z-score
    (how many standard errors the bias is; an unbiased unit, in green, stays below 5), the VARIANCE
    of a single draw, the EVALS of the loss per gradient, and the time of a forward and backward
    pass at [32, 2000].

    Examples:

        hardgate compare

        hardgate compare --problem sparse --samples 1000000 --json sparse.json
    """
    names = problem or list(PROBLEMS)
    unknown = [name for name in names if name not in PROBLEMS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not a problem; expected one of {', '.join(PROBLEMS)}.",
            param_hint="--problem",
        )
    for path in filter(None, (figure_file, json_file)):
        _writable(path)  # before the work, not after it
    start = time.perf_counter()
    rows = _with_progress(names, samples, seed)
    for name in names:
        console.print(table(name, [row for row in rows if row.problem == name]))
    console.print(
        "Green: declared unbiased. bias: ‖mean − truth‖/‖truth‖. z: largest z-score of a unit; "
        "∞ where single draws do not scatter.\nStraightThrough(sample=False) is held against the "
        "gradient it stands in for, that of Bernoulli(σ(a)); its own is zero.",
        highlight=False,
    )
    figure(rows, figure_file)
    written = [str(figure_file)]
    if json_file is not None:
        json_file.write_text(json.dumps(record(rows, seed), indent=1) + "\n")
        written.append(str(json_file))
    console.print(
        f"{len(rows)} measurements in {time.perf_counter() - start:.0f} s → {', '.join(written)}",
        highlight=False,
        soft_wrap=True,
    )
    wrong = [row for row in rows if row.contradicts]
    for row in wrong:
        console.print(f"{row.unit} is declared unbiased but is not on {row.problem}.", style="red")
    if wrong:
        raise typer.Exit(1)


@app.command("bench")
def bench_command(
    seconds: Annotated[
        float, typer.Option(min=0.05, max=60, help="Per comparison; the rivals take turns.")
    ] = 0.8,
    unit: Annotated[
        list[str] | None,
        typer.Option(help="Also time training steps with this unit; repeatable, or 'all'."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the figures.")] = Path("out"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the timings here.", dir_okay=False)
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="Also write the tables into this page, between markers.", exists=True),
    ] = None,
) -> None:
    """Time the conditional layer against dense torch.

    Rivals are interleaved in one process and compared by medians; equality with the dense layer is
    asserted before anything is timed. Run it on an idle machine: only ratios within one run count.

    Examples:

        hardgate bench

        hardgate bench --unit all --json out/bench.json
    """
    from hardgate.lab import bench, bench_report, bench_run
    from hardgate.lab.bench_figures import figures
    from hardgate.lab.bench_steps import DEFAULT

    chosen = unit or [DEFAULT]
    chosen = list(UNITS) if "all" in chosen else chosen
    unknown = [name for name in chosen if name not in UNITS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not a unit; expected 'all' or one of {', '.join(UNITS)}.",
            param_hint="--unit",
        )
    for path in filter(None, (out / "bench-density.png", json_file)):
        _writable(path)
    timings = bench_run.measure(chosen, seconds, console)
    for each in bench_report.tables(timings):
        console.print(each)
    written = [str(path) for path in figures(timings, out)]
    if json_file is not None:
        json_file.write_text(json.dumps(bench.record(timings), indent=1) + "\n")
        written.append(str(json_file))
    if write is not None:
        write.write_text(bench_report.write(write.read_text(), bench.record(timings)))
        written.append(str(write))
    facts_ = ", ".join(f"{key} {value}" for key, value in bench.machine().items())
    console.print(f"{facts_}\n→ {', '.join(written)}", highlight=False, soft_wrap=True)


@app.command("facts")
def facts_command(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print it as Markdown.")] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="Write it into this Markdown file, between its markers.", exists=True),
    ] = None,
) -> None:
    """The units and their mathematical facts, as declared by their attributes."""
    if write is not None:
        try:
            write.write_text(facts_table.write(write.read_text()))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--write") from None
        return
    if as_markdown:
        typer.echo(markdown())
        return
    out = Table(*COLUMNS)
    for row in facts():
        out.add_row(*row)
    console.print(out)


def _with_progress(names: list[str], samples: int, seed: int) -> list[Row]:
    total = len(UNITS) * len(names)
    if not console.is_terminal:
        rows = []
        for row in compare(names, samples, seed):
            rows.append(row)
            if len(rows) % len(names) == 0:
                console.print(f"measured {len(rows)}/{total}: {row.unit}", highlight=False)
        return rows
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    rows = []
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=total)
        for row in compare(names, samples, seed):
            rows.append(row)
            progress.update(task, advance=1, description=f"{row.unit} on {row.problem}")
    return rows


def _writable(path: Path) -> None:
    """Stop now, with a sentence, if the file could not be written later."""
    try:
        writable(path)
    except SaveError as error:
        raise typer.BadParameter(str(error)) from None

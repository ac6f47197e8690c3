"""The command line: `hardgate reproduce`, `report`, `compare`, `toy`, `vae`, `bench`, `facts`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from typer.core import TyperCommand

import hardgate
from hardgate.units import UNITS
from hardgate_lab.compare.compare_command import compare_command
from hardgate_lab.facts import facts_table
from hardgate_lab.reproduce.report.report_command import report_command
from hardgate_lab.reproduce.reproduce_command import reproduce_command
from hardgate_lab.reproduce.sweep.sweep_command import sweep_command
from hardgate_lab.rig.outputs import check_outputs, check_page
from hardgate_lab.toy.toy_command import toy_command
from hardgate_lab.vae.vae_command import vae_command

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


class _Command(TyperCommand):
    """A command that answers an unknown option with all that there are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "possibilities"):  # click's NoSuchOption, or that of typer's own copy
                error.possibilities = [name for each in self.get_params(ctx) for name in each.opts]
            raise


app.command("reproduce", cls=_Command)(reproduce_command)
app.command("sweep", cls=_Command)(sweep_command)
app.command("report", cls=_Command)(report_command)
app.command("compare", cls=_Command)(compare_command)
app.command("toy", cls=_Command)(toy_command)
app.command("vae", cls=_Command)(vae_command)


@app.command("bench", cls=_Command)
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
    from hardgate_lab.bench import bench_layer, bench_run, bench_tables
    from hardgate_lab.bench.bench_figures import figures
    from hardgate_lab.bench.bench_steps import DEFAULT

    chosen = unit or [DEFAULT]
    chosen = list(UNITS) if "all" in chosen else chosen
    unknown = [name for name in chosen if name not in UNITS]
    if unknown:
        raise typer.BadParameter(
            f"{unknown[0]!r} is not a unit; expected 'all' or one of {', '.join(UNITS)}.",
            param_hint="--unit",
        )
    check_outputs(out / "bench-density.png", json_file)
    check_page(write, ("bench",))
    timings = bench_run.measure(chosen, seconds, console)
    for each in bench_tables.tables(timings):
        console.print(each)
    written = [str(path) for path in figures(timings, out)]
    if json_file is not None:
        json_file.write_text(json.dumps(bench_layer.record(timings), indent=1) + "\n")
        written.append(str(json_file))
    if write is not None:
        write.write_text(bench_tables.write(write.read_text(), bench_layer.record(timings)))
        written.append(str(write))
    facts_ = ", ".join(f"{key} {value}" for key, value in bench_layer.machine().items())
    console.print(f"{facts_}\n→ {', '.join(written)}", highlight=False, soft_wrap=True)


@app.command("facts", cls=_Command)
def facts_command(
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    write: Annotated[
        Path | None,
        typer.Option(help="Write those that this Markdown file has markers for.", exists=True),
    ] = None,
) -> None:
    """The units, the estimators and their mathematical facts, as declared by their attributes."""
    if write is not None:
        try:
            write.write_text(facts_table.write(write.read_text()))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--write") from None
        return
    if as_markdown:
        typer.echo(f"{facts_table.markdown()}\n\n{facts_table.estimators_markdown()}")
        return
    estimators = list(facts_table.estimator_facts())
    _print_facts(facts_table.COLUMNS, facts_table.facts())
    _print_facts(facts_table.ESTIMATOR_COLUMNS[:-1], (row[:-1] for row in estimators))
    _print_facts(("estimator", "what it is"), ((row[0], row[-1]) for row in estimators))


def _print_facts(columns: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    """A table that keeps names whole in a narrow terminal."""
    name, *others = columns
    out = Table(Column(name, no_wrap=True), *others, box=None, padding=(0, 1, 0, 0))
    for row in rows:
        out.add_row(*row)
    console.print(out)
    console.print()

"""The command line: each room's command under its name."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

import hardgate
from hardgate_lab.bench.bench_command import bench_command
from hardgate_lab.compare.compare_command import compare_command
from hardgate_lab.facts.facts_command import facts_command
from hardgate_lab.reproduce.report.report_command import report_command
from hardgate_lab.reproduce.reproduce_command import reproduce_command
from hardgate_lab.reproduce.sweep.sweep_command import sweep_command
from hardgate_lab.toy.toy_command import toy_command
from hardgate_lab.vae.vae_command import vae_command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Networks that make hard decisions: the experiments of Bengio, Léonard & Courville "
    "(2013), and measurements of every gradient estimator.",
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        Console().print(f"hardgate {hardgate.__version__}", highlight=False)
        raise typer.Exit


class _Command(TyperCommand):
    """A command that answers an unknown option with the list of all options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if hasattr(error, "possibilities"):  # click's NoSuchOption, or that of typer's own copy
                error.possibilities = [name for each in self.get_params(ctx) for name in each.opts]
            raise


app.command("reproduce", cls=_Command)(reproduce_command)
app.command("report", cls=_Command)(report_command)
app.command("sweep", cls=_Command)(sweep_command)
app.command("compare", cls=_Command)(compare_command)
app.command("toy", cls=_Command)(toy_command)
app.command("vae", cls=_Command)(vae_command)
app.command("bench", cls=_Command)(bench_command)
app.command("facts", cls=_Command)(facts_command)

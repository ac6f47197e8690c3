"""The options of `hardgate toy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hardgate.estimators import ESTIMATORS
from hardgate_lab.rig.candidates import Contestant, UnknownEstimatorError, contestants
from hardgate_lab.rig.outputs import MOST_SEED, check_figure, check_outputs, check_page
from hardgate_lab.toy import toy_tables
from hardgate_lab.toy.toy_problem import Curve, Toy, ascend, takes_part


def toy_command(
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            help="Repeatable; as in hardgate compare. Every unbiased estimator whose evaluations "
            "divide --evals if left out."
        ),
    ] = None,
    evals: Annotated[
        int, typer.Option(min=1, max=1000, help="Evaluations of f per step.")
    ] = Toy.evals,
    steps: Annotated[int, typer.Option(min=1, help="Of RMSprop.")] = Toy.steps,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many, counted from --seed.")] = 1,
    figure_file: Annotated[
        Path, typer.Option("--figure", help="Where the PNG goes.", dir_okay=False)
    ] = Path("out/toy.png"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the curves here.", dir_okay=False)
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="Also write the table into this page, between markers.", exists=True),
    ] = None,
) -> None:
    """The toy of Titsias & Shi (2022): 200 units climb E mean (b − 0.499)².

    The way up is so flat that the noise of a gradient decides who gets there. Everybody has the
    same evaluations per step. Final objectives stand beside the published ones, and the figure
    has the curves of the objective, which is known exactly, and of the gradient's variance.

    Examples:

        hardgate toy

        hardgate toy --estimator DoubleCV --estimator DisARM --seeds 10
    """
    console, toy = Console(), Toy(evals=evals, steps=steps)
    chosen = _contestants(estimator, toy)
    check_figure(figure_file)
    check_outputs(figure_file, json_file)
    check_page(write, ("toy",))
    curves = _run(chosen, toy, range(seed, seed + seeds), console)
    console.print(toy_tables.table(curves, toy))
    toy_tables.figure(curves, toy, figure_file)
    record = toy_tables.record(curves, toy, range(seed, seed + seeds))
    written = [str(figure_file)]
    if json_file is not None:
        json_file.write_text(json.dumps(record, indent=1) + "\n")
        written.append(str(json_file))
    if write is not None:
        write.write_text(toy_tables.write(write.read_text(), record))
        written.append(str(write))
    said = f"→ {', '.join(written)}"
    console.print(said, highlight=False, markup=False, soft_wrap=True)


def _contestants(names: list[str] | None, toy: Toy) -> list[Contestant]:
    ks = [max(2, toy.evals)]
    try:
        found = [c for name in names or ESTIMATORS for c in contestants(name, ks)]
    except UnknownEstimatorError as error:
        raise typer.BadParameter(str(error), param_hint="--estimator") from None
    found = list({c.name: c for c in found}.values())
    fitting = [c for c in found if takes_part(c, toy) and (names or c.unbiased)]
    unfit = [c.name for c in found if c not in fitting]
    if names and unfit:
        raise typer.BadParameter(
            f"expected estimators of E f(b) whose evaluations divide {toy.evals}, got "
            f"{', '.join(unfit)}. Change --evals, or leave them out.",
            param_hint="--estimator",
        )
    return fitting


def _run(chosen: list[Contestant], toy: Toy, seeds: range, console: Console) -> list[Curve]:
    """The curves; a bar on a terminal, elsewhere a line for each."""
    curves = []
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("climbing", total=len(chosen))
        for contestant in chosen:
            bar.update(task, description=contestant.name)
            curves.append(ascend(contestant, toy, seeds))
            bar.update(task, advance=1)
            if not console.is_terminal:
                console.print(
                    f"climbed {len(curves)}/{len(chosen)}: {contestant.name}", highlight=False
                )
    return curves

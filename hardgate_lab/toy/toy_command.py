"""The options of `hardgate toy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hardgate.estimators import ESTIMATORS
from hardgate_lab.rig.candidates import Candidate
from hardgate_lab.rig.options import FigureFile, JsonFile, Page, Seed, read_estimators
from hardgate_lab.rig.outputs import check_figure, check_outputs, check_page, write_outputs
from hardgate_lab.rig.progress import Bar, say
from hardgate_lab.toy import toy_tables
from hardgate_lab.toy.toy_problem import Curve, Toy, ascend, takes_part


def toy_command(
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            help="Climb with this estimator, named as in hardgate compare; repeatable. If left "
            "out: every unbiased one whose number of evaluations divides --evals."
        ),
    ] = None,
    evals: Annotated[
        int, typer.Option(min=1, max=1000, help="Evaluations of f that each step may use.")
    ] = Toy.evals,
    steps: Annotated[int, typer.Option(min=1, help="Steps of RMSprop.")] = Toy.steps,
    seed: Seed = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="Climb with this many seeds, counted from --seed.")
    ] = 1,
    figure_file: FigureFile = Path("out/toy.png"),
    json_file: JsonFile = None,
    write: Page = None,
) -> None:
    """Climb the flat toy problem of Titsias & Shi (2022) with each estimator.

    200 Bernoulli units maximise E mean (b − 0.499)². The slope is so small
    that the noise of the gradient decides which estimator reaches the top.
    All of them get the same number of evaluations of f per step.

    The table shows the final objectives beside the published ones. The figure
    shows the objective, which is known exactly, and the gradient's variance
    along the way.

    Examples:

        hardgate toy

        hardgate toy --estimator DoubleCV --estimator DisARM --seeds 10
    """
    console, toy = Console(), Toy(evals=evals, steps=steps)
    chosen = _candidates(estimator, toy)
    check_figure(figure_file)
    check_outputs(figure_file, json_file)
    check_page(write, ("toy",))
    curves = _run(chosen, toy, range(seed, seed + seeds), console)
    console.print(toy_tables.table(curves, toy))
    toy_tables.figure(curves, toy, figure_file)
    record = toy_tables.record(curves, toy, range(seed, seed + seeds))
    written = [figure_file, *write_outputs(record, json_file, write, toy_tables.write)]
    say(console, f"→ {', '.join(map(str, written))}")


def _candidates(names: list[str] | None, toy: Toy) -> list[Candidate]:
    found = read_estimators(names or ESTIMATORS, [max(2, toy.evals)])
    fitting = [c for c in found if takes_part(c, toy) and (names or c.unbiased)]
    unfit = [c.name for c in found if c not in fitting]
    if names and unfit:
        raise typer.BadParameter(
            f"expected estimators of E f(b) whose evaluations divide {toy.evals}, got "
            f"{', '.join(unfit)}. Change --evals, or leave them out.",
            param_hint="--estimator",
        )
    return fitting


def _run(chosen: list[Candidate], toy: Toy, seeds: range, console: Console) -> list[Curve]:
    curves = []
    with Bar(console, "climbing", len(chosen)) as bar:
        for candidate in chosen:
            bar.now(candidate.name)
            curves.append(ascend(candidate, toy, seeds))
            bar.advance()
    return curves

"""The options of `hardgate compare`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hardgate.estimators import ESTIMATORS
from hardgate_lab.compare import comparison_tables
from hardgate_lab.compare.comparison import Round, contest
from hardgate_lab.compare.comparison_figures import figures, plane_of
from hardgate_lab.compare.recommend import recommend
from hardgate_lab.compare.user_problem import UserProblemError, load
from hardgate_lab.rig.candidates import Contestant, UnknownEstimatorError, contestants, everybody
from hardgate_lab.rig.outputs import MOST_SEED, check_figure, check_outputs, check_page
from hardgate_lab.rig.problems import EXTREME, PROBLEMS, Problem

_NAMED = {**PROBLEMS, **EXTREME}
_ESTIMATOR_HELP = (
    f"Repeatable. One of {', '.join(ESTIMATORS)}, or a unit like StraightThrough; bare or with "
    'arguments, "RLOO(8)". All if left out.'
)
_PROBLEM_HELP = (
    f"Repeatable. One of {', '.join(_NAMED)}, or a Python file with logits [D] and "
    f"f: [..., D] → [...], which is run. {', '.join(PROBLEMS)} if left out."
)


def compare_command(
    estimator: Annotated[
        list[str] | None,
        typer.Option(help=_ESTIMATOR_HELP),
    ] = None,
    problem: Annotated[
        list[str] | None,
        typer.Option(help=_PROBLEM_HELP),
    ] = None,
    samples_per_estimate: Annotated[
        list[int] | None,
        typer.Option(
            "--samples-per-estimate",
            "-k",
            min=2,
            max=1000,
            help="K of estimators that take several samples of b, like RLOO; repeatable. "
            "2 and 4 if left out.",
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            min=1000,
            max=10_000_000,
            help="Gradient draws for each; fewer where one takes more than 4 evaluations.",
        ),
    ] = 20_000,
    budget: Annotated[
        int, typer.Option(min=1, help="Evaluations of f that the column 'error' allows.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Of the random draws.")] = 0,
    figure_file: Annotated[
        Path,
        typer.Option(
            "--figure",
            help="Variance against cost, a PNG; the bias–variance plane goes beside it as …-bias.",
            dir_okay=False,
        ),
    ] = Path("out/compare.png"),
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the rows here.", dir_okay=False)
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="Also write the rankings into this page, between markers.", exists=True),
    ] = None,
) -> None:
    """Measure gradient estimators and units against the exact gradient, and recommend one.

    All estimate ∂E f(b)/∂a, b ~ Bernoulli(σ(a)), on losses f small enough that it is known; for a
    problem of your own with more than 20 units, against a long average. One table per problem,
    sorted by VARIANCE × EVALS: averaging n estimates divides the variance by n and takes n times
    the evaluations, so this is the variance at equal evaluations of f. VARIANCE × µs is that at
    equal seconds. BIAS does not average out: the ERROR at a budget of evaluations has both. The
    Z-score says how many standard errors a bias is; an unbiased estimator stays below 5.5.

    Examples:

        hardgate compare

        hardgate compare --estimator RLOO --estimator DisARM -k 2 -k 8 --problem sparse

        hardgate compare --problem my_problem.py --json out/mine.json
    """
    console = Console()
    ks = list(dict.fromkeys(samples_per_estimate or (2, 4)))
    chosen = _contestants(estimator, ks)
    problems = _problems(problem or list(PROBLEMS))
    check_figure(figure_file)
    check_outputs(figure_file, plane_of(figure_file), json_file)
    check_page(write, comparison_tables.BLOCKS)
    start = time.perf_counter()
    try:
        rounds = _run(problems, chosen, samples, seed, console)
    except UserProblemError as error:  # at a b that was not tried when the file was read
        raise typer.BadParameter(str(error), param_hint="--problem") from None
    for played in rounds:
        _show(console, played, budget)
    count = sum(len(played.rows) for played in rounds)
    if count:
        console.print(comparison_tables.CAPTION.format(budget=budget), highlight=False)
    written = [str(path) for path in figures(rounds, figure_file)]
    options = {"samples": samples, "samples_per_estimate": ks, "budget": budget, "seed": seed}
    record = comparison_tables.record(rounds, options)
    if json_file is not None:
        json_file.write_text(json.dumps(record, indent=1) + "\n")
        written.append(str(json_file))
    if write is not None:
        write.write_text(comparison_tables.write(write.read_text(), record))
        written.append(str(write))
    to = f" → {', '.join(written)}" if written else ""
    console.print(
        f"{count} measurements in {time.perf_counter() - start:.0f} s{to}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    _judge(console, rounds)


def _contestants(names: list[str] | None, ks: list[int]) -> list[Contestant]:
    if not names:
        return everybody(ks)
    try:
        found = [c for name in names for c in contestants(name, ks)]
    except UnknownEstimatorError as error:
        raise typer.BadParameter(str(error), param_hint="--estimator") from None
    return list({c.name: c for c in found}.values())


def _problems(names: list[str]) -> dict[str, Problem]:
    problems = {}
    for name in dict.fromkeys(names):
        if name in _NAMED:
            problems[name] = _NAMED[name]
        elif name.endswith(".py"):
            stem = Path(name).stem
            try:  # by the whole path where the name is another's
                problems[name if stem in (*problems, *_NAMED) else stem] = load(Path(name))
            except UserProblemError as error:
                raise typer.BadParameter(str(error), param_hint="--problem") from None
        else:
            raise typer.BadParameter(
                f"{name!r} is not a problem; expected a Python file or one of {', '.join(_NAMED)}.",
                param_hint="--problem",
            )
    return problems


def _run(
    problems: dict[str, Problem],
    chosen: list[Contestant],
    samples: int,
    seed: int,
    console: Console,
) -> list[Round]:
    """The rounds; a bar on a terminal, elsewhere a line for each problem."""
    rounds = []
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with bar:
        task = bar.add_task("measuring", total=len(problems) * (len(chosen) + 2))
        for name, problem in problems.items():
            bar.update(task, description=f"{name}: who can take part, the true gradient, timing")
            for done, played in contest(name, problem, chosen, samples, seed):
                bar.update(task, advance=1, description=done)
                if played is not None:
                    rounds.append(played)
            if not console.is_terminal:
                said = f"measured {len(rounds)}/{len(problems)}: {name}"
                console.print(said, highlight=False, markup=False)
    return rounds


def _show(console: Console, played: Round, budget: int) -> None:
    if played.rows:
        console.print(comparison_tables.table(played, budget))
    if any(row.own_objective for row in played.rows):
        console.print(
            "°: a unit whose output is not Bernoulli(σ(a)), held against the gradient of its own "
            "objective: not a rival of the others.",
            highlight=False,
        )
    for why in dict.fromkeys(each.why for each in played.left_out):
        names = ", ".join(each.estimator for each in played.left_out if each.why == why)
        console.print(f"Left out ({why}): {names}.", highlight=False, markup=False)
    console.print(f"Recommended on {played.problem}: ", style="bold", end="", markup=False)
    console.print(f"{recommend(played)}\n", highlight=False, markup=False)


def _judge(console: Console, rounds: list[Round]) -> None:
    wrong = [row for played in rounds for row in played.rows if row.contradicts]
    for row in wrong:
        console.print(
            f"{row.estimator} is declared unbiased but is not on {row.problem}.",
            style="red",
            markup=False,
        )
    if wrong:
        raise typer.Exit(1)

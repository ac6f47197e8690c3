"""The options of `hardgate compare`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from hardgate.estimators import ESTIMATORS
from hardgate_lab.compare import comparison_tables
from hardgate_lab.compare.comparison import Comparison, compare
from hardgate_lab.compare.comparison_figures import figures, plane_of
from hardgate_lab.compare.recommend import recommend
from hardgate_lab.compare.user_problem import UserProblemError, load
from hardgate_lab.rig.candidates import Candidate, all_candidates
from hardgate_lab.rig.options import JsonFile, Page, Seed, read_estimators
from hardgate_lab.rig.outputs import check_figure, check_outputs, check_page, write_outputs
from hardgate_lab.rig.problems import EXTREME, PROBLEMS, GradientProblem
from hardgate_lab.rig.progress import Bar, say

_NAMED = {**PROBLEMS, **EXTREME}
_ESTIMATOR_HELP = (
    f"Compare this estimator or unit; repeatable. One of {', '.join(ESTIMATORS)}, or a unit like "
    'StraightThrough; bare, or with arguments like "RLOO(8)". If left out: all.'
)
_PROBLEM_HELP = (
    f"Compare on this problem; repeatable. One of {', '.join(_NAMED)}; or a Python file of yours "
    "that defines logits [D] and f: [..., D] → [...]. The file is run. If left out: "
    f"{', '.join(PROBLEMS)}."
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
            help="For estimators that take several samples of b, like RLOO: how many. Repeatable. "
            "If left out: 2 and 4.",
        ),
    ] = None,
    samples: Annotated[
        int,
        typer.Option(
            min=1000,
            max=10_000_000,
            help="Gradients to draw from each; fewer if one takes more than 4 evaluations of f.",
        ),
    ] = 20_000,
    budget: Annotated[
        int, typer.Option(min=1, help="The column 'error' allows this many evaluations of f.")
    ] = 100,
    seed: Seed = 0,
    figure_file: Annotated[
        Path,
        typer.Option(
            "--figure",
            help="Write variance against cost to this file; bias against variance goes beside it, "
            "to …-bias.png.",
            dir_okay=False,
        ),
    ] = Path("out/compare.png"),
    json_file: JsonFile = None,
    write: Page = None,
) -> None:
    """Measure gradient estimators against the exact gradient, and recommend one.

    Each of them estimates the gradient of E f(b) with b ~ Bernoulli(σ(a)), on
    losses f so small that the exact gradient is known. For a problem of your
    own with more than 20 units, a long average takes its place.

    There is one table per problem, sorted by VARIANCE × EVALS: the variance
    at equal evaluations of f, because averaging n estimates divides the
    variance by n and takes n times the evaluations. VARIANCE × µs is the
    variance at equal time. Averaging does not remove BIAS; the column ERROR
    has both. Z says how many standard errors a bias is: an unbiased estimator
    stays below 5.5.

    Examples:

        hardgate compare

        hardgate compare --estimator RLOO --estimator DisARM -k 2 -k 8 --problem sparse

        hardgate compare --problem my_problem.py --json out/mine.json
    """
    console = Console()
    ks = list(dict.fromkeys(samples_per_estimate or (2, 4)))
    chosen = read_estimators(estimator, ks) if estimator else all_candidates(ks)
    problems = _problems(problem or list(PROBLEMS))
    check_figure(figure_file)
    check_outputs(figure_file, plane_of(figure_file), json_file)
    check_page(write, comparison_tables.BLOCKS)
    start = time.perf_counter()
    try:
        comparisons = _run(problems, chosen, samples, seed, console)
    except UserProblemError as error:  # at a b that was not tried when the file was read
        raise typer.BadParameter(str(error), param_hint="--problem") from None
    for comparison in comparisons:
        _show(console, comparison, budget)
    count = sum(len(comparison.rows) for comparison in comparisons)
    if count:
        console.print(comparison_tables.CAPTION.format(budget=budget), highlight=False)
    options = {"samples": samples, "samples_per_estimate": ks, "budget": budget, "seed": seed}
    record = comparison_tables.record(comparisons, options)
    written = figures(comparisons, figure_file)
    written += write_outputs(record, json_file, write, comparison_tables.write)
    to = f" → {', '.join(map(str, written))}" if written else ""
    say(console, f"{count} measurements in {time.perf_counter() - start:.0f} s{to}")
    _judge(console, comparisons)


def _problems(names: list[str]) -> dict[str, GradientProblem]:
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
    problems: dict[str, GradientProblem],
    chosen: list[Candidate],
    samples: int,
    seed: int,
    console: Console,
) -> list[Comparison]:
    comparisons = []
    with Bar(console, "measuring", len(problems) * (len(chosen) + 2)) as bar:
        for name, problem in problems.items():
            bar.now(f"the exact gradient on {name}")
            for done, comparison in compare(name, problem, chosen, samples, seed):
                bar.now(done)
                bar.advance()
                if comparison is not None:
                    comparisons.append(comparison)
    return comparisons


def _show(console: Console, comparison: Comparison, budget: int) -> None:
    if comparison.rows:
        console.print(comparison_tables.table(comparison, budget))
    if any(row.own_objective for row in comparison.rows):
        console.print(
            "°: the output of this unit is not Bernoulli(σ(a)). It is measured against the "
            "gradient of its own objective, and does not compare with the others.",
            highlight=False,
        )
    for why in dict.fromkeys(each.why for each in comparison.left_out):
        names = ", ".join(each.estimator for each in comparison.left_out if each.why == why)
        console.print(f"Left out ({why}): {names}.", highlight=False, markup=False)
    advice = (f"Recommended on {comparison.problem}:", "bold"), f" {recommend(comparison)}\n"
    console.print(Text.assemble(*advice))


def _judge(console: Console, comparisons: list[Comparison]) -> None:
    wrong = [row for comparison in comparisons for row in comparison.rows if row.contradicts]
    for row in wrong:
        console.print(
            f"{row.estimator} is declared unbiased but is not on {row.problem}.",
            style="red",
            markup=False,
        )
    if wrong:
        raise typer.Exit(1)

"""What a newcomer sees first: what was run, one table, and what it means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from hardgate_lab.reproduce.recorded import COMMAND, CORES, PATH, minutes
from hardgate_lab.reproduce.report.html import Html, element, join, table
from hardgate_lab.reproduce.report.numbers import NONE, mean, percent, span, spread, two
from hardgate_lab.reproduce.report.runs import Experiment, Result, over_seeds, read
from hardgate_lab.reproduce.settings import PAPER_ROWS, ROWS
from hardgate_lab.reproduce.table import DATASETS, PAPER, duration

_TEST_IMAGES = 10_000


def title(experiment: Experiment) -> str:
    """The data and the preset."""
    own = experiment.dataset == "mnist" and not experiment.canonical
    files = ", files not known to be the real ones" if own else ""
    return f"{_dataset(experiment)}, {experiment.preset} preset{files}"


def first_screen(experiment: Experiment) -> Html:
    """What was run, the table, and what it means."""
    beside = _recorded(experiment)
    return join(
        element("p", element("b", "What was run. "), _what_was_run(experiment)),
        _table(experiment, beside),
        _notes(experiment, beside),
        *_meaning(experiment, beside),
    )


def _dataset(experiment: Experiment) -> str:
    return DATASETS.get(experiment.dataset, experiment.dataset)


def _recorded(experiment: Experiment) -> Experiment | None:
    """The recorded runs to set beside these: none beside other data, or beside themselves."""
    if not experiment.comparable:
        return None
    (recorded,) = read(PATH).experiments
    return None if _test_errors(experiment) == _test_errors(recorded) else recorded


def _test_errors(experiment: Experiment) -> list[tuple[str, int | None, float | None]]:
    return [(r.row, r.seed, r.numbers.get("test_error")) for r in experiment.results]


def _what_was_run(experiment: Experiment) -> str:
    results = experiment.results
    epochs, trained = span(results, "epochs", " to "), over_seeds(results, "seconds")
    machines = sorted({r.made["machine"] for r in results if "machine" in r.made})
    rows, runs = len(experiment.rows), len(results)
    parts = [
        f"{rows} row{'s' * (rows > 1)}",
        *([f"{runs} runs with all seeds"] if runs > rows else []),
        *([f"{epochs} epochs each"] if epochs else []),
        *([f"{duration(sum(trained))} of training with all rows added up"] if trained else []),
    ]
    where = f" Processor: {' and '.join(machines)}." if machines else ""
    return f"The {experiment.preset} preset on {_dataset(experiment)}: {', '.join(parts)}.{where}"


# The table


def _table(experiment: Experiment, beside: Experiment | None) -> Html:
    """Test error and gates on: this run, beside it the recorded ones and the paper."""
    ours = {"this run": experiment} | ({"recorded": beside} if beside else {})
    names = [*ours, *(["paper"] if experiment.comparable else [])]
    compared = ["against paper"] if _full_length(experiment) else []
    rows = []
    for row, results in experiment.rows.items():
        sources = [each.rows.get(row, ()) for each in ours.values()]
        cells = [spread(source, "test_error", two) for source in sources]
        gates = [_gates(source) for source in sources]
        if experiment.comparable:
            cells.append(two(PAPER[row].test) if row in PAPER else NONE)
            gates.append(_aim(row) if row in PAPER else NONE)
        if compared:
            cells.append(_against(above_paper(experiment).get(row)))
        rows.append([results[0].label, *cells, *gates, _time(results)])
    errors = len(names) + len(compared)
    groups = [("", 1), ("Test error, %", errors), ("Gates on, %", len(names)), ("", 1)]
    return table(["Gater", *names, *compared, *names, "Time"], rows, groups, class_="first")


def _gates(results: Sequence[Result]) -> str:
    on = percent(mean(results, "density_test"))
    return "all" if on == "100.0" else on


def _aim(row: str) -> str:
    """The gates that the paper wants on; it does not say what it reached."""
    settings = ROWS[row]
    return "all" if settings.sparsity == "none" else f"{100 * settings.rate:.0f}"


def _against(points: float | None) -> str:
    if points is None:
        return NONE
    return f"{abs(points):.2f} {'above' if points > 0 else 'below'}" if points else "equal"


def _time(results: Sequence[Result]) -> str:
    seconds = mean(results, "seconds")
    return NONE if seconds is None else duration(seconds)


def _notes(experiment: Experiment, beside: Experiment | None) -> Html:
    several = any(len(r) > 1 for each in (experiment, beside) if each for r in each.rows.values())
    notes = [
        "Gates on: how many of the gates a test image opens, so how many experts are computed"
        + ("; under “paper” stands its aim." if experiment.comparable else "."),
        *(["±: standard deviation over seeds."] if several else []),
        "Time: training of one seed, in this run.",
    ]
    return element("p", " ".join(notes), class_="note")


# What it means


def above_paper(experiment: Experiment) -> dict[str, float]:
    """By row of the paper: how far our mean test error is above the paper's, in points."""
    means = {row: mean(results, "test_error") for row, results in experiment.rows.items()}
    return {
        row: round(ours - PAPER[row].test, 4)
        for row, ours in means.items()
        if row in PAPER and ours is not None and experiment.comparable
    }


def _chance(experiment: Experiment) -> float:
    """The standard error of one test error, in points."""
    share = statistics.fmean(over_seeds(experiment.results, "test_error")) / 100
    return 100 * math.sqrt(max(0.0, share * (1 - share)) / _TEST_IMAGES)


def _full_length(experiment: Experiment) -> bool:
    """Whether its errors are to be held against the paper's."""
    return experiment.preset != "quick" and bool(above_paper(experiment))


def _meaning(experiment: Experiment, beside: Experiment | None) -> list[Html]:
    if not experiment.comparable:
        files = experiment.dataset == "mnist"
        why = (
            "These files are not known to be the real MNIST"
            if files
            else f"The paper has no figures for {_dataset(experiment)}"
        )
        return [element("p", f"{why}, so the table shows this run alone.")]
    said = [_compared(experiment)] if _full_length(experiment) else []
    if beside is not None and experiment.preset == "quick":
        said.append(_short(experiment, beside))
    if beside is not None:
        said.append(_repeat())
    return said


def _compared(experiment: Experiment) -> Html:
    """What was reached, and plainly what was not."""
    above = above_paper(experiment)
    missed = {row: points for row, points in above.items() if points > 0}
    words = [
        f"{len(above) - len(missed)} of {len(above)} rows reach the paper's test error or go "
        "below it."
    ]
    if missed:
        names = (f"{experiment.rows[row][0].label} ({p:.2f} above)" for row, p in missed.items())
        words.append(f"Not reached: {', '.join(names)}.")
    words.append(
        f"One test error here has a standard error of {_chance(experiment):.2f} points, from "
        "10 000 images: differences of less than twice that may be chance."
    )
    return element("p", element("b", "What it shows. "), " ".join(words))


def _short(experiment: Experiment, beside: Experiment) -> Html:
    epochs = span(experiment.results, "epochs", " to ")
    full = [result for row in PAPER_ROWS for result in beside.rows.get(row, ())]
    above = above_paper(beside)
    reached = sum(points <= 0 for points in above.values())
    many = f"all {reached}" if reached == len(above) else f"{reached} of {len(above)}"
    runs = f"A run of {epochs} epochs" if epochs else "A short run"
    return element(
        "p",
        element("b", "What it shows. "),
        f"{runs} shows the experiment at work, not its final errors. “Recorded” are our "
        f"full-length runs, {span(full, 'epochs', ' to ')} epochs: {many} rows of the paper reach "
        "its test error or go below it.",
    )


def _repeat() -> Html:
    return join(
        element(
            "p",
            element("b", "To repeat the recorded runs. "),
            f"It takes about {minutes()} minutes on {CORES} cores, and three times that with ",
            element("code", "--seeds 3"),
            ". After ",
            element("code", "make reproduce"),
            ", ",
            element("code", "hardgate"),
            " is ",
            element("code", ".venv/bin/hardgate"),
            ".",
        ),
        element("pre", COMMAND, tabindex="0"),
    )

"""The page: a summary, tables and figures, in one file that needs no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template

from hardgate_lab.reproduce.report import provenance, tables
from hardgate_lab.reproduce.report.html import Html, element, join
from hardgate_lab.reproduce.report.runs import Experiment, Runs
from hardgate_lab.reproduce.report.style import DARK, Picture, variable

TITLE = "Hard gates: ours and the paper's"
_WHAT = (
    "The conditional network of Bengio, Léonard and Courville (2013), arXiv 1308.3432: a gater "
    "decides for each image which experts are computed. Each row trains it with another gater. "
    "The epoch was chosen on validation images; the test images were read once, when a run was "
    "finished."
)
_SETTINGS = "hardgate_lab/reproduce/settings.py"
_NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
_LEAST = {2: "25rem", 3: "19rem"}  # the least width of a panel, by the columns that we want
Drawn = Sequence[tuple[Picture, Sequence[Html]]]  # each panel as SVG


def page(runs: Runs, drawn: Mapping[int, Drawn], files: Sequence[str]) -> str:
    """The whole report.

    Args:
        runs: what it is about.
        drawn: the figures of each experiment, by its place in `runs`.
        files: the names of the PNG files beside it.
    """
    parts = [element("h1", TITLE), element("p", _WHAT)]
    if runs.unfinished:
        parts.append(element("p", f"Not finished yet: {', '.join(runs.unfinished)}.", class_="bad"))
    for place, experiment in enumerate(runs.experiments):
        parts.append(_experiment(experiment, drawn[place]))
    also = f"The figures are also beside this page: {', '.join(files)}." if files else ""
    parts.append(element("footer", element("p", also, " Written by hardgate report.")))
    template = (
        resources.files("hardgate_lab.reproduce.report").joinpath("page.html").read_text("utf-8")
    )
    return Template(template).substitute(
        title=join(TITLE), light=_colours(dark=False), dark=_colours(dark=True), body=join(*parts)
    )


def _experiment(experiment: Experiment, drawn: Drawn) -> Html:
    above = {"cost": tables.gates(experiment)}
    figures = [
        _figure(picture, panels, above.pop(picture.name, Html())) for picture, panels in drawn
    ]
    return element(
        "section",
        element("h2", _title(experiment)),
        *_summary(experiment),
        tables.errors(experiment),
        _note(experiment),
        *figures,
        *above.values(),  # where there was no figure
        element("h3", "Settings"),
        element(
            "p", "What most runs share. ", element("code", _SETTINGS), " says what each means."
        ),
        provenance.settings(experiment),
        element("h3", "Machine and versions"),
        provenance.machines(experiment),
    )


def _title(experiment: Experiment) -> str:
    own = experiment.dataset == "mnist" and not experiment.canonical
    files = ", files not known to be the real ones" if own else ""
    name = _NAMES.get(experiment.dataset, experiment.dataset)
    return f"{name}, {experiment.preset} preset{files}"


def _summary(experiment: Experiment) -> list[Html]:
    """What was reached, and plainly what was not."""
    above = tables.above(experiment)
    if not above:
        return [element("p", "Nothing here compares with the paper's MNIST errors.")]
    missed = {row: points for row, points in above.items() if points > 0}
    said = [
        element(
            "p",
            f"{len(above) - len(missed)} of {len(above)} rows of the paper reach its test error "
            "or go below.",
            class_="lead",
        )
    ]
    if missed:
        names = ", ".join(
            f"{experiment.rows[row][0].label} ({points:+.2f} points)"
            for row, points in missed.items()
        )
        said.append(element("p", f"Hand on heart, not reached: {names}.", class_="lead bad"))
    if experiment.preset == "quick":
        said.append(
            element("p", "The quick preset shows the experiment in minutes, not its final errors.")
        )
    return said


def _note(experiment: Experiment) -> Html:
    chance = tables.chance(experiment)
    seeds = "Of several seeds: mean ± standard deviation, and the mean is compared. "
    error = (
        f"One test error here has a standard error of {chance:.2f} points, from 10 000 images: "
        "differences of less than twice that may be chance."
        if chance
        else ""
    )
    return element("p", seeds, error, class_="note")


def _figure(picture: Picture, panels: Sequence[Html], above: Html) -> Html:
    titled = [
        element("div", element("h4", panel.title), drawn)
        for panel, drawn in zip(picture.panels, panels, strict=True)
    ]
    return join(
        element("h3", picture.title),
        above,
        element(
            "figure",
            element("div", *titled, class_="panels", style=f"--least: {_LEAST[picture.columns]}"),
            element("figcaption", picture.caption),
        ),
    )


def _colours(dark: bool) -> str:
    return " ".join(f"{variable(light)}: {DARK[light] if dark else light};" for light in DARK)

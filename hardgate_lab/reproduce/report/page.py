"""The page: a first screen for newcomers, then all numbers and figures, in one file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template

from hardgate_lab.reproduce.report import provenance, tables
from hardgate_lab.reproduce.report.first_screen import first_screen, title
from hardgate_lab.reproduce.report.html import Html, element, join
from hardgate_lab.reproduce.report.runs import Experiment, Runs
from hardgate_lab.reproduce.report.style import DARK, Picture, variable

TITLE = "Hard gates: the paper's experiment, run again"
_WHAT = (
    "The experiment of Bengio, Léonard and Courville (2013, arXiv 1308.3432): a network decides "
    "for each image which tenth of its 2000 experts to compute. Each row below trains it with "
    "another kind of gate."
)
_ALL_NUMBERS = (
    "The validation images chose the epoch. The test images were read once, when a run was "
    "finished. The loss is the mean cross-entropy as trained, with the noise of the gates."
)
_GATES = (
    "Dead gates open for no validation image, always-on gates for all of them. Multiplications "
    "are those of one image, gater included. The loss without noise is that of the training "
    "images with deterministic gates. Seconds are those of training."
)
_SETTINGS = "hardgate_lab/reproduce/settings.py"
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
        parts.append(element("p", f"Not finished yet: {', '.join(runs.unfinished)}."))
    if len(runs.experiments) > 1:
        titles = map(title, runs.experiments)
        parts.append(_contents("On this page:", {f"e{k}": t for k, t in enumerate(titles)}))
    for place, experiment in enumerate(runs.experiments):
        parts.append(_experiment(experiment, drawn[place], f"e{place}"))
    also = f"The figures are also beside this page: {', '.join(files)}. " if files else ""
    parts.append(element("footer", element("p", also, "Written by hardgate report.")))
    folder = resources.files("hardgate_lab.reproduce.report")
    return Template(folder.joinpath("page.html").read_text("utf-8")).substitute(
        title=join(TITLE), light=_colours(dark=False), dark=_colours(dark=True), body=join(*parts)
    )


def _experiment(experiment: Experiment, drawn: Drawn, prefix: str) -> Html:
    """The first screen, where to find what, and that."""
    parts = dict(_parts(experiment, drawn))
    names = {f"{prefix}-{number}": name for number, name in enumerate(parts)}
    return element(
        "section",
        element("h2", title(experiment), id=prefix),
        first_screen(experiment),
        _contents("Further down:", names),
        *(join(element("h3", name, id=place), parts[name]) for place, name in names.items()),
    )


def _parts(experiment: Experiment, drawn: Drawn) -> Iterable[tuple[str, Html]]:
    """What stands below the first screen, by its title."""
    yield "All numbers", join(tables.errors(experiment), element("p", _ALL_NUMBERS, class_="note"))
    for picture, panels in drawn:
        yield picture.title, _figure(picture, panels)
    yield "Gates in numbers", join(tables.gates(experiment), element("p", _GATES, class_="note"))
    shared = element(
        "p", "First what most runs share. ", element("code", _SETTINGS), " says what each means."
    )
    yield "Settings", join(shared, provenance.settings(experiment))
    yield "Machine and versions", provenance.machines(experiment)


def _contents(label: str, names: Mapping[str, str]) -> Html:
    links = (element("a", name, href=f"#{place}") for place, name in names.items())
    return element("nav", label, *(join(" ", link) for link in links))


def _figure(picture: Picture, panels: Sequence[Html]) -> Html:
    titled = [
        element("div", element("h4", panel.title), drawn)
        for panel, drawn in zip(picture.panels, panels, strict=True)
    ]
    return join(
        element("p", element("b", "What you are looking at: "), picture.what),
        element(
            "figure",
            element("div", *titled, class_="panels", style=f"--least: {_LEAST[picture.columns]}"),
            element("figcaption", picture.caption),
        ),
    )


def _colours(dark: bool) -> str:
    return " ".join(f"{variable(light)}: {DARK[light] if dark else light};" for light in DARK)

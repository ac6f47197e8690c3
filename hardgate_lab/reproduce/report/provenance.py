"""Settings, machines and versions of the runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from hardgate_lab.reproduce.report.html import Html, element, join, table
from hardgate_lab.reproduce.report.runs import Experiment, Result

_NONE = "–"


def settings(experiment: Experiment) -> Html:
    """What most runs share, once; then what differs, row by row."""
    given: dict[str, list[str]] = {}
    for result in experiment.results:
        for name, value in _settings(result).items():
            given.setdefault(name, []).append(value)
    if not given:
        return element("p", "These records hold no settings.")
    common = {name: Counter(values).most_common(1)[0][0] for name, values in given.items()}
    return join(
        element("dl", *(_pair(name, value) for name, value in common.items()), class_="grid"),
        element("h4", "What differs, row by row"),
        table(("Gater", "Settings"), _differing(experiment, common)),
    )


def machines(experiment: Experiment) -> Html:
    """The machine and the versions of the runs; each combination once."""
    made: dict[str, list[Result]] = {}
    for result in experiment.results:
        words = ", ".join(f"{key} {value}" for key, value in result.made.items())
        made.setdefault(words or _NONE, []).append(result)
    rows = [
        ("All" if len(made) == 1 else _names(experiment, results), words)
        for words, results in made.items()
    ]
    return table(("Runs", "Machine and versions"), rows)


def _settings(result: Result) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in result.settings.items()
    }


def _pair(name: str, value: str) -> Html:
    return element("div", element("dt", name), element("dd", value))


def _differing(experiment: Experiment, common: Mapping[str, str]) -> list[tuple[str, str]]:
    """A line for each row, or for each group of its seeds where their settings differ."""
    lines: dict[tuple[str, str], list[Result]] = {}
    for result in experiment.results:
        own = _settings(result)
        deltas = [
            f"{name} {own.get(name, _NONE)}" for name in common if own.get(name) != common[name]
        ]
        words = (", ".join(deltas) or "nothing") if own else "not recorded"
        lines.setdefault((result.row, words), []).append(result)
    return [(_names(experiment, results), words) for (_, words), results in lines.items()]


def _names(experiment: Experiment, results: Sequence[Result]) -> str:
    """The rows of these runs; with the seeds where they are not all of the row's."""
    rows: dict[str, list[Result]] = {}
    for result in results:
        rows.setdefault(result.row, []).append(result)
    names = [
        own[0].label
        if len(own) == len(experiment.rows[row])
        else f"{own[0].label}, seed {', '.join(str(result.seed) for result in own)}"
        for row, own in rows.items()
    ]
    return "; ".join(names)

"""The files of a report: `report.html`, and each of its figures as PNG beside it."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from hardgate._base import atomic_file
from hardgate_lab.reproduce.report.html import Html
from hardgate_lab.reproduce.report.page import page
from hardgate_lab.reproduce.report.report_figures import pictures
from hardgate_lab.reproduce.report.runs import Experiment, Runs, read
from hardgate_lab.reproduce.report.style import Picture, png, svg
from hardgate_lab.rig.checkpoint import SaveError

PAGE = "report.html"
Tell = Callable[[int, int], None]


def write_report(runs: Runs, folder: Path, tell: Tell) -> Path:
    """Draw everything and write it, the page last.

    Args:
        runs: from `read`.
        folder: where the files go; it exists.
        tell: given how many drawings are done, and how many there are.

    Returns:
        the page.
    """
    planned = {place: pictures(experiment) for place, experiment in enumerate(runs.experiments)}
    total = sum(1 + len(picture.panels) for each in planned.values() for picture in each)
    done, files = 0, list[str]()
    drawn: dict[int, list[tuple[Picture, list[Html]]]] = {}
    for place, (experiment, stem) in enumerate(zip(runs.experiments, stems(runs), strict=True)):
        drawn[place] = []
        for picture in planned[place]:
            panels = []
            for number, panel in enumerate(picture.panels):
                panels.append(svg(panel, f"e{place}-{picture.name}{number}"))
                done += 1
                tell(done, total)
            drawn[place].append((picture, panels))
            files.append(f"{stem}-{picture.name}.png")
            _write(folder / files[-1], png(picture, digest(experiment)))
            done += 1
            tell(done, total)
    _write(folder / PAGE, page(runs, drawn, files).encode())
    return folder / PAGE


def stems(runs: Runs) -> list[str]:
    """The first part of the file names of each experiment."""
    if len(runs.experiments) == 1:
        return ["report"]
    named = (f"report-{e.dataset}-{e.preset}" for e in runs.experiments)
    names = [re.sub(r"[^A-Za-z0-9]+", "-", name) for name in named]
    return [f"{name}-{k}" if name in names[:k] else name for k, name in enumerate(names)]


def digest(experiment: Experiment) -> str:
    """Of the records: tells whether a figure is up to date."""
    content = json.dumps(asdict(experiment), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def write_figures(runs: Path, folder: Path, names: Sequence[str]) -> None:
    """For `make readme`: some figures of the first experiment, as reproduce-NAME.png."""
    experiment = read(runs).experiments[0]
    for picture in pictures(experiment):
        if picture.name in names:
            content = png(picture, digest(experiment))
            _write(folder / f"reproduce-{picture.name}.png", content)


def _write(path: Path, content: bytes) -> None:
    """Atomically, also where two commands end at the same moment."""
    try:
        atomic_file.write(path, content, path.with_name(f".{path.name}.{uuid.uuid4().hex}"))
    except OSError as error:
        raise SaveError(
            f"cannot write {path}: {error.strerror}. The runs are untouched: make room, or type "
            "`hardgate report RUNS --out DIR` with another folder."
        ) from error

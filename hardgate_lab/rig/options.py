"""Options that several commands share, with their help texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from hardgate_lab.rig.candidates import Candidate, UnknownEstimatorError, candidates_named

MOST_SEED = 2**32 - 1  # torch takes more, but not what is computed from it

Seed: TypeAlias = Annotated[
    int, typer.Option(min=0, max=MOST_SEED, help="Seed of everything that is random.")
]
JsonFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--json", help="Also write the results to this JSON file.", dir_okay=False),
]
Page: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--write",
        help="Also write the tables into this Markdown page, between its markers.",
        exists=True,
    ),
]
FigureFile: TypeAlias = Annotated[
    Path, typer.Option("--figure", help="Write the figure to this file.", dir_okay=False)
]
Fresh: TypeAlias = Annotated[
    bool, typer.Option("--fresh", help="Remove what earlier runs left, and start anew.")
]
DatasetName: TypeAlias = Annotated[str, typer.Option(help="mnist or fashion-mnist.")]
IdxFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Folder with the four IDX files of the data set, gzipped or not. If left out, MNIST "
        "comes from the cache, and is downloaded on first use."
    ),
]
Changes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a setting: NAME=VALUE, like lr=0.05. Repeatable."),
]


def read_estimators(texts: Iterable[str], samples: Iterable[int]) -> list[Candidate]:
    """The candidates that `--estimator` named, each once; stops the command at an unknown name."""
    try:
        found = [each for text in texts for each in candidates_named(text, samples)]
    except UnknownEstimatorError as error:
        raise typer.BadParameter(str(error), param_hint="--estimator") from None
    return list({each.name: each for each in found}.values())

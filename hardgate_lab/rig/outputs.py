"""Options that name a file to write: refused before the work, not after it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import typer

from hardgate_lab.reproduce.session import writable
from hardgate_lab.rig import markers
from hardgate_lab.rig.checkpoint import SaveError

MOST_SEED = 2**32 - 1  # torch takes more, but not what is computed from it


def check_outputs(*paths: Path | None) -> None:
    """Stop now, with a sentence, if one of the files could not be written later, or twice."""
    given = [path for path in paths if path is not None]
    for k, path in enumerate(given):
        if path.resolve() in [before.resolve() for before in given[:k]]:
            raise typer.BadParameter(f"expected a file for each output, got {path} twice.")
        try:
            writable(path)
        except SaveError as error:
            raise typer.BadParameter(str(error)) from None


def check_figure(path: Path) -> None:
    """Stop now if no figure can be written to a file of this name."""
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix.lower().removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise typer.BadParameter(
            f"expected the name of a figure, like {path.with_suffix('.png')}, got {path}.",
            param_hint="--figure",
        )


def check_page(path: Path | None, blocks: Iterable[str]) -> None:
    """Stop now if `--write` has a page that lacks the markers of these blocks."""
    if path is None:
        return
    check_outputs(path)
    try:
        markers.write(path.read_text(), dict.fromkeys(blocks, str))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--write") from None

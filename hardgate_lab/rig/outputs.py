"""Files that a command writes: checked before the work starts, written when it is done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import typer

from hardgate_lab.rig import markers
from hardgate_lab.rig.checkpoint import SaveError


def check_writable(path: Path) -> None:
    """Raise `SaveError` now, not after hours, if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"cannot make the folder of {path}: {error.strerror}.") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SaveError(f"cannot write {path}: it is a folder, or not writable.")


def check_outputs(*paths: Path | None) -> None:
    """Stop the command now if one of the files cannot be written, or is named twice."""
    given = [path for path in paths if path is not None]
    for k, path in enumerate(given):
        if path.resolve() in [before.resolve() for before in given[:k]]:
            raise typer.BadParameter(f"expected a file for each output, got {path} twice.")
        try:
            check_writable(path)
        except SaveError as error:
            raise typer.BadParameter(str(error)) from None


def check_figure(path: Path) -> None:
    """Stop the command now if matplotlib cannot write a figure to a file of this name."""
    from matplotlib.backend_bases import FigureCanvasBase

    if path.suffix.lower().removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise typer.BadParameter(
            f"expected the name of a figure, like {path.with_suffix('.png')}, got {path}.",
            param_hint="--figure",
        )


def check_page(path: Path | None, blocks: Iterable[str]) -> None:
    """Stop the command now if the page of `--write` has no markers for these blocks."""
    if path is None:
        return
    check_outputs(path)
    try:
        markers.write(path.read_text(), dict.fromkeys(blocks, str))
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path}: {error}", param_hint="--write") from None


def write_outputs(
    record: Mapping[str, Any],
    json_file: Path | None,
    page: Path | None,
    fill: Callable[[str, dict[str, Any]], str],
) -> list[Path]:
    """Write what `--json` and `--write` asked for.

    Args:
        record: what was measured.
        json_file: where it goes as JSON, or None.
        page: a Markdown page with markers, or None.
        fill: returns the page's text with the record's tables in it.

    Returns:
        the files that were written.
    """
    if json_file is not None:
        json_file.write_text(json.dumps(record, indent=1) + "\n")
    if page is not None:
        page.write_text(fill(page.read_text(), dict(record)))
    return [path for path in (json_file, page) if path is not None]

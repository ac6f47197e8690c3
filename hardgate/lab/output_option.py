"""Options that name a file to write: refused before the work, not after it."""

from __future__ import annotations

from pathlib import Path

import typer

from hardgate.reproduce.checkpoint import SaveError
from hardgate.reproduce.command import writable


def check_outputs(*paths: Path | None) -> None:
    """Stop now, with a sentence, if one of the files could not be written later."""
    for path in filter(None, paths):
        try:
            writable(path)
        except SaveError as error:
            raise typer.BadParameter(str(error)) from None

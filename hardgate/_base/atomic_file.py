"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, content: bytes | bytearray, temporary: Path | None = None) -> None:
    """Write a file such that at any moment it has either its old or its whole new content.

    Args:
        path: the file; its folder exists.
        content: all of its content.
        temporary: a path in the same folder. Where several processes may write `path`, each needs
            its own.
    """
    temporary = temporary or path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a power cut, where the system allows it."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

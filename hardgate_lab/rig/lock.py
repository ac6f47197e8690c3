"""One process per run folder."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hardgate_lab.rig.checkpoint import SaveError

if sys.platform != "win32":  # on Windows, runs are not guarded against each other
    import fcntl

_PATIENCE = 5.0  # seconds; the worker of a command that was killed needs about one to notice


class LockedError(RuntimeError):
    """Another process works in this folder."""


@contextmanager
def lock(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the lock of a folder, which is made if missing. The system drops it if we die.

    Args:
        folder: of the run.
        patience: seconds to wait for another process before `LockedError` is raised.
    """
    path = folder / "lock"
    while (handle := _hold(path, patience)) is None:
        pass
    try:
        with suppress(OSError):  # on a full disk the lock holds without a name in it
            os.truncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        os.close(handle)


@contextmanager
def locks(folders: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of several folders."""
    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(lock(folder))
        yield


def remove(folders: Iterable[Path]) -> None:
    """`--fresh`: remove the folders of earlier runs, or none of them if one is in use."""
    there = [folder for folder in folders if folder.exists()]
    with locks(there):
        for folder in there:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise SaveError(
                    f"cannot remove {folder}: {error.strerror}. Choose another --out."
                ) from error


def _hold(path: Path, patience: float) -> int | None:
    """The lock; None if its file was removed, by `--fresh`, while we waited: it guards nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise SaveError(
            f"cannot write in {path.parent}: {error.strerror}. Choose a folder with --out."
        ) from error
    held = False
    try:
        _acquire(handle, path, patience)
        with suppress(FileNotFoundError):
            held = os.path.samestat(os.fstat(handle), os.stat(path))
    finally:
        if not held:
            os.close(handle)
    return handle if held else None


def _acquire(handle: int, path: Path, patience: float) -> None:
    if sys.platform == "win32":
        return
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                holder = os.read(handle, 200).decode(errors="replace") or "another process"
                raise LockedError(
                    f"{path.parent} is in use by {holder}. Wait for it, or choose another --out."
                ) from None
            time.sleep(0.1)

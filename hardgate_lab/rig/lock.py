"""One process per run folder."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hardgate_lab.rig.checkpoint import SaveError

if sys.platform != "win32":  # there, runs are not guarded against each other
    import fcntl

_PATIENCE = 5.0  # seconds; the worker of a command that was killed needs about one to notice


class LockedError(RuntimeError):
    """Another process works in this folder."""


@contextmanager
def lock(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the folder's lock, made where it is missing. The system drops it when a process dies.

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

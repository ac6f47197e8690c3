"""Rows side by side, each in a process of its own that ends with this one."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

import torch

from hardgate_lab.reproduce.train import DivergedError, Job, RowProgress, train
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.lock import LockedError
from hardgate_lab.rig.memory import reuse_memory
from hardgate_lab.rig.mnist import DataError, load
from hardgate_lab.rig.same_run import MismatchError

EXPECTED = (
    SaveError,
    DataError,
    LockedError,
    MismatchError,
    DivergedError,
)  # the message says what to do; no traceback is shown


class Watcher(Protocol):
    """Told what the jobs do while they run."""

    def progress(self, job: Job, progress: RowProgress) -> None:
        """How far the job is."""

    def say(self, job: Job, message: str) -> None:
        """A message for the user."""

    def done(self, job: Job, record: dict[str, Any]) -> None:
        """The job is finished."""

    def failed(self, job: Job, message: str) -> None:
        """The job ended without a record."""


@dataclass(frozen=True)
class Source:
    """Where the data come from: the arguments of `mnist.load`."""

    name: str
    directory: Path | None


@dataclass
class _Worker:
    job: Job
    process: BaseProcess
    ended: bool = False


def run_jobs(jobs: Sequence[Job], width: int, source: Source, watcher: Watcher) -> None:
    """Train every job, `width` at a time.

    Args:
        jobs: in the order in which they are started.
        width: how many processes.
        source: of the data; the processes read them themselves.
        watcher: told everything, in this process.
    """
    waiting, running = list(jobs), dict[Connection, _Worker]()
    try:
        while waiting or running:
            while waiting and len(running) < width:
                connection, worker = _start(waiting.pop(0), source)
                running[connection] = worker
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                if not _hear(ready, running[ready], watcher):
                    running.pop(ready).process.join()
    finally:  # also after Ctrl-C; a checkpoint is whole whenever its process ends
        for worker in running.values():
            worker.process.terminate()
        for worker in running.values():
            worker.process.join()


def _start(job: Job, source: Source) -> tuple[Connection, _Worker]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(job, source, theirs), daemon=True)
    # The child inherits that Ctrl-C is not for it: this process ends it.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.start()
    signal.signal(signal.SIGINT, previous)
    theirs.close()
    return ours, _Worker(job, process)


def _hear(connection: Connection, worker: _Worker, watcher: Watcher) -> bool:
    """Pass one message on; False when there will be no more."""
    try:
        kind, content = connection.recv()
    except (EOFError, OSError):
        if not worker.ended:
            worker.process.join()
            watcher.failed(worker.job, _obituary(worker.process.exitcode))
        return False
    worker.ended = kind in ("done", "failed")
    getattr(watcher, kind)(worker.job, content)
    return True


def _obituary(code: int | None) -> str:
    how = f"by signal {-code}" if code is not None and code < 0 else f"with code {code}"
    return f"its process ended {how}. The same command carries on from its last checkpoint."


# From here on: inside the process of a job.


def _work(job: Job, source: Source, connection: Connection) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    send = _Sender(connection)
    sys.stderr = _Lines(send)
    reuse_memory()
    torch.set_flush_denormal(True)  # gradients of a fitted network vanish, and would crawl
    try:
        data = load(source.name, source.directory, say=lambda message: None)  # the parent said it
        record = train(
            job,
            data,
            tell=lambda progress: send("progress", progress),
            say=lambda message: send("say", message),
        )
        send("done", record)
    except EXPECTED as error:
        send("failed", str(error))
    except Exception as error:
        send("say", traceback.format_exc())
        send("failed", f"{type(error).__name__}, an error of the program: {error}")


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class _Sender:
    """Messages to the parent, one at a time: several threads may have something to say."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()

    def __call__(self, kind: str, content: object) -> None:
        with self._lock:
            self._connection.send((kind, content))


class _Lines(io.TextIOBase):
    """Standard error of a job: what is written there becomes messages of the display."""

    def __init__(self, send: _Sender) -> None:
        self._send = send

    def write(self, text: str) -> int:
        if text.strip():
            self._send("say", text.strip())
        return len(text)

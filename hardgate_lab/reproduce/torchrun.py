"""One row on the processes that `torchrun` started: the first decides and writes, all compute."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias

import torch
import torch.distributed as dist

from hardgate_lab.reproduce.data_parallel import Shard
from hardgate_lab.reproduce.settings import SettingsError
from hardgate_lab.reproduce.train import Job, train
from hardgate_lab.reproduce.workers import EXPECTED, Source, Watcher
from hardgate_lab.rig.memory import reuse_memory
from hardgate_lab.rig.mnist import load

Store: TypeAlias = Any  # torch.distributed.Store, which torch's type stubs leave out
_PATIENCE = timedelta(seconds=3)  # for another process to say why the job ends
_ENDED = (
    "a process of this job ended, or torchrun was stopped. The same command carries on from the "
    "last checkpoint, with any number of processes, or without torchrun."
)


class EndedError(RuntimeError):
    """torchrun asked this process to end."""


def launched() -> bool:
    """Whether torchrun started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def is_first() -> bool:
    """Whether this process is the one that decides and writes."""
    return int(os.environ["RANK"]) == 0


def here() -> int:
    """How many processes torchrun started on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"])


def check(jobs: Sequence[Job], width: int | None) -> None:
    """Raise `SettingsError` for what several processes cannot do together.

    Args:
        jobs: planned.
        width: what was given as `--jobs`.
    """
    world = int(os.environ["WORLD_SIZE"])
    if len(jobs) > 1 or width is not None:
        given = f"{len(jobs)} runs" if len(jobs) > 1 else f"--jobs {width}"
        raise SettingsError(
            f"torchrun expected one row with one seed, like --row straight_through, which all its "
            f"processes train together, and no --jobs; got {given}. Without torchrun, hardgate "
            "reproduce trains rows side by side."
        )
    if world > jobs[0].settings.batch:
        raise SettingsError(
            f"torchrun expected at most {jobs[0].settings.batch} processes, one for each example "
            f"of a batch, got {world}. Write --nproc-per-node with fewer, or --set batch=…"
        )


def lead(job: Job, source: Source, watcher: Watcher) -> None:
    """What the first process does: train the job with the others.

    Args:
        job: all of them learn it from here.
        source: of the data; each reads them itself.
        watcher: told everything.
    """
    shard, store = _join()
    shard.broadcast(lambda: (job, source))
    try:
        record = _train(
            job,
            source,
            shard,
            tell=lambda progress: watcher.progress(job, progress),
            say=lambda message: watcher.say(job, message),
        )
        watcher.done(job, record)
    except Exception as error:
        if _explain(error) is None:
            watcher.say(job, traceback.format_exc())
        watcher.failed(job, _explain(error) or f"an error of the program: {error!r}")
        if store is not None:
            store.set("said", "")


def follow() -> int:
    """What the other processes do; an exit code."""
    shard, store = _join()
    job, source = shard.broadcast(_not_first)
    try:
        _train(job, source, shard, tell=lambda progress: None, say=lambda message: None)
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        message = _explain(error)
        if message is None:
            raise
        if not _was_said(store):
            print(f"{job.row}: {message}", file=sys.stderr, flush=True)
        return 1


def leave(code: int) -> NoReturn:
    """End this process without Python's shutdown.

    Where DDP was used, gloo's threads outlive `destroy_process_group`; one that lets go of a tensor
    while Python shuts down under it aborts the process, and with it the job.

    Args:
        code: the exit code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _join() -> tuple[Shard, Store | None]:
    """Join the group of all processes; also returns a store in which they leave notes."""
    threading.Thread(target=_end_with_torchrun, args=(os.getppid(),), daemon=True).start()
    from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

    store, rank, world = next(iter(rendezvous("env://")))
    if world == 1:
        return Shard(), None
    # torch's choice: gloo for what is on the CPU, as all is here; NCCL for GPUs, where it has it.
    dist.init_process_group(store=PrefixStore("group", store), rank=rank, world_size=world)
    return Shard(rank, world), PrefixStore("notes", store)


def _train(job: Job, source: Source, shard: Shard, tell: Any, say: Any) -> dict[str, Any]:
    reuse_memory()
    torch.set_flush_denormal(True)
    before = signal.signal(signal.SIGTERM, _end)
    try:
        data = load(source.name, source.directory, say=lambda message: None)  # the first said it
        return train(job, data, tell, say, shard)
    except BaseException:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, while it is said why
        raise
    finally:
        if signal.getsignal(signal.SIGTERM) is _end:
            signal.signal(signal.SIGTERM, before)


def _end(*_: object) -> NoReturn:
    raise EndedError


def _explain(error: Exception) -> str | None:
    """What the user should read; None if the program is wrong."""
    if isinstance(error, EXPECTED):
        return str(error)
    lost = isinstance(error, RuntimeError) and "gloo" in str(error)
    return _ENDED if lost or isinstance(error, (EndedError, dist.DistError)) else None


def _was_said(store: Store | None) -> bool:
    """Whether another process has told the user why the job ends; if not, this one should."""
    if store is None:
        return False
    try:
        store.wait(["said"], _PATIENCE)
        return True
    except RuntimeError:  # the first process is dead
        try:
            return bool(store.add("claimed", 1) > 1)
        except RuntimeError:  # so is torchrun
            return False


def _not_first() -> tuple[Job, Source]:
    raise AssertionError("the first process decides")


def _end_with_torchrun(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)

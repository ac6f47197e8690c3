"""`hardgate reproduce`: which rows, how many at a time; at the end the table and the report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console

from hardgate_lab.reproduce import torchrun
from hardgate_lab.reproduce.display import Plain, Watch
from hardgate_lab.reproduce.network import check
from hardgate_lab.reproduce.next_steps import next_steps
from hardgate_lab.reproduce.report.runs import RunsError
from hardgate_lab.reproduce.settings import PAPER_ROWS, settings_of
from hardgate_lab.reproduce.table import rich_table
from hardgate_lab.reproduce.train import Job
from hardgate_lab.reproduce.workers import Source, run_jobs
from hardgate_lab.rig.checkpoint import SaveError, dump, write
from hardgate_lab.rig.images import DataError, load
from hardgate_lab.rig.lock import LockedError, lock

REFUSALS = (SaveError, DataError, LockedError, RunsError)  # the message says what to do

# The cores this process may use; where there are many, every row of the table at once.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
DEFAULT_JOBS = min(CORES, len(PAPER_ROWS))

# Seconds per epoch, roughly: slow rows start first, so that the cores finish together.
_COST = {
    "stochastic_times_smooth": 24,
    "straight_through": 22,
    "best": 22,
    "stochastic_binary": 18,
    "noisy_rectifier": 12,
    "rectifier": 12,
    "dense": 10,
    "sigmoid_noise": 6,
    "sigmoid": 6,
}


def plan(
    rows: Sequence[str],
    seeds: Sequence[int],
    preset: str,
    changes: Mapping[str, Any],
    out: Path,
    dataset: str,
    jobs: int,
    tensorboard: bool = False,
) -> list[Job]:
    """The jobs, in the order of the table; raises `SettingsError` before anything runs."""
    threads = max(1, CORES // jobs)
    planned = []
    for row in dict.fromkeys(rows or PAPER_ROWS):
        settings = settings_of(row, preset, changes)
        check(settings)
        for seed in seeds:
            folder = out / f"{dataset}-{preset}" / f"{row}-{seed}"
            planned.append(Job(row, seed, settings, preset, folder, threads, tensorboard))
    return planned


def discard(jobs: Sequence[Job]) -> None:
    """`--fresh`: remove what earlier runs of these jobs left, or nothing if one is in use."""
    old = [job.folder for job in jobs if job.folder.exists()]
    with ExitStack() as stack:
        for folder in old:
            stack.enter_context(lock(folder))
        for folder in old:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise SaveError(
                    f"cannot remove {folder}: {error.strerror}. Choose another --out."
                ) from error


def writable(path: Path) -> None:
    """Raise now, not after hours, if a file could not be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaveError(f"cannot make the folder of {path}: {error.strerror}.") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SaveError(f"cannot write {path}: it is a folder, or not writable.")


def reproduce(
    jobs: Sequence[Job],
    width: int,
    source: Source,
    json_file: Path | None,
    console: Console,
    fresh: bool = False,
) -> int:
    """Train the jobs, print the table, and write the report on all that is in their `--out`.

    Args:
        jobs: from `plan`.
        width: how many at a time.
        source: of the data.
        json_file: where the list of records goes, or None.
        console: to print on.
        fresh: whether to remove first, once the data are there, what the jobs left before.

    Returns:
        the exit code: 0, 1 if a row failed, 130 after Ctrl-C.
    """
    load(source.name, source.directory, say=lambda message: _print(console, message))
    if fresh:
        discard(jobs)
    shared, order = torchrun.launched(), sorted(jobs, key=_cost, reverse=True)
    interactive = console.is_interactive and not shared
    display = (Watch if interactive else Plain)(console, order, 1 if shared else width, _cost)
    stopped = False
    try:
        with display if isinstance(display, Watch) else nullcontext():
            if shared:
                torchrun.train_together(jobs[0], source, display)
            else:
                run_jobs(order, width, source, display)
    except KeyboardInterrupt:
        stopped = True
    records = [display.records[job] for job in jobs if job in display.records]
    if records:
        console.print(rich_table(records))
    for job, message in display.failures.items():
        _print(console, f"{job.row}, seed {job.seed}, failed: {message}", style="red")
    where = sorted({str(job.folder.parent) for job in jobs})
    if json_file is not None and records:
        _write_list(json_file, records)
        where.append(str(json_file))
    if stopped:
        command = "The same command without --fresh" if fresh else "The same command"
        _print(console, f"Stopped. {command} carries on from each row's last checkpoint.")
    _print(console, f"Records: {', '.join(where)}")
    if records and not stopped:
        from hardgate_lab.reproduce.report.report_command import make_report

        out = jobs[0].folder.parent.parent
        make_report(out, None, console)
        _print(console, next_steps(records, out))
    return 130 if stopped else int(bool(display.failures))


def _write_list(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    content = "[\n{}\n]\n".format(",\n".join(map(dump, records))).encode()
    if not path.is_symlink() and (path.is_file() or not path.exists()):
        return write(path, content)
    try:
        path.write_bytes(content)  # a link, a pipe or a device, which is not ours to replace
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror}. Choose another --json.") from error


def _cost(job: Job) -> int:
    passes = 2 if job.settings.rho else 1
    return _COST[job.row] * job.settings.epochs * passes


def _print(console: Console, message: str, style: str | None = None) -> None:
    console.print(message, style=style, highlight=False, soft_wrap=True, markup=False)

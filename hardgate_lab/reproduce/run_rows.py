"""`hardgate reproduce`: plan the rows, train them side by side, print the table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hardgate_lab.reproduce import torchrun
from hardgate_lab.reproduce.network import check
from hardgate_lab.reproduce.row_display import RowLines, RowTable
from hardgate_lab.reproduce.settings import PAPER_ROWS, settings_of
from hardgate_lab.reproduce.table import rich_table
from hardgate_lab.reproduce.train import Job
from hardgate_lab.reproduce.workers import Source, run_jobs
from hardgate_lab.rig.checkpoint import SaveError, dump, write
from hardgate_lab.rig.lock import remove
from hardgate_lab.rig.mnist import load
from hardgate_lab.rig.progress import say

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
    """The jobs, in the order of the table; raises `SettingsError` if one cannot be run."""
    threads = max(1, CORES // jobs)
    planned = []
    for row in dict.fromkeys(rows or PAPER_ROWS):
        settings = settings_of(row, preset, changes)
        check(settings)
        for seed in seeds:
            folder = out / f"{dataset}-{preset}" / f"{row}-{seed}"
            planned.append(Job(row, seed, settings, preset, folder, threads, tensorboard))
    return planned


def reproduce(
    jobs: Sequence[Job],
    width: int,
    source: Source,
    json_file: Path | None,
    console: Console,
    fresh: bool = False,
) -> tuple[int, list[dict[str, Any]]]:
    """Train the jobs and print the table.

    Args:
        jobs: from `plan`.
        width: how many at a time.
        source: of the data.
        json_file: where the list of records goes, or None.
        console: to print on.
        fresh: first remove what earlier runs of these jobs left; after the data are loaded.

    Returns:
        the exit code, 0, 1 if a row failed, 130 after Ctrl-C; and the records to report on: those
        of the finished rows, none after Ctrl-C.
    """
    load(source.name, source.directory, say=lambda message: say(console, message))
    if fresh:
        remove(job.folder for job in jobs)
    shared, order = torchrun.launched(), sorted(jobs, key=_cost, reverse=True)
    live = console.is_interactive and not shared
    display = (RowTable if live else RowLines)(console, order, 1 if shared else width, _cost)
    stopped = False
    try:
        with display.shown():
            if shared:
                torchrun.lead(jobs[0], source, display)
            else:
                run_jobs(order, width, source, display)
    except KeyboardInterrupt:
        stopped = True
    records = [display.records[job] for job in jobs if job in display.records]
    if records:
        console.print(rich_table(records))
    for job, message in display.failures.items():
        say(console, f"{job.row}, seed {job.seed}, failed: {message}", style="red")
    where = sorted({str(job.folder.parent) for job in jobs})
    if json_file is not None and records:
        _write_list(json_file, records)
        where.append(str(json_file))
    if stopped:
        command = "The same command without --fresh" if fresh else "The same command"
        say(console, f"Stopped. {command} carries on from each row's last checkpoint.")
    say(console, f"Records: {', '.join(where)}")
    return 130 if stopped else int(bool(display.failures)), [] if stopped else records


def _write_list(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    content = "[\n{}\n]\n".format(",\n".join(map(dump, records))).encode()
    if not path.is_symlink() and (path.is_file() or not path.exists()):
        return write(path, content)
    try:
        path.write_bytes(content)  # a link, a pipe or a device: written to, not replaced
    except OSError as error:
        raise SaveError(f"cannot write {path}: {error.strerror}. Choose another --json.") from error


def _cost(job: Job) -> int:
    passes = 2 if job.settings.rho else 1
    return _COST[job.row] * job.settings.epochs * passes

"""A small problem that every row can learn, and runs of a second on it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hardgate_lab.reproduce.settings import settings_of
from hardgate_lab.reproduce.train import Job, train
from hardgate_lab.reproduce.training_state import TrainingState
from hardgate_lab.rig.mnist import Dataset, Split
from tests.support.tiny_mnist import header

SMALL = {
    "hidden": 40, "bottleneck": 8, "batch": 16, "epochs": 3, "decay_start": 1, "lr": 0.1,
    "average": 0.0,
}  # fmt: skip


def pixels(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten fixed patterns under noise, as bytes, and their classes."""
    patterns = np.random.default_rng(0).integers(0, 256, (10, 784))
    random = np.random.default_rng(seed)
    y = random.integers(0, 10, n)
    x = (patterns[y] * (random.random((n, 784)) < 0.3)).astype(np.uint8)
    return x, y.astype(np.uint8)


def split(n: int, seed: int) -> Split:
    x, y = pixels(n, seed)
    return Split(torch.from_numpy(x).float() / 255, torch.from_numpy(y).long())


def dataset() -> Dataset:
    return Dataset("mnist", False, split(200, 1), split(100, 2), split(100, 3))


def files(folder: Path, n: int = 240) -> Path:
    """The same problem as four IDX files."""
    folder.mkdir(parents=True)
    for part, count, seed in (("train", n, 1), ("t10k", 60, 2)):
        x, y = pixels(count, seed)
        images, labels = header(count, 28, 28) + x.tobytes(), header(count) + y.tobytes()
        (folder / f"{part}-images-idx3-ubyte").write_bytes(images)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return folder


def job(
    folder: Path,
    row: str = "straight_through",
    seed: int = 0,
    tensorboard: bool = False,
    **changes: Any,
) -> Job:
    settings = settings_of(row, "quick", {**SMALL, **changes})
    return Job(row, seed, settings, "quick", folder, tensorboard=tensorboard)


def run(job: Job, data: Dataset | None = None, said: list[str] | None = None) -> dict[str, Any]:
    return train(job, data or dataset(), lambda _: None, (said if said is not None else []).append)


class InterruptError(Exception):
    """Stands in for a kill: nothing of the run catches it."""


def interrupted(job: Job, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """TrainingState a job, and stop it after so many steps."""
    step, done = TrainingState.step, 0

    def counted(self: TrainingState) -> None:
        nonlocal done
        if done == steps:
            raise InterruptError
        done += 1
        step(self)

    with monkeypatch.context() as patch, pytest.raises(InterruptError):  # noqa: PT012
        patch.setattr(TrainingState, "step", counted)
        run(job)


def command(*args: str, data: Path, out: Path, **changes: Any) -> list[str]:
    """`hardgate reproduce` on small networks."""
    settings = {**SMALL, **changes}
    given = [f"--set={name}={value}" for name, value in settings.items()]
    main = [sys.executable, "-m", "hardgate", "reproduce"]
    return [*main, f"--data={data}", f"--out={out}", *given, *args]


@contextmanager
def start(line: list[str]) -> Iterator[subprocess.Popen[str]]:
    """The command in a process group of its own, as from a shell; gone when the block ends."""
    process = subprocess.Popen(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "100"},
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def finish(line: list[str]) -> tuple[int, str]:
    """The exit code and the output of a command that ends by itself."""
    with start(line) as process:
        output, _ = process.communicate(timeout=200)
    return process.returncode, output


def same_ends(one: Path, other: Path) -> None:
    """Weights bit for bit, and the records but for the clock."""
    a, b = load_file(one / "weights.safetensors"), load_file(other / "weights.safetensors")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert timeless(one / "record.json") == timeless(other / "record.json")


def timeless(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    del content["seconds"], content["curves"]["seconds"]
    return content

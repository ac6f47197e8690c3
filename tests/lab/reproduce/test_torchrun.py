"""Several processes under `torchrun` train a row as one does, and what ends them is survived."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from hardgate_lab.cli import app
from hardgate_lab.reproduce.data_parallel import Shard
from hardgate_lab.reproduce.row_record import check_same_row
from hardgate_lab.reproduce.torchrun import _ENDED
from hardgate_lab.rig.mnist import load
from hardgate_lab.rig.same_run import MismatchError
from tests.support import torchrun_rows
from tests.support.tiny_runs import command, files, finish, job, run, start

NEAR = 2e-5  # of weights after some forty steps in fp32, whose sums have another order


def torchrun(*line: str, processes: int = 2) -> list[str]:
    """`torchrun`, on a port of its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, f"--nproc-per-node={processes}", *line]


def reproduce(*args: str, data: Path, out: Path, processes: int = 2, **changes: Any) -> list[str]:
    _, *line = command(*args, data=data, out=out, **changes)
    return torchrun(*line, processes=processes)


def difference(one: Path, other: Path) -> float:
    """The largest of all weights and states, of those beyond 1 in proportion."""
    a, b = load_file(one / "weights.safetensors"), load_file(other / "weights.safetensors")
    assert a.keys() == b.keys()
    parts = [(a[name] - b[name]) / a[name].abs().clamp(min=1) for name in a if a[name].numel()]
    return max(part.abs().max().item() for part in parts)


def same_but_for_rounding(one: Path, other: Path) -> None:
    """The weights of the best epoch, and all curves but the clock's."""
    assert difference(one, other) < NEAR
    first, second = (json.loads((path / "record.json").read_text()) for path in (one, other))
    for name in set(first["curves"]) - {"seconds"}:
        assert second["curves"][name] == pytest.approx(first["curves"][name], rel=2e-3), name
    for name in ("valid_error", "test_error", "best_epoch", "density_test", "row", "settings"):
        assert second[name] == first[name], name


# The shares


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("n", [1, 2, 5, 14, 32])
def test_every_row_of_a_batch_belongs_to_one_process(n: int, world: int) -> None:
    shares = [Shard(rank, world) for rank in range(world)]
    index = torch.randperm(n)
    parts = [share.take(index) for share in shares]
    assert torch.equal(torch.cat(parts), index)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert sum(share.weight() for share in shares) == pytest.approx(world)
    if world == 1:
        assert shares[0].weight() == 1.0


# Two processes are one


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes make of all rows."""
    folder = tmp_path_factory.mktemp("together")
    code, output = finish(torchrun("-m", "tests.support.torchrun_rows", str(folder)))
    assert code == 0, output
    return folder


def alone(name: str, folder: Path) -> Path:
    row, changes = torchrun_rows.ROWS[name]
    run(job(folder / name, row, **changes))
    return folder / name


@pytest.mark.parametrize("name", torchrun_rows.ROWS)
def test_two_processes_are_one(name: str, together: Path, tmp_path: Path) -> None:
    same_but_for_rounding(alone(name, tmp_path), together / name)
    assert json.loads((together / name / "record.json").read_text())["processes"] == 2


def test_without_synchronise_they_are_not(together: Path, tmp_path: Path) -> None:
    assert difference(alone(torchrun_rows.APART, tmp_path), together / "apart") > 100 * NEAR


# The command


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return files(tmp_path_factory.mktemp("data") / "idx")


def whole(out: Path, data: Path, row: str, **changes: Any) -> Path:
    """The same run in this process, from its checkpoint if there is one."""
    folder = out / "mnist-quick" / f"{row}-0"
    run(job(folder, row, **changes), load("mnist", data, say=lambda message: None))
    return folder


def test_only_the_first_process_speaks_and_writes(tmp_path: Path, data: Path) -> None:
    rows = tmp_path / "records.json"
    args = ("--row=straight_through", f"--json={rows}", "--tensorboard")
    code, output = finish(reproduce(*args, data=data, out=tmp_path / "two", batch=15))
    assert code == 0, output
    for once in ("epoch 3/3", "done: valid", "not the real files", "report.html"):
        assert output.count(once) == 1, output
    assert "Warning" not in output
    folder = tmp_path / "two" / "mnist-quick" / "straight_through-0"
    assert {path.name for path in folder.iterdir()} == {
        *("record.json", "weights.safetensors", "lock", "tensorboard"),
    }
    assert json.loads(rows.read_text())[0]["processes"] == 2
    same_but_for_rounding(whole(tmp_path / "one", data, "straight_through", batch=15), folder)


def test_no_process_waits_for_pythons_shutdown(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There gloo's threads, which nothing ends, aborted a finished job now and then."""
    note = "import atexit, os, sys\n"
    note += "rank, here = os.environ.get('RANK', 'launcher'), os.path.dirname(__file__)\n"
    note += "atexit.register(lambda: open(os.path.join(here, rank), 'w').close())\n"
    (tmp_path / "sitecustomize.py").write_text(note)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    code, output = finish(reproduce("--row=sigmoid", data=data, out=tmp_path / "two"))
    assert code == 0, output
    assert "report.html" in output
    assert (tmp_path / "launcher").exists(), "the control: an ordinary process does"
    assert not (tmp_path / "0").exists()
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--row=sigmoid", "--row=dense"], "expected one row with one seed.* got 2 runs"),
        (["--row=sigmoid", "--seeds=3"], "got 3 runs"),
        ([], "got 7 runs"),
        (["--row=sigmoid", "--jobs=2"], "no --jobs; got --jobs 2"),
        (["--row=sigmoid", "--set=batch=1"], "at most 1 processes.* got 2"),
    ],
)
def test_what_processes_cannot_do_together(args: list[str], words: str) -> None:
    given = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    result = CliRunner().invoke(app, ["reproduce", *args], env={**given, "COLUMNS": "200"})
    assert result.exit_code == 2
    assert re.search(words, " ".join(result.output.replace("│", " ").split())), result.output


def test_threads_count_for_one_process_alone(tmp_path: Path) -> None:
    alone = {"threads": 1, "processes": 1, "settings": {}}
    check_same_row({**alone, "processes": 2}, {**alone, "threads": 2}, tmp_path)
    check_same_row(alone, {**alone, "threads": 2, "processes": 4}, tmp_path)
    check_same_row({"threads": 1, "settings": {}}, alone, tmp_path)  # of an earlier version
    with pytest.raises(MismatchError, match="threads 1 → 2"):
        check_same_row(alone, {**alone, "threads": 2}, tmp_path)


# What ends a job

LONG: dict[str, Any] = {"epochs": 40, "batch": 15, "momentum": 0.5, "average": 0.9}
ROW = "stochastic_binary"


def workers(launcher: int) -> dict[int, int]:
    """The processes of a torchrun: process ids by rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            given = (path / "environ").read_bytes().split(b"\0")
        except OSError:  # gone, or not ours
            continue
        if parent == launcher:
            ranks = [int(each[5:]) for each in given if each.startswith(b"RANK=")]
            found.update({rank: int(path.name) for rank in ranks})
    return found


def killed(line: list[str], rank: int, how: signal.Signals = signal.SIGKILL) -> tuple[int, str]:
    """Start the command, end one of its processes after two epochs; exit code and output."""
    with start(line) as process:
        assert process.stdout is not None
        before = []
        for text in process.stdout:
            before.append(text)
            if "epoch 2/" in text:
                break
        os.kill(workers(process.pid).get(rank, process.pid), how)
        output, _ = process.communicate(timeout=60)
    return process.returncode, "".join(before) + output


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_ends_the_job_and_the_run_carries_on(
    rank: int, tmp_path: Path, data: Path
) -> None:
    line = reproduce(f"--row={ROW}", data=data, out=tmp_path / "parts", **LONG)
    code, output = killed(line, rank)
    assert code not in (0, None), output
    assert output.count(_ENDED) in (1, 2), output  # the first also lists failures at the end
    assert "an error of the program" not in output
    assert list((tmp_path / "parts").rglob("epoch-*.json"))
    same_but_for_rounding(
        whole(tmp_path / "one", data, ROW, **LONG), whole(tmp_path / "parts", data, ROW, **LONG)
    )


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_one_process_then_three(tmp_path: Path, data: Path) -> None:
    with start(command(f"--row={ROW}", data=data, out=tmp_path / "parts", **LONG)) as process:
        assert process.stdout is not None
        assert any("epoch 2/" in text for text in process.stdout)
        process.kill()
    time.sleep(2)  # its worker notices, and frees the lock
    line = reproduce(f"--row={ROW}", data=data, out=tmp_path / "parts", processes=3, **LONG)
    code, output = finish(line)
    assert code == 0, output
    parts = tmp_path / "parts" / "mnist-quick" / f"{ROW}-0"
    assert json.loads((parts / "record.json").read_text())["processes"] == 3
    same_but_for_rounding(whole(tmp_path / "one", data, ROW, **LONG), parts)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_processes_end_with_torchrun(how: signal.Signals, tmp_path: Path, data: Path) -> None:
    line = reproduce("--row=rectifier", data=data, out=tmp_path, epochs=100_000)
    with start(line) as process:
        assert process.stdout is not None
        assert any("epoch 2/" in text for text in process.stdout)
        ours = workers(process.pid)
        assert sorted(ours) == [0, 1]
        process.send_signal(how)
        output, _ = process.communicate(timeout=60)
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in ours.values()):
        assert time.monotonic() < until, "orphans"
        time.sleep(0.1)
    if how is signal.SIGINT:
        assert "The same command carries on" in output


@pytest.mark.slow
def test_a_refusal_is_said_once(tmp_path: Path, data: Path) -> None:
    code, output = finish(reproduce("--row=nope", data=data, out=tmp_path))
    assert code != 0
    assert output.count("'nope' is not a row") == 1, output
    out = tmp_path / "mnist-quick"
    out.mkdir(parents=True)
    (out / "sigmoid-0").touch()  # a file where the folder goes
    code, output = finish(reproduce("--row=sigmoid", data=data, out=tmp_path))
    assert code != 0
    assert output.count("sigmoid: failed: cannot write in") == 1, output
    assert _ENDED not in output


@pytest.mark.slow
def test_a_single_process_of_torchrun_is_a_process_alone(tmp_path: Path, data: Path) -> None:
    code, output = finish(
        reproduce("--row=rectifier", data=data, out=tmp_path / "two", processes=1)
    )
    assert code == 0, output
    folder = tmp_path / "two" / "mnist-quick" / "rectifier-0"
    assert difference(whole(tmp_path / "one", data, "rectifier"), folder) == 0

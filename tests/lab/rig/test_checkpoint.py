"""Files that survive: whole or not at all, checked, locked."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from hardgate_lab.rig import checkpoint
from hardgate_lab.rig.checkpoint import SaveError
from hardgate_lab.rig.lock import LockedError, lock


def tensors(epoch: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(epoch)
    return {
        "weight": torch.randn(5, 7, generator=generator),
        "empty": torch.zeros(0),
        "scalar": torch.tensor(-0.0),
        "random": torch.randint(256, (20,), dtype=torch.uint8, generator=generator),
    }


def saved(folder: Path, *epochs: int) -> None:
    for epoch in epochs:
        checkpoint.save(folder, epoch, tensors(epoch), {"epoch": epoch, "curve": [0.1, 1e-9]})


def loaded(folder: Path, said: list[str]) -> int:
    """The epoch that is loaded, after a check that it is whole."""
    found = checkpoint.load(folder, said.append)
    if found is None:
        return 0
    content, state = found
    expected = tensors(state["epoch"])
    assert content.keys() == expected.keys()
    assert all(torch.equal(content[name], expected[name]) for name in expected)
    assert state == {"epoch": state["epoch"], "curve": [0.1, 1e-9]}
    return int(state["epoch"])


def test_the_newest_is_loaded_and_the_one_before_is_kept(tmp_path: Path) -> None:
    said: list[str] = []
    assert loaded(tmp_path, said) == 0
    saved(tmp_path, 1, 2, 3)
    assert loaded(tmp_path, said) == 3
    assert said == []
    names = {f"epoch-000{epoch}.{kind}" for epoch in (2, 3) for kind in ("json", "safetensors")}
    assert {path.name for path in tmp_path.iterdir()} == names
    checkpoint.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["json", "safetensors"])
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_one_is_seen_and_the_one_before_is_used(
    tmp_path: Path, kind: str, seed: int
) -> None:
    said: list[str] = []
    saved(tmp_path, 1, 2)
    path, chance = tmp_path / f"epoch-0002.{kind}", random.Random(seed)
    content = bytearray(path.read_bytes())
    if seed % 3 == 0:
        del content[chance.randrange(len(content)) :]
    else:
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    if loaded(tmp_path, said) == 1:  # else the bit was in the white space of the JSON
        assert "epoch-0002 is damaged" in said[0]
    else:
        assert kind == "json"


def test_half_a_pair_does_not_count(tmp_path: Path) -> None:
    said: list[str] = []
    saved(tmp_path, 1, 2)
    (tmp_path / "epoch-0002.json").unlink()  # killed between the two files
    (tmp_path / "epoch-0003.safetensors.tmp").write_bytes(b"half")
    assert loaded(tmp_path, said) == 1
    saved(tmp_path, 2)
    (tmp_path / "epoch-0002.safetensors").unlink()
    assert loaded(tmp_path, said) == 1
    assert "No such file" in said[0]
    checkpoint.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_all_damaged_is_none_at_all(tmp_path: Path) -> None:
    said: list[str] = []
    saved(tmp_path, 1, 2)
    (tmp_path / "epoch-0001.json").write_text("[]")
    (tmp_path / "epoch-0002.json").write_text('{"sha256": 3}')
    assert checkpoint.load(tmp_path, said.append) is None
    assert len(said) == 2


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    saved(tmp_path, 1, 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(SaveError, match=r"cannot write .*epoch-0003.*File too large"):
            saved(tmp_path, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert loaded(tmp_path, said) == 2
    assert not list(tmp_path.glob("*.tmp"))
    assert said == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_call_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "record.json"
    checkpoint.write_json(path, {"a": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(SaveError, match="No space left on device"):
        checkpoint.write_json(path, {"a": 2})
    assert path.read_text() == '{\n"a": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SaveError, match=r"cannot write in .*--out"), lock(tmp_path / "file" / "x"):
        pass


def test_a_lock_on_a_full_disk_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with (
        lock(tmp_path),
        pytest.raises(LockedError, match="in use by another process"),
        lock(tmp_path, patience=0.0),
    ):
        pass


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--fresh` removes the folder while another process waits for the lock in it."""
    folder, flock = tmp_path / "run", fcntl.flock

    def removed(handle: int, how: int) -> None:
        flock(handle, how)
        monkeypatch.undo()
        shutil.rmtree(folder)

    monkeypatch.setattr(fcntl, "flock", removed)
    with (
        lock(folder),
        pytest.raises(LockedError, match=f"in use by process {os.getpid()}"),
        lock(folder, patience=0.0),
    ):
        pass


HOLD = """
import sys, time
from pathlib import Path
from hardgate_lab.rig.lock import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_process_is_told_who_holds_the_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(LockedError, match=rf"in use by process {holder.pid} on .*--out"),
            lock(tmp_path, patience=0.2),
        ):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        start = time.monotonic()
        with lock(tmp_path):  # a dead process does not block
            pass
        assert time.monotonic() - start < 4

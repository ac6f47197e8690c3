"""MNIST by name: where it is looked for, what is believed, and what a bad source can do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hardgate_lab.rig import download
from hardgate_lab.rig import mnist as data
from hardgate_lab.rig.download import Mirror
from hardgate_lab.rig.idx import DataError
from hardgate_lab.rig.mnist import load
from tests.support.paths import ROOT
from tests.support.tiny_mnist import CONTENT, NAMES, TINY, Server, fill, header, images, labels


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's cache or the network."""
    monkeypatch.delenv("HARDGATE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "SOURCES", ())
    return tmp_path / "cache" / "hardgate" / "mnist"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny files count as MNIST."""
    monkeypatch.setattr(download, "FILES", TINY)


# From a directory


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize("gz", ["", ".gz"])
def test_a_directory(tmp_path: Path, said: list[str], dot: str, gz: str) -> None:
    result = load("mnist", fill(tmp_path / "own", dot, gz), said.append)
    parts = [result.train, result.valid, result.test]
    assert [part.x.shape for part in parts] == [(10, 784), (2, 784), (5, 784)]
    assert all(part.x.dtype == torch.float32 and part.y.dtype == torch.int64 for part in parts)
    x = torch.cat([result.train.x, result.valid.x])
    assert torch.equal(x.flatten(), (torch.arange(12 * 784) % 256).float() / 255)
    assert x.min() == 0
    assert x.max() == 1
    assert result.train.y.tolist() == list(range(10))
    assert result.valid.y.tolist() == [0, 1]
    assert result.test.y.tolist() == [0, 1, 2, 3, 4]
    assert not result.canonical
    assert len(said) == 4
    assert "train-images" in said[0]
    assert "not MNIST's canonical file" in said[0]


@pytest.mark.usefixtures("tiny")
def test_a_directory_with_the_canonical_files(tmp_path: Path, said: list[str]) -> None:
    assert load("mnist", fill(tmp_path / "own"), said.append).canonical
    assert not said
    other = fill(tmp_path / "other", t10k_labels=labels(5)[:-1] + b"\7")
    assert not load("mnist", other, said.append).canonical
    assert [line.split(":")[0] for line in said] == [str(other / NAMES[3])]


def test_validation_is_the_last_10_000_of_60_000(tmp_path: Path, said: list[str]) -> None:
    for n in (60_000, 60_012):  # and no more of a larger file
        raw = header(n, 28, 28) + bytes(n * 784)
        own = fill(tmp_path / str(n), train_images=raw, train_labels=labels(n))
        result = load("mnist", own, said.append)
        assert (len(result.train.y), len(result.valid.y)) == (n - 10_000, 10_000)
        assert result.valid.x.shape == (10_000, 784)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"train_labels": labels(11)}, "train-labels.*a label for each of the 12 images.*got 11"),
        ({"t10k_labels": labels(6)}, "t10k-labels.*a label for each of the 5 images.*got 6"),
        ({"train_images": images(1), "train_labels": labels(1)}, "at least 2 images.*got 1"),
        ({"t10k_images": images(5)[:-1]}, "t10k-images.*expected 3920 bytes.*got 3919"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, changed: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load("mnist", fill(tmp_path / "own", **changed))


def test_files_that_are_missing(tmp_path: Path) -> None:
    own = fill(tmp_path / "own")
    (own / NAMES[2]).unlink()
    (own / NAMES[2]).mkdir()
    with pytest.raises(DataError, match=r"got no t10k-images-idx3-ubyte. Write --data DIR"):
        load("mnist", own)
    with pytest.raises(DataError, match=r"nowhere: expected the four files.*got no train-images"):
        load("mnist", tmp_path / "nowhere")
    with pytest.raises(DataError, match="of mnist, fashion-mnist, got 'cifar'"):
        load("cifar")


def test_fashion_mnist(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    words = "in .*fashion-mnist, got none. Write --dataset fashion-mnist --data DIR"
    with pytest.raises(DataError, match=words):
        load("fashion-mnist")
    own = fill(tmp_path / "base" / "fashion-mnist")
    assert load("fashion-mnist", own, said.append).name == "fashion-mnist"
    for place in (own, own.parent):
        monkeypatch.setenv("HARDGATE_DATA", str(place))
        assert len(load("fashion-mnist", None, said.append).test.y) == 5
    assert said == [f"fashion-mnist: read from {own}, checked in form only"] * 3
    monkeypatch.setattr(download, "FILES", TINY)
    with pytest.raises(DataError, match="expected fashion-mnist, got MNIST's file"):
        load("fashion-mnist", own)


# By name


def test_places(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    assert data.places("mnist") == [cache]
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", "/home/someone")
    assert data.places("mnist") == [Path("/home/someone/.cache/hardgate/mnist")]
    monkeypatch.setenv("HARDGATE_DATA", "~/data")
    home = Path("/home/someone/data")
    assert data.places("mnist") == [home / "mnist", home]
    monkeypatch.setenv("HARDGATE_DATA", "~nobody-of-that-name/data")
    with pytest.raises(DataError, match="Set HARDGATE_DATA"):
        data.places("mnist")


@pytest.fixture
def mirrored(server: Server, tiny: None, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The tiny MNIST, with this server as its only source."""
    monkeypatch.setattr(download, "SOURCES", (Mirror(server.url),))
    return server


def test_downloads_once(mirrored: Server, cache: Path, said: list[str]) -> None:
    assert load("mnist", None, said.append).canonical
    assert sorted(os.listdir(cache)) == sorted(NAMES)
    assert all((cache / name).read_bytes() == raw for name, raw in CONTENT.items())
    assert f"downloading {mirrored.url}{NAMES[0]}.gz" in said
    assert f"kept in {cache / NAMES[0]}" in said
    assert len(mirrored.requests) == 4
    said.clear()
    assert load("mnist", None, said.append).canonical
    assert len(mirrored.requests) == 4
    assert not said


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda raw: raw[:-1],
    "empty": lambda raw: b"",
    "one bit": lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]),
    "trailing": lambda raw: raw + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", NAMES[:2])
def test_damage_is_named_and_mended(
    mirrored: Server, cache: Path, said: list[str], damage: str, name: str
) -> None:
    fill(cache)
    (cache / name).write_bytes(DAMAGE[damage](CONTENT[name]))
    assert load("mnist", None, said.append).canonical
    assert mirrored.requests == [f"{name}.gz"]
    assert said[0].startswith(f"damaged, not used: {cache / name}: expected")
    assert (cache / name).read_bytes() == CONTENT[name]


def test_hardgate_data(
    mirrored: Server, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (fill(tmp_path / "a", gz=".gz"), fill(tmp_path / "b" / "mnist").parent):
        monkeypatch.setenv("HARDGATE_DATA", str(place))
        assert load("mnist", None, said.append).canonical
    assert not said
    assert not mirrored.requests
    # Another data set lies there: it is not used, and not overwritten either.
    other = fill(tmp_path / "c", train_images=images(12, first=1))
    monkeypatch.setenv("HARDGATE_DATA", str(other))
    assert load("mnist", None, said.append).canonical
    assert (other / NAMES[0]).read_bytes() == images(12, first=1)
    assert os.listdir(other / "mnist") == [NAMES[0]]


# What can happen to a cache


def test_a_cache_that_cannot_be_written(
    mirrored: Server, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARDGATE_DATA", str(tmp_path / "file"))
    assert load("mnist", None, said.append).canonical
    assert sum("could not be written" in line and "HARDGATE_DATA" in line for line in said) == 4


def test_a_full_disk_leaves_nothing_partial(
    mirrored: Server, cache: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert load("mnist", None, said.append).canonical
    assert any("No space left on device" in line for line in said)
    assert os.listdir(cache) == []


CHILD = """
import json, os, sys, time
from hardgate_lab.rig import download
from hardgate_lab.rig.mnist import load
url, how, files = sys.argv[1:]
download.FILES = tuple(download.File(n, s, tuple(item)) for n, s, item in json.loads(files))
download.SOURCES = (download.Mirror(url),)
if how == "pause":
    os.fsync = lambda _: (print("writing", flush=True), time.sleep(60))
sys.stdin.readline()
assert load().canonical
"""


class Child:
    """A process that loads the tiny MNIST on a signal; it may stop for ever in its first write."""

    def __init__(self, url: str, how: str) -> None:
        files = json.dumps([(file.name, file.sha256, file.item) for file in TINY])
        command = [sys.executable, "-c", CHILD, url, how, files]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def go(self) -> None:
        print(file=self.stdin, flush=True)


@pytest.fixture
def children(mirrored: Server) -> Iterator[list[Child]]:
    children = [Child(mirrored.url, how) for how in ("pause", "run")]
    yield children
    for child in children:
        child.process.kill()
        child.process.communicate()


def test_processes_side_by_side_and_a_kill(
    children: list[Child], cache: Path, said: list[str]
) -> None:
    paused, free = children
    paused.go()
    assert paused.stdout.readline() == "writing\n"
    free.go()
    assert load("mnist", None, said.append).canonical
    paused.process.kill()
    assert free.process.wait(60) == 0
    assert all((cache / name).read_bytes() == raw for name, raw in CONTENT.items())
    said.clear()
    assert load("mnist", None, said.append).canonical
    assert not said

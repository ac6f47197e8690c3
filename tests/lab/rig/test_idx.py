"""The IDX reader: what is whole is read; anything else is a `DataError`, at bounded cost."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hardgate_lab.rig import idx
from hardgate_lab.rig.idx import IMAGES, LABELS, DataError, Idx, read, read_path
from tests.support.tiny_mnist import header, images, labels

Item = tuple[int, ...]
PACKINGS: list[Callable[[bytes], bytes]] = [bytes, lambda raw: gzip.compress(raw, 1)]
both = pytest.mark.parametrize("pack", PACKINGS, ids=["raw", "gzip"])


def attempt(content: bytes, item: Item) -> Idx:
    return read(io.BytesIO(content), "there", item)


@both
def test_reads_images_and_labels(pack: Callable[[bytes], bytes]) -> None:
    x = attempt(pack(images(3)), IMAGES)
    assert x.shape == (3, 28, 28)
    assert torch.equal(x.tensor().flatten(), torch.arange(3 * 784) % 256)
    y = attempt(pack(labels(12)), LABELS)
    assert y.tensor().tolist() == [*range(10), 0, 1]
    assert x.sha256 == attempt(images(3), IMAGES).sha256 != y.sha256


WRONG = {
    "empty": (b"", IMAGES, "first bytes 00 00 08 03 of images, got an empty file"),
    "half a magic number": (b"\0\0", IMAGES, "got 00 00"),
    "a web page": (b"<html></html>", LABELS, "00 00 08 01 of labels, got 3c 68 74 6d"),
    "labels for images": (labels(9), IMAGES, "00 00 08 03 of images, got 00 00 08 01"),
    "floats": (b"\0\0\x0d\x01" + labels(9)[4:], LABELS, "got 00 00 0d 01"),
    "half a header": (images(2)[:11], IMAGES, "a header of 16 bytes, got 11"),
    "other images": (header(1, 27, 28) + bytes(756), IMAGES, "images of 28×28, got 27×28"),
    "no pixels": (header(1, 0, 0), IMAGES, "images of 28×28, got 0×0"),
    "no items": (header(0, 28, 28), IMAGES, "items, got 0 in the header"),
    "no labels": (header(0), LABELS, "items, got 0 in the header"),
    "too many": (header(2**32 - 1, 28, 28), IMAGES, "1 to 342392 items, got 4294967295"),
    "huge": (header(*3 * [2**32 - 1]), IMAGES, "28×28, got 4294967295×4294967295"),
    "truncated": (images(2)[:-1], IMAGES, "1568 bytes after the header of shape 2×28×28, got 1567"),
    "only a header": (header(5), LABELS, "5 bytes after the header of shape 5, got 0"),
    "trailing": (labels(5) + b"\0", LABELS, "5 bytes after the header of shape 5, got more"),
    "an eleventh class": (header(3) + b"\x09\x0a\x00", LABELS, "0 to 9, got 10 at index 1"),
    "no class": (header(3) + b"\x00\x0a\xff", LABELS, "labels from 0 to 9, got 255 at index 2"),
}


@both
@pytest.mark.parametrize("case", WRONG)
def test_refuses(case: str, pack: Callable[[bytes], bytes]) -> None:
    content, item, words = WRONG[case]
    with pytest.raises(DataError, match=rf"^there: expected .*{words}.* Give the file"):
        attempt(pack(content), item)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(labels(50))[:-9],
        gzip.compress(labels(50))[:-8] + bytes(8),
        gzip.compress(labels(50)) + b"more",
        b"\x1f\x8b",
        b"\x1f\x8b" + bytes(40),
    ],
    ids=["truncated", "checksum", "trailing", "magic only", "no deflate"],
)
def test_refuses_damaged_gzip(content: bytes) -> None:
    with pytest.raises(DataError, match="there: expected a file that can be read to its end, got"):
        attempt(content, LABELS)


def _peak(content: bytes, item: Item) -> int:
    """The bytes that refusing it takes."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            attempt(content, item)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bombs_are_not_unpacked() -> None:
    bomb = gzip.compress(header(5) + bytes(50 * 2**20), 1)
    assert len(bomb) < 2**18
    assert _peak(bomb, LABELS) < 2**20
    assert _peak(gzip.compress(bomb), LABELS) < 2**20


def test_a_header_that_promises_too_much_allocates_nothing() -> None:
    most = idx.MOST // 784
    for n in (most, most + 1, 2**32 - 1):
        for pack in PACKINGS:
            assert _peak(pack(header(n, 28, 28) + bytes(99)), IMAGES) < 4 * 2**20


def test_paths(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    with pytest.raises(DataError, match="labels: expected a file that can be opened, got “No such"):
        read_path(path, LABELS)
    with pytest.raises(DataError, match="can be opened, got “Is a directory”"):
        read_path(tmp_path, LABELS)
    path.write_bytes(labels(4))
    assert read_path(path, LABELS).where == str(path)
    with path.open("r+b") as stream:
        stream.truncate(idx.MOST + 1)  # sparse: takes no room
    with pytest.raises(DataError, match="at most 268435456 bytes, got 268435457"):
        read_path(path, LABELS)


def _survives(content: bytes, item: Item) -> None:
    try:
        result = attempt(content, item)
    except DataError as error:
        words = str(error)
    else:
        assert result.tensor().shape == result.shape
        return
    assert words.startswith("there: expected ")
    assert ", got " in words


ITEMS = st.sampled_from([IMAGES, LABELS])
fuzz = settings(max_examples=200, deadline=None, database=None)


@fuzz
@given(st.binary(max_size=200), ITEMS, st.sampled_from(PACKINGS), st.booleans())
def test_survives_any_bytes(
    body: bytes, item: Item, pack: Callable[[bytes], bytes], magic: bool
) -> None:
    _survives(pack(bytes((0, 0, 8, 1 + len(item))) + body if magic else body), item)


@st.composite
def _mutants(draw: st.DrawFn) -> tuple[bytes, Item]:
    """A valid file, raw or gzipped, with bytes changed, cut out, put in or cut off."""
    item = draw(ITEMS)
    raw = images(2) if item else labels(30)
    pack, again = draw(st.sampled_from(PACKINGS)), draw(st.sampled_from(PACKINGS))
    content = bytearray(pack(raw))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(content), 40)) | st.integers(0, len(content)))
        cut = draw(st.integers(0, 3) | st.just(len(content)))
        content[at : at + cut] = draw(st.binary(max_size=4))
    return again(bytes(content)), item


@fuzz
@given(_mutants())
def test_survives_mutants(mutant: tuple[bytes, Item]) -> None:
    _survives(*mutant)

"""The IDX format of MNIST's files, raw or gzipped, by a reader that trusts none of it.

    00 00 08 nn | nn dimensions, four bytes each, the first one the items | their bytes

The third byte of the magic number is the type (08: unsigned bytes), the fourth the number of
dimensions: 3 for images, 1 for labels.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import torch
from torch import Tensor

IMAGES = (28, 28)  # the shape of one item
LABELS = ()
CLASSES = 10  # labels are 0 to 9
MOST = 256 * 2**20  # bytes of one file, packed or unpacked: five times MNIST's largest

_CHUNK = 2**20
_GZIP = b"\x1f\x8b"
_ADVICE = "Give the file as it was published, raw or gzipped."


class DataError(ValueError):
    """Data that are not what they should be, or nowhere to be had. The message says what to do."""


@dataclass(frozen=True)
class Idx:
    """One IDX file, read and found right in form.

    Attributes:
        where: the file, for messages.
        shape: items first.
        raw: the file unpacked, header and all.
        sha256: the digest of `raw`.
    """

    where: str
    shape: tuple[int, ...]
    raw: bytearray
    sha256: str

    def tensor(self) -> Tensor:
        """The items as bytes, uint8, of shape `shape`. Shares memory with `raw`."""
        offset = _header_size(len(self.shape))
        return torch.frombuffer(self.raw, dtype=torch.uint8, offset=offset).view(self.shape)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def read(stream: IO[bytes], where: str, item: tuple[int, ...]) -> Idx:
    """Read one IDX file from a stream that can seek.

    No more is unpacked than the header announces and one byte, and never more than `MOST`.

    Args:
        stream: the file, raw or gzipped; its first bytes tell which.
        where: its name in messages.
        item: `IMAGES` or `LABELS`.

    Raises:
        DataError: for anything but a whole IDX file of such items.

    Example:
        >>> import io
        >>> labels = bytes.fromhex("00000801 00000003 07 00 09")
        >>> read(io.BytesIO(labels), "example", LABELS).tensor()
        tensor([7, 0, 9], dtype=torch.uint8)
    """
    try:
        return _read(_unpacked(stream), where, item)
    except (OSError, EOFError, zlib.error) as error:  # what gzip raises, and a failing disk
        raise _error(where, "a file that can be read to its end", f"“{error}”") from error


def read_path(path: Path, item: tuple[int, ...]) -> Idx:
    """Read the IDX file there; see `read`."""
    try:
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MOST:  # gzip would go through any length of padding, byte by byte
                raise _error(str(path), f"at most {MOST} bytes", f"{size}")
            return read(stream, str(path), item)
    except OSError as error:
        raise _error(
            str(path), "a file that can be opened", f"“{error.strerror or error}”"
        ) from error


def _unpacked(stream: IO[bytes]) -> _Stream:
    stream.seek(0)
    packed = stream.read(2) == _GZIP
    stream.seek(0)
    return gzip.GzipFile(fileobj=stream) if packed else stream


def _read(stream: _Stream, where: str, item: tuple[int, ...]) -> Idx:
    header = stream.read(_header_size(1 + len(item)))
    shape = _shape(header, where, item)
    size = math.prod(shape)
    raw = bytearray(header)
    # One byte more than is due shows what trails, and lets gzip reach and check its checksum.
    while (left := len(header) + size + 1 - len(raw)) and (chunk := stream.read(min(left, _CHUNK))):
        raw += chunk
    got = len(raw) - len(header)
    if got != size:
        amount = "more" if got > size else f"{got}"
        raise _error(where, f"{size} bytes after the header of shape {_by(shape)}", amount)
    content = Idx(where, shape, raw, hashlib.sha256(raw).hexdigest())
    if item == LABELS:
        _check_labels(content)
    return content


def _shape(header: bytes, where: str, item: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a header announces, if it is one of items of this shape."""
    ndim = 1 + len(item)
    magic = bytes((0, 0, 8, ndim))
    if header[:4] != magic:
        first = f"the first bytes {magic.hex(' ')} of {'images' if item else 'labels'}"
        raise _error(where, first, header[:4].hex(" ") or "an empty file")
    if len(header) < _header_size(ndim):
        raise _error(where, f"a header of {_header_size(ndim)} bytes", f"{len(header)}")
    shape: tuple[int, ...] = struct.unpack(f">{ndim}I", header[4:])
    if shape[1:] != item:
        raise _error(where, f"images of {_by(item)}", _by(shape[1:]))
    if not 0 < math.prod(shape) <= MOST:
        raise _error(where, f"1 to {MOST // math.prod(item)} items", f"{shape[0]} in the header")
    return shape


def _check_labels(content: Idx) -> None:
    y = content.tensor()
    worst = int(y.argmax())
    if y[worst] >= CLASSES:
        raise _error(content.where, "labels from 0 to 9", f"{int(y[worst])} at index {worst}")


def _header_size(ndim: int) -> int:
    return 4 + 4 * ndim


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(str(n) for n in shape)


def _error(where: str, expected: str, got: str) -> DataError:
    return DataError(f"{where}: expected {expected}, got {got}. {_ADVICE}")

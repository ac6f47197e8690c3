"""Whether a folder holds the run that is asked for, or another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class MismatchError(ValueError):
    """A folder holds a run with other settings."""


def check_same(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
    """Refuse to continue a run that was started in another way, and say what differs.

    Args:
        old: what was saved; its "settings" are compared one by one.
        new: what was asked for, likewise. What only `old` has does not count.
        folder: of the run.

    Raises:
        MismatchError: names every difference, and the options that help.
    """
    before, after = _flat(old), _flat(new)
    different = [key for key in after if before.get(key) != after[key]]
    if different:
        changes = ", ".join(f"{key} {before.get(key)!r} → {after[key]!r}" for key in different)
        same_jobs = "To continue it, give the same --jobs: it sets the threads of each run. "
        raise MismatchError(
            f"{folder} holds a run with other settings (there → here): {changes}. "
            f"{same_jobs if 'threads' in different else ''}"
            "Type --fresh to start it anew, or another --out to keep both."
        )


def _flat(nested: Mapping[str, Any]) -> dict[str, Any]:
    return {**nested, **nested.get("settings", {}), "settings": None}

"""How much more memory a process holds while something runs, as the kernel counts it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import statistics
from pathlib import Path

from hardgate_lab.rig.timing import Call

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def peak(run: Call, repeats: int = 5) -> float | None:
    """Megabytes by which one run raises the memory of this process at most; None if unknown.

    The peak of the resident set (Linux: VmHWM, set back by writing 5 to clear_refs) less what was
    resident before, the median of some runs. Freed memory that the allocator keeps is given back
    before each: it would hide what the run needs. Linux counts to some hundred kilobytes.

    Args:
        run: what to measure; it runs once more before, to compile and to load.
        repeats: how many runs.

    Example:
        >>> megabytes = peak(lambda: bytearray(1 << 26))
        >>> megabytes is None or megabytes < 80
        True
    """
    run()
    samples = [_once(run) for _ in range(repeats)]
    known = [sample for sample in samples if sample is not None]
    return statistics.median(known) if known else None


def peaks(runs: dict[str, Call]) -> dict[str, float]:
    """`peak` of each, without those that are not known."""
    found = {name: peak(run) for name, run in runs.items()}
    return {name: megabytes for name, megabytes in found.items() if megabytes is not None}


def _once(run: Call) -> float | None:
    gc.collect()
    _trim()
    try:
        _CLEAR.write_text("5")
        before = _kilobytes("VmRSS")
        run()
        return max(0, _kilobytes("VmHWM") - before) / 1024
    except (OSError, LookupError):  # not Linux, or not allowed
        return None


def _trim() -> None:
    """Give what malloc keeps back to the system, where it can (glibc)."""
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _kilobytes(key: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1])
    raise LookupError(key)

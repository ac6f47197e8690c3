"""Large tensors that come back from the allocator instead of from the kernel."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


def reuse_memory(most: int = 1 << 30) -> bool:
    """Let freed memory of up to `most` bytes a piece be used again, in this whole process.

    glibc returns large blocks to the system when they are freed, and every new gradient of some
    megabytes is paid for in page faults again, up to half of a training step. This asks it to
    keep them: the process holds on to its peak. The training commands and the benchmarks call it,
    the benchmarks for every rival alike.

    Args:
        most: blocks larger than this still go back.

    Returns:
        whether it was possible: Linux with glibc.

    Example:
        >>> reuse_memory() in (True, False)
        True
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    most = min(most, 2**31 - 1)
    return bool(mallopt(_MMAP_THRESHOLD, most)) and bool(mallopt(_TRIM_THRESHOLD, most))

"""Getting the kernels: compiled on first use, in the open, and only where they may run."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch

_lock = threading.Lock()
_module: ModuleType | None = None
_forked = False
_compiled: set[Hashable] = set()
_MESSAGE = "hardgate: compiling kernels for this CPU; the next run finds them on disk …\n"


def unavailable() -> str | None:
    """Why the kernels cannot run in this process, or None."""
    if _forked:
        return "this process was forked after its parent used the kernels; start it with spawn"
    return _missing() if _module is None else None


@functools.cache
def _missing() -> str | None:
    if find_spec("numba") is None:
        return "Numba is not installed; pip install numba"
    try:
        kernels()
    except Exception as error:  # a broken installation, no OpenMP, nowhere to keep the cache
        return f"Numba cannot run here ({error})"
    return None


def kernels() -> ModuleType:
    """The module of compiled kernels, imported on first use."""
    global _module
    with _lock:
        if _module is None:
            import numba

            # OpenMP: on Linux it is torch's own pool of threads, so neither stalls the other, and
            # two Python threads may call at once. In a forked child it would end the process.
            config: Any = numba.config
            if config.THREADING_LAYER == "default":
                import numba.np.ufunc.omppool

                config.THREADING_LAYER = "omp"
            from hardgate.kernels import cpu

            if sys.platform != "win32":
                os.register_at_fork(after_in_child=_mark_forked)

            _module = cpu
    return _module


def threads() -> int:
    """How many shares to cut the work into: as many as torch uses."""
    import numba

    config: Any = numba.config
    T: int = max(1, min(torch.get_num_threads(), config.NUMBA_NUM_THREADS))
    if numba.get_num_threads() != T:
        numba.set_num_threads(T)
    return T


@contextmanager
def in_the_open(what: Hashable) -> Iterator[None]:
    """Say so when the first call of a kind takes long because it compiles."""
    if what in _compiled:
        yield
        return
    timer = threading.Timer(1.0, lambda: sys.stderr.write(_MESSAGE))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    _compiled.add(what)


def _mark_forked() -> None:
    global _forked
    _forked = True

"""Getting the kernels: compiled on first use, in the open, and only where they may run."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

_lock = threading.Lock()
_module: ModuleType | None = None
_forked = _said = False
_mine = threading.local()
_kernels: dict[tuple[str, torch.dtype], Any] = {}  # those that are compiled
_ZERO = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
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
            from hardgate.kernels import cpu, index, vectors

            called = fingerprint(index, vectors)
            if called != cpu.CALLED:
                raise RuntimeError(
                    "cpu.py expected index.py and vectors.py as they were, and the cache on disk "
                    f"would run stale kernels; write CALLED = {called!r} into cpu.py"
                )
            if sys.platform != "win32":
                os.register_at_fork(after_in_child=_mark_forked)

            _module = cpu
    return _module


def draws() -> ModuleType:
    """The module of random numbers, imported on first use."""
    kernels()  # which choose the pool of threads
    threads()
    from hardgate.kernels import draws

    return draws


def fingerprint(*modules: ModuleType) -> str:
    """What changes when the source of one of the modules does."""
    sources = [Path(module.__file__ or "").read_text("utf-8") for module in modules]
    return hashlib.sha256("".join(sources).encode()).hexdigest()[:16]


def threads() -> int:
    """How many shares to cut the work into: as many as torch uses."""
    T = torch.get_num_threads()
    if getattr(_mine, "torch", None) != T:  # Numba's number belongs to the Python thread
        import numba

        config: Any = numba.config
        _mine.torch, _mine.shares = T, max(1, min(T, config.NUMBA_NUM_THREADS))
        numba.set_num_threads(_mine.shares)
        torch.set_num_threads(T)  # starting Numba's pool gives torch all cores
    shares: int = _mine.shares
    return shares


def run(name: str, dtype: torch.dtype, *arguments: float) -> Any:
    """Call a kernel; say so when it takes long because it compiles."""
    kernel = _kernels.get((name, dtype))
    if kernel is not None:
        return kernel(*arguments, _ZERO[dtype])
    kernel = getattr(kernels(), name)
    timer = threading.Timer(1.0, _say)
    timer.daemon = True
    timer.start()
    try:
        result = kernel(*arguments, _ZERO[dtype])
    finally:
        timer.cancel()
    _kernels[name, dtype] = kernel
    return result


def _say() -> None:
    global _said
    if not _said:
        _said = True
        sys.stderr.write(_MESSAGE)


def _mark_forked() -> None:
    global _forked
    _forked = True

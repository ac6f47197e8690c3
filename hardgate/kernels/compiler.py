"""Getting the kernels: compiled on first use, with a message, and only where they can run."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from hardgate._base import torch_state

_lock = threading.Lock()
_module: ModuleType | None = None
_forked = _told_user = False
_mine = threading.local()
_kernels: dict[tuple[str, torch.dtype], tuple[Any, list[int], tuple[Any, ...]]] = {}  # compiled
_PER_THREAD = {
    "forward": ("up", "down"),
    "backward": ("back", "down", "weigh"),
    "linear_backward": ("linear",),
}
# Kernels in a module of their own.
_BESIDE = dict.fromkeys(("uniform", "normal", "rectified"), "draws")
# What is computed in, and how the weights of the forward pass are kept.
_ZEROS: dict[torch.dtype, tuple[Any, Any]] = {
    torch.float32: (np.float32(0), np.float32(0)),
    torch.float64: (np.float64(0), np.float64(0)),
    torch.bfloat16: (np.float32(0), np.uint16(0)),
}
_KINDS = {"forward": 2, **dict.fromkeys(_BESIDE, 0)}  # how many of these a kernel takes, if not 1
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_LOADING = 4.0  # seconds in which kernels come from the disk, on a busy machine too
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


def plain(*tensors: torch.Tensor | None) -> bool:
    """Whether the tensors are torch's own: a DTensor or another wrapper has no address."""
    return all(t is None or type(t) in _PLAIN for t in tensors)


def usable(*tensors: torch.Tensor | None) -> bool:
    """Whether a kernel may take the tensors: torch's own, on a CPU, and not transformed."""
    return (
        plain(*tensors)
        and all(t is None or _in_memory(t) for t in tensors)
        and not torch_state.transforming()
        and not torch_state.tracing()
        and unavailable() is None
    )


def _in_memory(t: torch.Tensor) -> bool:
    """Whether its numbers are at its address: not elsewhere, to be negated, or wrapped."""
    return t.is_cpu and not t.is_neg() and not torch_state.is_wrapped(t)


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
            cpu = _compiled("cpu")
            _check_called(cpu, *map(_compiled, ("chunk", "index", "layout", "vectors")))
            if sys.platform != "win32":
                os.register_at_fork(after_in_child=_mark_forked)

            _module = cpu
    return _module


def _check_called(cpu: ModuleType, *modules: ModuleType) -> None:
    called = fingerprint(*modules)
    if called != cpu.CALLED:
        raise RuntimeError(
            "cpu.py expected the files that it calls unchanged: the cache on disk would run stale "
            f"kernels. Write CALLED = {called!r} into cpu.py"
        )


def fingerprint(*modules: ModuleType) -> str:
    """What changes when the source of one of the modules does."""
    sources = [Path(module.__file__ or "").read_text("utf-8") for module in modules]
    return hashlib.sha256("".join(sources).encode()).hexdigest()[:16]


def threads() -> int:
    """How many threads share the work: as many as torch uses."""
    T = torch.get_num_threads()
    if getattr(_mine, "torch", None) != T:  # Numba's number belongs to the Python thread
        import numba

        kernels()  # which choose the pool of threads before anybody asks for it
        config: Any = numba.config
        _mine.torch, _mine.threads = T, max(1, min(T, config.NUMBA_NUM_THREADS))
        numba.set_num_threads(_mine.threads)
        torch.set_num_threads(T)  # starting Numba's pool gives torch all cores
    number: int = _mine.threads
    return number


def run(name: str, dtype: torch.dtype, *arguments: Any) -> Any:
    """Call a kernel for weights of this dtype; tell the user if it takes long to compile."""
    found = _kernels.get((name, dtype))
    if found is not None:
        kernel, addresses, zeros = found
        return kernel(*addresses, *arguments, *zeros)
    timer = threading.Timer(_LOADING, _tell_user)
    timer.daemon = True
    timer.start()
    try:
        kernel = getattr(_home(name), name)
        addresses = [_for_one_thread(needed, dtype).address for needed in _PER_THREAD.get(name, ())]
        zeros = _ZEROS[dtype][: _KINDS.get(name, 1)]
        result = kernel(*addresses, *arguments, *zeros)
    finally:
        timer.cancel()
    _kernels[name, dtype] = kernel, addresses, zeros
    return result


def _home(name: str) -> ModuleType:
    """The module that the kernel is in."""
    module = kernels()  # which chooses the pool of threads for all of them
    return _compiled(_BESIDE[name]) if name in _BESIDE else module


def _compiled(name: str) -> ModuleType:
    return import_module(f"hardgate.kernels.compiled.{name}")


@functools.cache
def _for_one_thread(name: str, dtype: torch.dtype) -> Any:
    """What one thread of a kernel does, compiled by itself, to be called by its address."""
    from numba import cfunc, types

    zero, kind = (number.dtype.name for number in _ZEROS[dtype])
    own = {"zero": zero, "kind": kind, "lr": "float64", "most": "float64"}
    function = getattr(_compiled("cpu"), name)
    kinds = [getattr(types, own.get(a, "int64")) for a in inspect.signature(function).parameters]
    return cfunc(types.void(*kinds), cache=True, **_compiled("index").OPTIONS)(function)


def _tell_user() -> None:
    global _told_user
    if not _told_user:
        _told_user = True
        sys.stderr.write(_MESSAGE)


def _mark_forked() -> None:
    global _forked
    _forked = True

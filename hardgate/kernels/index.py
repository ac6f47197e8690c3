"""The index of the kernels: which (example, gate) pairs are on, by gate and by example."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from hardgate.kernels import vectors

OPTIONS: dict[str, Any] = {
    "fastmath": set(vectors.FLAGS),
    "error_model": "numpy",
    "nogil": True,
}
# Not cached on disk by themselves: those that call them are.
_serial, _parallel = njit(**OPTIONS), njit(parallel=True, **OPTIONS)


@_parallel
def tally(gates, gate_off, row_off, T):
    """How many are on: gate_off[j + 1] by gate; row_off[b, t] by example, in t's range of gates."""
    B, G = gates.shape
    for t in prange(T):
        low, high = G * t // T, G * (t + 1) // T
        counts = gate_off[low + 1 : high + 1]
        counts[:] = 0
        for b in range(B):
            row, n = gates[b, low:high], np.int32(0)
            for j in range(high - low):
                on = np.int32(row[j] != 0)
                counts[j] += on
                n += on
            row_off[b * T + t + 1] = n


@_serial
def accumulate(counts):
    counts[0] = 0
    for j in range(1, counts.shape[0]):
        counts[j] += counts[j - 1]


_POSITIONS = np.zeros((256, 8), np.int32)  # for each case of eight gates, which are on
for _case in range(256):
    _found = [bit for bit in range(8) if _case >> bit & 1]
    _POSITIONS[_case, : len(_found)] = _found


@_serial
def pack(row, low, high, out, zero):
    """out = which of low..high are not zero, and how many; up to seven slots more are written."""
    n, j = 0, low
    while j + 8 <= high:
        at = row.ctypes.data + j * row.itemsize
        n += vectors.pack8(at, _POSITIONS.ctypes.data, j, out.ctypes.data + 4 * n, zero)
        j += 8
    for k in range(j, high):
        out[n] = k
        n += np.int64(row[k] != 0)
    return n


@_parallel
def fill(gates, gate_off, row_off, example, value, unit, place, T, zero):
    """By gate, `example` and `value` in order of the examples; by example, `unit` in their order.

    place[e] is where the entry e of the second order stands in the first. Unsigned: an index that
    could be negative costs a comparison each time.
    """
    B, G = gates.shape
    for t in prange(T):
        low, high = G * t // T, G * (t + 1) // T
        cursor, found = gate_off[low:high].copy(), np.empty(high - low + 8, np.int32)
        for b in range(B):
            row, e = gates[b], row_off[b * T + t]
            for k in range(np.uint64(pack(row, low, high, found, zero))):
                j = np.uint64(found[k])
                p = np.uint64(cursor[j - np.uint64(low)])
                cursor[j - np.uint64(low)] += 1
                example[p], value[p] = b, row[j]
                unit[np.uint64(e) + k], place[np.uint64(e) + k] = j, p


@_serial
def shares(offsets, T):
    """Cut the lists into T ranges with about equally many entries."""
    cut = np.empty(T + 1, np.int64)
    cut[0], cut[T] = 0, offsets.shape[0] - 1
    for t in range(1, T):
        cut[t] = np.searchsorted(offsets, offsets[-1] * t // T)
    return cut

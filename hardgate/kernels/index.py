"""The index of the kernels: which (example, gate) pairs of a chunk of gates are on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hardgate.kernels import vectors

OPTIONS: dict[str, Any] = {
    "fastmath": set(vectors.FLAGS),
    "error_model": "numpy",
    "nogil": True,
}
# Not cached on disk by itself: those that call it are.
_serial = njit(**OPTIONS)


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


@_serial
def _count(gates, low, high, counts):
    counts[:] = 0
    for b in range(gates.shape[0]):
        row = gates[b, low:high]
        for c in range(high - low):
            counts[c] += np.int32(row[c] != 0)


@_serial
def scan(gates, low, high, p, begin, off, example, value, gate, place, cursor, found, zero):
    """The entries of the gates low..high, from p on; returns where they end.

    By gate: begin[c]..begin[c + 1] are those of gate low + c, `example` and `value` in order of
    the examples. By example: off[b]..off[b + 1] are those of example b, `gate` in their order and
    `place`, where the entry stands in the first order. Unsigned: an index that could be negative
    costs a comparison each time.
    """
    width, e = high - low, np.uint64(p)
    _count(gates, low, high, cursor[:width])
    for c in range(width):
        begin[c], p = p, p + cursor[c]
        cursor[c] = begin[c]
    begin[width] = p
    for b in range(gates.shape[0]):
        row = gates[b]
        off[b] = e
        for k in range(np.uint64(pack(row, low, high, found, zero))):
            j = np.uint64(found[k])
            c = j - np.uint64(low)
            q = np.uint64(cursor[c])
            cursor[c] += 1
            example[q], value[q] = b, row[j]
            gate[e], place[e] = j, q
            e += np.uint64(1)
    off[gates.shape[0]] = e
    return p

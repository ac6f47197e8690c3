"""The index of the kernels: which (example, gate) pairs of a chunk of gates are on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from hardgate.kernels.compiled import vectors

OPTIONS: dict[str, Any] = {
    "fastmath": set(vectors.FLAGS),
    "error_model": "numpy",
    "nogil": True,
}
# Not cached on disk by itself: those that call it are.
_serial = njit(**OPTIONS)


_AHEAD = 8  # examples
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
def scan(gates, low, high, p, begin, off, example, value, gate, place, cursor, found, held, zero):
    """The entries of the gates low..high, from p on; returns where they end.

    By gate: begin[c]..begin[c + 1] are those of gate low + c, `example` and `value` in order of
    the examples. By example: off[b]..off[b + 1] are those of example b, `gate` in their order and
    `place`, where the entry stands in the first order. The gates are read once, and asked for
    ahead: pieces of long rows are what no cache foresees. Unsigned: an index that could be
    negative costs a comparison each time.
    """
    B, first, e = gates.shape[0], np.uint64(p), np.uint64(p)
    cursor[:] = 0
    for b in range(B):
        row = gates[b]
        ahead = row.ctypes.data + _AHEAD * gates.strides[0] + low * row.itemsize
        if b + _AHEAD < B:
            vectors.fetch(ahead, (high - low) * row.itemsize, zero)
        off[b] = e
        for k in range(np.uint64(pack(row, low, high, found, zero))):
            j = np.uint64(found[k])
            gate[e], held[e - first] = j, row[j]
            cursor[j - np.uint64(low)] += 1
            e += np.uint64(1)
    off[B] = e
    for c in range(high - low):
        begin[c], p = p, p + cursor[c]
        cursor[c] = begin[c]
    begin[high - low] = p
    for b in range(B):
        for e in range(np.uint64(off[b]), np.uint64(off[b + 1])):
            c = np.uint64(gate[e]) - np.uint64(low)
            q = np.uint64(cursor[c])
            cursor[c] += 1
            example[q], value[q], place[e] = b, held[e - first], q
    return p

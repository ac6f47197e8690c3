"""The kernels: the conditional layer on a CPU, touching only (example, gate) pairs that are on.

One file on purpose: Numba's cache on disk watches the file of a function and nothing else, so a
kernel that called into another file could run stale.

Everything is written plainly, for LLVM to vectorise. What it needs for that: rows as contiguous
slices (an index that might be negative blocks it), at most eight rows in one loop (more need
more alias checks than it is willing to make), and sums that may be reassociated. `nnan` and
`ninf` are *not* allowed: NaN and ∞ come through.

Work is split into T shares of equal size before it starts, so results do not depend on timing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

_OPTIONS: dict[str, Any] = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "nogil": True,
    "cache": True,
}
_serial = njit(**_OPTIONS)
_parallel = njit(parallel=True, **_OPTIONS)

_CHUNK = 128  # gates whose outgoing rows are kept in the cache while examples pass by


# --- the index: which pairs are on ----------------------------------------------------------


@_parallel
def count(gates):
    """How many are not zero."""
    total = 0
    for b in prange(gates.shape[0]):
        row, n = gates[b], np.int32(0)
        for j in range(gates.shape[1]):
            n += np.int32(row[j] != 0)
        total += n
    return total


@_serial
def _compact(row, out):
    """out = the positions where row is not zero; how many. No branch: one slot more is written."""
    n = np.uint64(0)
    for j in range(row.shape[0]):
        out[n] = j
        n += np.uint64(row[j] != 0)
    return np.int64(n)


@_serial
def _between(row_gate, start, end, low, high):
    """The part of the entries start..end whose gates are in low..high."""
    gates = row_gate[start:end]
    return start + np.searchsorted(gates, low), start + np.searchsorted(gates, high)


@_parallel
def index(gates, T):
    """By example: `start`, `end`, `row_gate`, `place`. By gate: `gate_off`, `example`, `value`.

    Example b has the entries start[b]..end[b], in order of their gates; gate j has
    gate_off[j]..gate_off[j+1], in order of their examples. place[e] is where the entry e of the
    first order stands in the second.
    """
    B, G = gates.shape
    start, end = np.zeros(B + 1, np.int64), np.zeros(B, np.int64)
    for b in prange(B):
        row, count = gates[b], np.int32(0)
        for j in range(G):
            count += np.int32(row[j] != 0)
        end[b] = count
    for b in range(B):
        start[b + 1] = start[b] + end[b] + 1
        end[b] += start[b]
    row_gate = np.empty(start[B], np.int32)
    for b in prange(B):
        _compact(gates[b], row_gate[start[b] : start[b + 1]])
    gate_off = np.zeros(G + 1, np.int64)
    for t in prange(T):  # each share counts, then fills, its own range of gates
        for b in range(B):
            e, stop = _between(row_gate, start[b], end[b], G * t // T, G * (t + 1) // T)
            for q in range(e, stop):
                gate_off[row_gate[q] + 1] += 1
    for j in range(G):
        gate_off[j + 1] += gate_off[j]
    n = gate_off[G]
    example, value = np.empty(n, np.int32), np.empty(n, gates.dtype)
    place, cursor = np.empty(start[B], np.int32), gate_off[:-1].copy()
    for t in prange(T):
        for b in range(B):
            row = gates[b]
            e, stop = _between(row_gate, start[b], end[b], G * t // T, G * (t + 1) // T)
            for q in range(e, stop):
                j = row_gate[q]
                p = cursor[j]
                cursor[j] = p + 1
                example[p], place[q], value[p] = b, p, row[j]
    return start, end, row_gate, place, gate_off, example, value


@_serial
def _shares(offsets, T):
    """Cut the lists into T ranges with about equally many entries."""
    cut = np.empty(T + 1, np.int64)
    cut[0], cut[T] = 0, offsets.shape[0] - 1
    for t in range(1, T):
        cut[t] = np.searchsorted(offsets, offsets[-1] * t // T)
    return cut


# --- two families of inner loops ------------------------------------------------------------
# dots: out[p+r] = w · x_r + bias, R dot products that share one row;
# axpys: y += Σ c_r x_r, R rows added to one.


@_serial
def _dots8(w, x0, x1, x2, x3, x4, x5, x6, x7, out, p, bias):
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = w.dtype.type(0)
    for k in range(w.shape[0]):
        v = w[k]
        a0 += v * x0[k]
        a1 += v * x1[k]
        a2 += v * x2[k]
        a3 += v * x3[k]
        a4 += v * x4[k]
        a5 += v * x5[k]
        a6 += v * x6[k]
        a7 += v * x7[k]
    out[p], out[p + 1], out[p + 2], out[p + 3] = a0 + bias, a1 + bias, a2 + bias, a3 + bias
    out[p + 4], out[p + 5], out[p + 6], out[p + 7] = a4 + bias, a5 + bias, a6 + bias, a7 + bias


@_serial
def _dots4(w, x0, x1, x2, x3, out, p, bias):
    a0 = a1 = a2 = a3 = w.dtype.type(0)
    for k in range(w.shape[0]):
        v = w[k]
        a0 += v * x0[k]
        a1 += v * x1[k]
        a2 += v * x2[k]
        a3 += v * x3[k]
    out[p], out[p + 1], out[p + 2], out[p + 3] = a0 + bias, a1 + bias, a2 + bias, a3 + bias


@_serial
def _dots2(w, x0, x1, out, p, bias):
    a0 = a1 = w.dtype.type(0)
    for k in range(w.shape[0]):
        a0 += w[k] * x0[k]
        a1 += w[k] * x1[k]
    out[p], out[p + 1] = a0 + bias, a1 + bias


@_serial
def _dots1(w, x0, out, p, bias):
    a0 = w.dtype.type(0)
    for k in range(w.shape[0]):
        a0 += w[k] * x0[k]
    out[p] = a0 + bias


@_serial
def _dots(w, x, i, p, end, out, bias):
    """out[q] = w · x[i[q]] + bias for q in p..end."""
    while p + 8 <= end:
        _dots8(
            w, x[i[p]], x[i[p + 1]], x[i[p + 2]], x[i[p + 3]],
            x[i[p + 4]], x[i[p + 5]], x[i[p + 6]], x[i[p + 7]], out, p, bias,
        )  # fmt: skip
        p += 8
    if p + 4 <= end:
        _dots4(w, x[i[p]], x[i[p + 1]], x[i[p + 2]], x[i[p + 3]], out, p, bias)
        p += 4
    if p + 2 <= end:
        _dots2(w, x[i[p]], x[i[p + 1]], out, p, bias)
        p += 2
    if p < end:
        _dots1(w, x[i[p]], out, p, bias)


@_serial
def _axpy6(y, c0, c1, c2, c3, c4, c5, x0, x1, x2, x3, x4, x5):
    for k in range(y.shape[0]):
        y[k] += ((c0 * x0[k] + c1 * x1[k]) + (c2 * x2[k] + c3 * x3[k])) + (c4 * x4[k] + c5 * x5[k])


@_serial
def _axpy2(y, c0, c1, x0, x1):
    for k in range(y.shape[0]):
        y[k] += c0 * x0[k] + c1 * x1[k]


@_serial
def _axpy1(y, c0, x0):
    for k in range(y.shape[0]):
        y[k] += c0 * x0[k]


@_serial
def _axpys(y, c, x, i, p, end):
    """y += Σ c[q] x[i[q]] for q in p..end. Six rows and y: one way of the L1 cache to spare."""
    while p + 6 <= end:
        _axpy6(
            y, c[p], c[p + 1], c[p + 2], c[p + 3], c[p + 4], c[p + 5],
            x[i[p]], x[i[p + 1]], x[i[p + 2]], x[i[p + 3]], x[i[p + 4]], x[i[p + 5]],
        )  # fmt: skip
        p += 6
    while p + 2 <= end:
        _axpy2(y, c[p], c[p + 1], x[i[p]], x[i[p + 1]])
        p += 2
    if p < end:
        _axpy1(y, c[p], x[i[p]])


# --- the passes -----------------------------------------------------------------------------
# H, S and their gradients are [K, n]: one row for each of the K units of a block, entries in the
# order of the gates.


@_parallel
def up(x, w, bias, gate_off, example, relu, T):
    """H = w · x + bias, for each entry."""
    K, n = w.shape[0] // (gate_off.shape[0] - 1), example.shape[0]
    H = np.empty((K, n), x.dtype)
    cut = _shares(gate_off, T)
    for t in prange(T):
        for j in range(cut[t], cut[t + 1]):
            p, end = gate_off[j], gate_off[j + 1]
            if p < end:
                for r in range(K):
                    u = j * K + r
                    _dots(w[u], x, example, p, end, H[r], bias[u])
    if relu:
        for r in prange(K):
            for p in range(n):
                H[r, p] = max(H[r, p], x.dtype.type(0)) if H[r, p] == H[r, p] else H[r, p]
    return H


@_serial
def times(value, H):
    """S = g·H."""
    S = np.empty_like(H)
    for r in range(H.shape[0]):
        row, out = H[r], S[r]
        for p in range(value.shape[0]):
            out[p] = value[p] * row[p]
    return S


@_serial
def _collect(y, c, rows, row_gate, place, e, end, rest):
    """y += Σ c[place[q]] rows[row_gate[q]] for q in e..end; returns where it stopped.

    Without `rest` it leaves up to five entries to the next call, which does them with others.
    """
    while e + 6 <= end:
        _axpy6(
            y, c[place[e]], c[place[e + 1]], c[place[e + 2]],
            c[place[e + 3]], c[place[e + 4]], c[place[e + 5]],
            rows[row_gate[e]], rows[row_gate[e + 1]],
            rows[row_gate[e + 2]], rows[row_gate[e + 3]],
            rows[row_gate[e + 4]], rows[row_gate[e + 5]],
        )  # fmt: skip
        e += 6
    if rest:
        while e + 2 <= end:
            _axpy2(
                y, c[place[e]], c[place[e + 1]],
                rows[row_gate[e]], rows[row_gate[e + 1]],
            )  # fmt: skip
            e += 2
        if e < end:
            _axpy1(y, c[place[e]], rows[row_gate[e]])
            e += 1
    return e


@_serial
def _collect_blocks(y, c, rows, row_gate, place, e, end):
    """The same for blocks of K = c.shape[0] rows: c[r, place] rows[gate·K + r]."""
    K = c.shape[0]
    for q in range(e, end):
        p, u, r = place[q], row_gate[q] * K, 0
        while r + 6 <= K:
            _axpy6(
                y, c[r, p], c[r + 1, p], c[r + 2, p], c[r + 3, p], c[r + 4, p], c[r + 5, p],
                rows[u + r], rows[u + r + 1], rows[u + r + 2],
                rows[u + r + 3], rows[u + r + 4], rows[u + r + 5],
            )  # fmt: skip
            r += 6
        while r + 2 <= K:
            _axpy2(y, c[r, p], c[r + 1, p], rows[u + r], rows[u + r + 1])
            r += 2
        if r < K:
            _axpy1(y, c[r, p], rows[u + r])


@_parallel
def down(y, c, rows, start, end, row_gate, place, T):
    """y[b] += Σ over the units that are on for b of c · rows: the output, and the gradient of x."""
    B, K = y.shape[0], c.shape[0]
    G, only = rows.shape[0] // K, c[0]
    for t in prange(T):
        first, last = B * t // T, B * (t + 1) // T
        cursor = start[first : last + 1].copy()
        limit = 0
        while limit < G:  # a chunk of rows stays in the cache while the examples pass by
            limit = min(G, limit + max(1, _CHUNK // K))
            for b in range(first, last):
                e, stop = cursor[b - first], cursor[b - first]
                while stop < end[b] and row_gate[stop] < limit:
                    stop += 1
                if K == 1:
                    e = _collect(y[b], only, rows, row_gate, place, e, stop, limit == G)
                else:
                    _collect_blocks(y[b], c, rows, row_gate, place, e, stop)
                    e = stop
                cursor[b - first] = e


@_parallel
def back_dots(dy, w_out, gate_off, example, K, T):
    """dS = w_out · dy, for each entry."""
    dS = np.empty((K, example.shape[0]), dy.dtype)
    zero = dy.dtype.type(0)
    cut = _shares(gate_off, T)
    for t in prange(T):
        for j in range(cut[t], cut[t + 1]):
            p, end = gate_off[j], gate_off[j + 1]
            if p < end:
                for r in range(K):
                    _dots(w_out[j * K + r], dy, example, p, end, dS[r], zero)
    return dS


@_serial
def _limit(row, most):
    """Scale the row down to the norm `most` if it is longer."""
    square = row.dtype.type(0)
    for k in range(row.shape[0]):
        square += row[k] * row[k]
    if square > most * most:
        factor = row.dtype.type(most / np.sqrt(square))
        for k in range(row.shape[0]):
            row[k] *= factor


@_parallel
def back_rows(out, c, x, gate_off, example, add, most, T):
    """out[u] = Σ c x over the examples for which u is on: the gradient of a weight.

    With `add` the sum is added to what is there: c = -lr times the gradient makes it one step of
    SGD, for units that are on, after which rows are no longer than `most` (0: any length).
    """
    K = c.shape[0]
    cut = _shares(gate_off, T)
    for t in prange(T):
        for j in range(cut[t], cut[t + 1]):
            p, end = gate_off[j], gate_off[j + 1]
            for r in range(K):
                row = out[j * K + r]
                if not add:
                    row[:] = 0
                _axpys(row, c[r], x, example, p, end)
                if most > 0 and p < end:
                    _limit(row, most)


@_parallel
def back_sums(out, c, gate_off):
    """out[u] = Σ c over the examples for which u is on: a bias's gradient."""
    K = c.shape[0]
    for j in prange(gate_off.shape[0] - 1):
        for r in range(K):
            total = out.dtype.type(0)
            for p in range(gate_off[j], gate_off[j + 1]):
                total += c[r, p]
            out[j * K + r] = total


@_serial
def back_values(dS, H, value, relu):
    """dH = dS·g (where a ReLU lets it pass), and dS·H summed over the block: the gate's."""
    K, n = H.shape
    dH, dg = np.empty_like(H), np.zeros(n, H.dtype)
    for r in range(K):
        for p in range(n):
            dg[p] += dS[r, p] * H[r, p]
            dH[r, p] = dS[r, p] * value[p]
            if relu and H[r, p] <= 0:
                dH[r, p] = 0
    return dH, dg


@_parallel
def scatter(out, entries, start, end, row_gate, place):
    """out[example, gate] = entries, for the gradient of the gates."""
    for b in prange(out.shape[0]):
        row = out[b]
        for e in range(start[b], end[b]):
            row[row_gate[e]] = entries[place[e]]


@_serial
def write_blocks(y, S, gate_off, example):
    """y[example, unit] = S: the layer without an output transform."""
    K = S.shape[0]
    for j in range(gate_off.shape[0] - 1):
        for p in range(gate_off[j], gate_off[j + 1]):
            for r in range(K):
                y[example[p], j * K + r] = S[r, p]


@_serial
def read_blocks(dy, gate_off, example, K):
    """dS = dy[example, unit]: its transpose."""
    dS = np.empty((K, example.shape[0]), dy.dtype)
    for j in range(gate_off.shape[0] - 1):
        for p in range(gate_off[j], gate_off[j + 1]):
            for r in range(K):
                dS[r, p] = dy[example[p], j * K + r]
    return dS


@_parallel
def single(y, x, gates, w_in, b_in, w_out, relu, T):
    """The forward pass of one example, adding to y: one parallel region, nothing kept."""
    G = gates.shape[0]
    K, parts = w_in.shape[0] // G, np.zeros((T, y.shape[0]), y.dtype)
    for t in prange(T):
        low, high = G * t // T, G * (t + 1) // T
        on = np.empty(high - low + 1, np.int32)
        n = _compact(gates[low:high], on)
        units, values = np.empty(n * K, np.int32), np.empty(n * K, x.dtype)
        for q in range(n * K):
            units[q] = (low + on[q // K]) * K + q % K
            values[q] = gates[low + on[q // K]]
        S = np.empty(n * K, x.dtype)
        _dots(x, w_in, units, 0, n * K, S, x.dtype.type(0))
        for q in range(n * K):
            H = S[q] + b_in[units[q]]
            S[q] = values[q] * (x.dtype.type(0) if relu and H <= 0 else H)
        _axpys(parts[t], S, w_out, units, 0, n * K)
    for t in range(T):
        for o in range(y.shape[0]):
            y[o] += parts[t, o]


@_serial
def forward(y, x, gates, w_in, b_in, w_out, relu, T):
    """All of the forward pass in one call, adding to y; returns the index and H."""
    found = index(gates, T)
    start, end, row_gate, place, gate_off, example, value = found
    H = up(x, w_in, b_in, gate_off, example, relu, T)
    down(y, times(value, H), w_out, start, end, row_gate, place, T)
    return found, H

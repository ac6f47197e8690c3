"""The kernels: the conditional layer on a CPU, touching only (example, gate) pairs that are on.

Work is split into T shares before it starts, so results do not depend on timing. The functions
that Python calls (at the end) take addresses: unpacking a dozen arrays would take as long as a
small layer. H, S and their gradients are [K, N]: one row for each of the K units of a block, one
column for each of the N entries that are on, in the order of the gates.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, prange

from hardgate.kernels import index, vectors

# Numba's cache on disk watches the file of a function and nothing else, so this file has to change
# when those it calls do: `hardgate.kernels.compiler` holds them together.
CALLED = "7b8597d8cc65fb2a"

_serial = njit(cache=True, **index.OPTIONS)
_parallel = njit(cache=True, parallel=True, **index.OPTIONS)

_CHUNK = 64  # units whose outgoing rows are kept in the cache while examples pass by
_NARROW = 32  # outputs up to which every share adds into rows of its own

_pointer = vectors.pointer
_pack, _fill, _shares = index.pack, index.fill, index.shares
_dots, _tiles = vectors.dots(1, 8), vectors.dots(4, 3)
_set_row, _add_row = vectors.sums(False, False), vectors.sums(True, False)
_add_placed = vectors.sums(True, True)
_set_rows = vectors.onto(4, 3, False, True)
_add_rows = vectors.onto(4, 3, True, True)
_add_onto = vectors.onto(3, 4, True, False)


@_serial
def _matrix(address, rows, columns, zero):
    return carray(_pointer(address, zero), (rows, columns))


# --- the passes -------------------------------------------------------------------------------


@_serial
def _products(out, p, count, w, u, K, x, example, bias, zero):
    """out[r, p…] = w[u + r] · x[example] + bias[u + r], over `count` entries from p."""
    size, N, n, r = out.itemsize, out.shape[1], w.shape[1], 0
    i, at = example.ctypes.data + 4 * p, out.ctypes.data + size * p
    rows, biases = w.ctypes.data + size * u * n, bias.ctypes.data + size * u
    while r + 4 <= K:
        _tiles(rows + size * r * n, n, x.ctypes.data, x.shape[1], i, count, n,
               at + size * r * N, N, biases + size * r, zero)  # fmt: skip
        r += 4
    while r < K:
        _dots(rows + size * r * n, n, x.ctypes.data, x.shape[1], i, count, n,
              at + size * r * N, N, biases + size * r, zero)  # fmt: skip
        r += 1


@_serial
def _scale(value, H, S, relu):
    """S = g·H, after the ReLU if there is one."""
    for r in range(H.shape[0]):
        h, s = H[r], S[r]
        if relu:
            for q in range(value.shape[0]):
                h[q] = 0 if h[q] < 0 else h[q]  # NaN stays
        for q in range(value.shape[0]):
            s[q] = value[q] * h[q]


@_serial
def _copy(w_out, j, outgoing):
    """The outgoing weights of gate j's units, in rows with zeros at their end."""
    K = outgoing.shape[0]
    for r in range(K):
        for o in range(w_out.shape[1]):
            outgoing[r, o] = w_out[j * K + r, o]


@_serial
def _pour(out, w_out, j, K, S, p, count, example, outgoing, zero):
    """out[b] += Σ S · w_out over the units of gate j, in rows padded to the width of `outgoing`."""
    size, width = S.itemsize, outgoing.shape[1]
    _copy(w_out, j, outgoing)
    _add_onto(out.ctypes.data, width, S.ctypes.data + size * p, S.shape[1], outgoing.ctypes.data,
              width, example.ctypes.data + 4 * p, count, K, width, zero)  # fmt: skip


@_parallel
def _up(x, w_in, b_in, w_out, gate_off, example, value, H, S, parts, relu, T, zero):
    """H = w_in · x + b_in and S = g·H for each entry; narrow outputs are added up at once."""
    K, cut = H.shape[0], _shares(gate_off, T)
    for t in prange(T):
        first, last = gate_off[cut[t]], gate_off[cut[t + 1]]
        outgoing = np.zeros((K, parts.shape[2]), H.dtype)
        for j in range(cut[t], cut[t + 1]):
            p, count = gate_off[j], gate_off[j + 1] - gate_off[j]
            if count > 0:
                _products(H, p, count, w_in, j * K, K, x, example, b_in, zero)
        _scale(value[first:last], H[:, first:last], S[:, first:last], relu)
        for j in range(cut[t], cut[t + 1] if parts.shape[2] > 0 else 0):
            p, count = gate_off[j], gate_off[j + 1] - gate_off[j]
            if count > 0:
                _pour(parts[t], w_out, j, K, S, p, count, example, outgoing, zero)


@_serial
def _start(row, bias):
    """row = bias, or zero without one."""
    for o in range(row.shape[0]):
        row[o] = bias[o] if bias.shape[0] > 0 else 0


@_parallel
def _down(y, bias, c, rows, row_off, unit, place, T, zero):
    """y[b] = bias + Σ c · rows over the units that are on for b: the output, or x's gradient."""
    B, n = y.shape
    K, size = c.shape[0], y.itemsize
    G = rows.shape[0] // K
    for t in prange(T):
        first, last = B * t // T, B * (t + 1) // T
        cursor = np.empty(last - first, np.int64)
        for b in range(first, last):
            cursor[b - first] = row_off[b * T]
            _start(y[b], bias)
        limit = 0
        while limit < G:  # a chunk of rows stays in the cache while the examples pass by
            limit = min(G, limit + _CHUNK)
            for b in range(first, last):
                e, end = cursor[b - first], row_off[(b + 1) * T]
                stop = e
                while stop < end and unit[stop] < limit:
                    stop += 1
                cursor[b - first] = stop
                if e < stop:
                    for r in range(K):
                        _add_placed(y.ctypes.data + size * b * n, c[r].ctypes.data,
                                    place.ctypes.data + 4 * e, rows[r].ctypes.data, K * n,
                                    unit.ctypes.data + 4 * e, stop - e, n, zero)  # fmt: skip


@_parallel
def _down_blocks(y, bias, c, rows, gate_off, example, T, zero):
    """The same for blocks, whose rows serve several examples: shares are ranges of columns."""
    B, n = y.shape
    K, N = c.shape
    size = y.itemsize
    for t in prange(T):
        low, high = n * t // T // 16 * 16, n * (t + 1) // T // 16 * 16 if t + 1 < T else n
        for b in range(B):
            _start(y[b, low:high], bias[low:high])
        for j in range(gate_off.shape[0] - 1):
            p, end = gate_off[j], gate_off[j + 1]
            if p < end:
                _add_onto(y.ctypes.data + size * low, n, c.ctypes.data + size * p, N,
                          rows.ctypes.data + size * (j * K * n + low), n,
                          example.ctypes.data + 4 * p, end - p, K, high - low, zero)  # fmt: skip


@_serial
def _descend(y, bias, c, rows, gate_off, row_off, example, unit, place, T, zero):
    if c.shape[0] < 4:
        _down(y, bias, c, rows, row_off, unit, place, T, zero)
    else:
        _down_blocks(y, bias, c, rows, gate_off, example, T, zero)


@_serial
def _add_parts(y, bias, parts):
    """y = bias + what the shares have added up."""
    for b in range(y.shape[0]):
        _start(y[b], bias)
        for t in range(parts.shape[0]):
            for o in range(y.shape[1]):
                y[b, o] += parts[t, b, o]


@_serial
def _write(y, S, row_off, unit, place, T):
    """y[b, units of the block] = S: the layer without an output transform."""
    K = S.shape[0]
    for b in range(y.shape[0]):
        for e in range(row_off[b * T], row_off[(b + 1) * T]):
            for r in range(K):
                y[b, unit[e] * K + r] = S[r, place[e]]


@_serial
def _chain(dS, H, value, dg, relu):
    """dg = Σ dS·H, and in the place of dS: dH = dS·g, zero where a ReLU is."""
    dg[:] = 0
    for r in range(H.shape[0]):
        d, h = dS[r], H[r]
        for q in range(value.shape[0]):
            dg[q] += d[q] * h[q]
            d[q] = d[q] * value[q]
        if relu:
            for q in range(value.shape[0]):
                d[q] = 0 if h[q] <= 0 else d[q]


@_parallel
def _values(dy, w_out, gate_off, example, value, H, dH, dg, relu, T, zero):
    """dS = w_out · dy, dH = dS·g, and the gate's gradient dg = Σ dS·H."""
    K, cut, n = H.shape[0], _shares(gate_off, T), w_out.shape[1]
    nothing = np.zeros(K, H.dtype)
    width = (n + 7) // 8 * 8 if n <= _NARROW else 0  # padded, short rows are whole vectors
    padded = np.zeros((dy.shape[0] if width > 0 else 0, width), dy.dtype)
    for b in range(padded.shape[0]):
        padded[b, :n] = dy[b]
    for t in prange(T):
        first, last = gate_off[cut[t]], gate_off[cut[t + 1]]
        outgoing = np.zeros((K, width), H.dtype)
        for j in range(cut[t], cut[t + 1]):
            p, count = gate_off[j], gate_off[j + 1] - gate_off[j]
            if n == 0:  # no output transform
                for r in range(K):
                    for q in range(p, p + count):
                        dH[r, q] = dy[example[q], j * K + r]
            elif count > 0 and width > 0:
                _copy(w_out, j, outgoing)
                _products(dH, p, count, outgoing, 0, K, padded, example, nothing, zero)
            elif count > 0:
                rows = w_out[j * K : j * K + K]
                _products(dH, p, count, rows, 0, K, dy, example, nothing, zero)
        _chain(dH[:, first:last], H[:, first:last], value[first:last], dg[first:last], relu)


@_parallel
def _scatter(out, dg, value, row_off, unit, place, probed, T):
    """out[b, unit] = dg, zero elsewhere; if probed, dg·value, and the others stay as they are."""
    for b in prange(out.shape[0]):
        row = out[b]
        if not probed:
            row[:] = 0
        for e in range(row_off[b * T], row_off[(b + 1) * T]):
            p = place[e]
            row[unit[e]] = dg[p] * value[p] if probed else dg[p]


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
def _weights(out, bias, c, x, gate_off, example, lr, most, T, zero):
    """out[u] = Σ c x over the examples for which u is on, bias[u] = Σ c: a layer's gradients.

    With a learning rate (-1: none) it is one step of SGD instead, out[u] -= lr Σ c x for units that
    are on, after which these rows are no longer than `most` (0: any length).
    """
    K, N = c.shape
    n, size, cut = x.shape[1], c.itemsize, _shares(gate_off, T)
    for t in prange(T):
        scaled = np.empty((K, x.shape[0]), c.dtype)
        for j in range(cut[t], cut[t + 1]):
            p, count = gate_off[j], gate_off[j + 1] - gate_off[j]
            for r in range(K if bias.shape[0] > 0 else 0):
                total = c.dtype.type(0)
                for q in range(p, p + count):
                    total += c[r, q]
                bias[j * K + r] = total
            if out.shape[0] > 0 and count > 0:
                at, factors, ldc = j * K, c.ctypes.data + size * p, N
                i, address = example.ctypes.data + 4 * p, out.ctypes.data + size * j * K * n
                if lr >= 0:
                    factors, ldc = scaled.ctypes.data, scaled.shape[1]
                    for r in range(K):
                        for q in range(count):
                            scaled[r, q] = -lr * c[r, p + q]
                if K >= 4 and lr >= 0:
                    _add_rows(address, n, factors, ldc, x.ctypes.data, n, i, K, count, n, zero)
                elif K >= 4:
                    _set_rows(address, n, factors, ldc, x.ctypes.data, n, i, K, count, n, zero)
                for r in range(K if K < 4 else 0):
                    row, c_r = address + size * r * n, factors + size * r * ldc
                    if lr >= 0:
                        _add_row(row, c_r, 0, x.ctypes.data, n, i, count, n, zero)
                    else:
                        _set_row(row, c_r, 0, x.ctypes.data, n, i, count, n, zero)
                for r in range(K if most > 0 else 0):
                    _limit(out[at + r], most)
            elif out.shape[0] > 0 and lr < 0:
                out[j * K : j * K + K] = 0


@_parallel
def _single(y, x, gates, w_in, b_in, w_out, b_out, relu, T, zero):
    """The forward pass of one example in one parallel region, nothing kept."""
    G, K = gates.shape[0], w_in.shape[0] // gates.shape[0]
    O, parts = y.shape[0], np.zeros((T, y.shape[0] + 16), y.dtype)
    for t in prange(T):
        low, high = G * t // T, G * (t + 1) // T
        found = np.empty(high - low + 8, np.int32)
        count = _pack(gates, low, high, found, zero) * K
        units, S = np.empty(count, np.int32), np.empty(count, y.dtype)
        for q in range(count):
            units[q] = found[q // K] * K + q % K
        if count > 0:
            nothing = np.zeros(1, y.dtype)
            _dots(x.ctypes.data, 0, w_in.ctypes.data, x.shape[0], units.ctypes.data, count,
                  x.shape[0], S.ctypes.data, 0, nothing.ctypes.data, zero)  # fmt: skip
            for q in range(count):
                H = S[q] + (b_in[units[q]] if b_in.shape[0] > 0 else 0)
                S[q] = gates[units[q] // K] * (0 if relu and H < 0 else H)
            _add_row(parts[t].ctypes.data, S.ctypes.data, 0, w_out.ctypes.data, O,
                     units.ctypes.data, count, O, zero)  # fmt: skip
    _start(y, b_out)
    for t in range(T):
        for o in range(O):
            y[o] += parts[t, o]


# --- what Python calls: addresses (0 for what is not there), sizes, and a zero of the dtype -----
# fmt: off


@_serial
def _optional(address, rows, columns, zero):
    return _matrix(address, rows if address != 0 else 0, columns, zero)


@_serial
def _vector(address, length, zero):
    return _optional(address, 1, length, zero)[0] if address != 0 else np.zeros(0, type(zero))


@_serial
def _biases(b_in, hidden, zero):
    return np.zeros(hidden, type(zero)) if b_in == 0 else _vector(b_in, hidden, zero)


@_serial
def _index(offsets, entries, B, G, N, T):
    """gate_off, row_off, example, unit, place."""
    off = _matrix(offsets, 1, G + 2 + B * T, np.int32(0))[0]
    lists = _matrix(entries, 3, N, np.int32(0))
    return off[: G + 1], off[G + 1 :], lists[0], lists[1], lists[2]


@_serial
def _floats(floats, K, N, zero):
    """value, H, S."""
    rows = _matrix(floats, 2 * K + 1, N, zero)
    return rows[0], rows[1 : K + 1], rows[K + 1 :]


@_serial
def count(gates, B, G, offsets, T, zero):
    """How many gates are on; leaves gate_off and row_off behind."""
    gate_off, row_off, _, _, _ = _index(offsets, offsets, B, G, 0, T)
    index.tally(_matrix(gates, B, G, zero), gate_off, row_off, T)
    index.accumulate(gate_off)
    index.accumulate(row_off)
    return gate_off[G]


@_serial
def forward(y, x, gates, w_in, b_in, w_out, b_out, offsets, entries, floats,
            B, G, K, n, O, N, relu, T, zero):
    """y, and in entries and floats what the backward pass needs."""
    gate_off, row_off, example, unit, place = _index(offsets, entries, B, G, N, T)
    value, H, S = _floats(floats, K, N, zero)
    _fill(_matrix(gates, B, G, zero), gate_off, row_off, example, value, unit, place, T, zero)
    outgoing, bias = _optional(w_out, G * K, O, zero), _vector(b_out, O, zero)
    width = (O + 7) // 8 * 8 if w_out != 0 and O <= _NARROW else 0
    parts = np.zeros((T, B, width), type(zero))
    _up(_matrix(x, B, n, zero), _matrix(w_in, G * K, n, zero), _biases(b_in, G * K, zero),
        outgoing, gate_off, example, value, H, S, parts, relu, T, zero)
    if w_out == 0:
        _write(_matrix(y, B, G * K, zero), S, row_off, unit, place, T)
    elif width > 0:
        _add_parts(_matrix(y, B, O, zero), bias, parts)
    else:
        _descend(_matrix(y, B, O, zero), bias, S, outgoing, gate_off, row_off, example, unit,
                 place, T, zero)


@_serial
def backward(dy, x, w_in, w_out, offsets, entries, floats, dx, dgates, dw_in, db_in, dw_out,
             B, G, K, n, O, N, relu, lr, most, T, zero):
    """The gradients that have an address, or with a learning rate the weights a step further."""
    gate_off, row_off, example, unit, place = _index(offsets, entries, B, G, N, T)
    value, H, S = _floats(floats, K, N, zero)
    dH, dg, none = np.empty((K, N), type(zero)), np.empty(N, type(zero)), np.zeros(0, type(zero))
    output = _matrix(dy, B, O if w_out != 0 else G * K, zero)
    _values(output, _matrix(w_out, G * K, O, zero), gate_off, example, value, H, dH, dg, relu, T,
            zero)
    if dgates != 0:
        _scatter(_matrix(dgates, B, G, zero), dg, value, row_off, unit, place, False, T)
    if dx != 0:  # before the weights, which a step changes
        _descend(_matrix(dx, B, n, zero), none, dH, _matrix(w_in, G * K, n, zero), gate_off,
                 row_off, example, unit, place, T, zero)
    _weights(_optional(dw_in, G * K, n, zero), _vector(db_in, G * K, zero), dH,
             _matrix(x, B, n, zero), gate_off, example, lr, most, T, zero)
    if dw_out != 0:
        _weights(_matrix(dw_out, G * K, O, zero), none, S, output, gate_off, example, lr, 0.0, T,
                 zero)


@_serial
def probe(dgates, dy, x, weights, w_in, b_in, w_out, offsets, entries, floats,
          B, G, K, n, O, N, relu, T, zero):
    """dgates = weight·Σ dS·H where the weights are not zero."""
    gate_off, row_off, example, unit, place = _index(offsets, entries, B, G, N, T)
    value, H, S = _floats(floats, K, N, zero)
    _fill(_matrix(weights, B, G, zero), gate_off, row_off, example, value, unit, place, T, zero)
    outgoing, none = _matrix(w_out, G * K, O, zero), np.zeros((T, B, 0), type(zero))
    _up(_matrix(x, B, n, zero), _matrix(w_in, G * K, n, zero), _biases(b_in, G * K, zero),
        outgoing, gate_off, example, value, H, S, none, relu, T, zero)
    output, dg = _matrix(dy, B, O if w_out != 0 else G * K, zero), np.empty(N, type(zero))
    _values(output, outgoing, gate_off, example, value, H, S, dg, relu, T, zero)
    _scatter(_matrix(dgates, B, G, zero), dg, value, row_off, unit, place, True, T)


@_serial
def linear_backward(da, z, w, offsets, entries, floats, dz, dw, db, B, G, n, N, lr, most, T, zero):
    """dz = da w, dw = daᵀ z and db = Σ da over the entries of da that are not zero."""
    gate_off, row_off, example, unit, place = _index(offsets, entries, B, G, N, T)
    c = _matrix(floats, 1, N, zero)
    _fill(_matrix(da, B, G, zero), gate_off, row_off, example, c[0], unit, place, T, zero)
    if dz != 0:
        _down(_matrix(dz, B, n, zero), np.zeros(0, type(zero)), c, _matrix(w, G, n, zero), row_off,
              unit, place, T, zero)
    _weights(_optional(dw, G, n, zero), _vector(db, G, zero), c, _matrix(z, B, n, zero), gate_off,
             example, lr, most, T, zero)


@_serial
def single(y, x, gates, w_in, b_in, w_out, b_out, G, K, n, O, relu, T, zero):
    """The forward pass of one example."""
    _single(_vector(y, O, zero), _vector(x, n, zero), _vector(gates, G, zero),
            _matrix(w_in, G * K, n, zero), _vector(b_in, G * K, zero),
            _matrix(w_out, G * K, O, zero), _vector(b_out, O, zero), relu, T, zero)

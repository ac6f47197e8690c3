"""What the kernels do with one chunk of gates, given its index.

A list holds one number for each entry that is on, in the order of the gates; the lists of the K
units of a block are rows of length `ld`. Not cached on disk by itself: those that call it are.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hardgate.kernels.compiled import index, vectors
from hardgate.kernels.compiled.layout import LARGE

_serial = njit(**index.OPTIONS)

_dots, _tiles = vectors.dots(1, 8, False), vectors.dots(4, vectors.TILE, False)
_far_dots, _far_tiles = vectors.dots(1, 8, True), vectors.dots(4, vectors.TILE, True)
_set_row, _add_row = vectors.sums(False, False), vectors.sums(True, False)
_add_placed = vectors.sums(True, True)
_set_rows = vectors.onto(4, vectors.TILE, False, True)
_past_row = vectors.sums(False, False, True)
_past_rows = vectors.onto(4, vectors.TILE, False, True, True)
_add_rows = vectors.onto(4, vectors.TILE, True, True)
_add_onto = vectors.onto(vectors.TILE, 4, True, False)


@_serial
def at(numbers):
    """The address of an array's first number."""
    return np.int64(numbers.ctypes.data)


@_serial
def on_from(c, begin, width):
    """The first gate from c on that has entries; `width` if none has."""
    while c < width and begin[c + 1] == begin[c]:
        c += 1
    return c


@_serial
def products(out, ld, p, count, w, K, n, x, example, bias, ahead, also, lda, zero, kind):
    """out[r, p…] = w[r] · x[example] + bias[r], over `count` > 0 entries from p.

    w and bias are the addresses of the first of K rows and numbers, `ahead` that of the rows after;
    `also`, if it is not 0, that of K rows of length lda that are needed soon. `kind` is w's.
    """
    size, r, length = out.itemsize, 0, vectors.size(kind) * n
    i, first = at(example) + 4 * p, at(out) + size * p
    while r < K:
        some = 4 if r + 4 <= K else 1
        row, results = w + length * r, first + size * r * ld
        following = row + length * some if r + some < K else ahead
        soon = also + vectors.size(kind) * r * lda
        if some == 4 and also != 0:
            _far_tiles(row, n, at(x), n, i, count, n, results, ld, bias + size * r, following,
                       soon, lda, zero, kind)  # fmt: skip
        elif some == 4:
            _tiles(row, n, at(x), n, i, count, n, results, ld, bias + size * r, following,
                   0, 0, zero, kind)  # fmt: skip
        elif also != 0:
            _far_dots(row, n, at(x), n, i, count, n, results, ld, bias + size * r, following,
                      soon, lda, zero, kind)  # fmt: skip
        else:
            _dots(row, n, at(x), n, i, count, n, results, ld, bias + size * r, following,
                  0, 0, zero, kind)  # fmt: skip
        r += some


@_serial
def scale(value, H, S, K, ld, p, end, relu):
    """S = g·H, after the ReLU if there is one."""
    g = value[p:end]
    for r in range(K):
        h, s = H[r * ld + p : r * ld + end], S[r * ld + p : r * ld + end]
        if relu:
            for q in range(end - p):
                h[q] = 0 if h[q] < 0 else h[q]  # NaN stays
        for q in range(end - p):
            s[q] = g[q] * h[q]


@_serial
def chain(dS, H, value, dg, K, ld, p, end, relu):
    """dg = Σ dS·H, and in the place of dS: dH = dS·g, zero where a ReLU is."""
    g = value[p:end]
    dg[: end - p] = 0
    for r in range(K):
        h, d = H[r * ld + p : r * ld + end], dS[r * ld + p : r * ld + end]
        for q in range(end - p):
            dg[q] += d[q] * h[q]
            d[q] = d[q] * g[q]
        if relu:
            for q in range(end - p):
                d[q] = 0 if h[q] <= 0 else d[q]


@_serial
def padded(rows, first, out, zero):
    """out = the rows from `first` on, with zeros at their end."""
    for r in range(out.shape[0]):
        for o in range(rows.shape[1]):
            out[r, o] = vectors.number(rows[first + r, o], zero)


@_serial
def pour(out, w_out, S, ld, K, low, high, begin, example, outgoing, zero, kind):
    """out[b] += Σ S · w_out gate by gate, in short rows padded to the width of `outgoing`.

    The padding of `out` may hold anything, so rows of w_out are read where they are, with the
    beginning of those after them; only the last ones need a copy with an end of their own.
    """
    size, width, n = S.itemsize, outgoing.shape[1], w_out.shape[1]
    for c in range(high - low):
        p, count, u = begin[c], begin[c + 1] - begin[c], (low + c) * K
        if count > 0 and (u + K - 1) * n + width <= w_out.size:
            _add_onto(at(out), out.shape[1], at(S) + size * p, ld,
                      at(w_out) + w_out.itemsize * u * n, n, at(example) + 4 * p, count, K, width,
                      zero, kind)  # fmt: skip
        elif count > 0:
            padded(w_out, u, outgoing, zero)
            _add_onto(at(out), out.shape[1], at(S) + size * p, ld, at(outgoing), width,
                      at(example) + 4 * p, count, K, width, zero, zero)  # fmt: skip


@_serial
def gather(out, columns, c, ld, K, rows, off, gate, place, zero, kind):
    """out[b] += Σ c · rows over the units that are on for b, in the first columns.

    More columns than rows have read the beginning of those after them.
    """
    n, size, length = rows.shape[1], c.itemsize, rows.strides[0]
    for b in range(off.shape[0] - 1):
        e, count = off[b], off[b + 1] - off[b]
        for r in range(K if count > 0 else 0):
            _add_placed(at(out) + size * b * out.shape[1], at(c) + size * r * ld,
                        at(place) + 4 * e, at(rows) + length * r, K * n,
                        at(gate) + 4 * e, count, columns, zero, kind)  # fmt: skip


@_serial
def gather_columns(out, left, right, c, ld, K, rows, low, high, begin, example, zero, kind):
    """The same for blocks, in some columns, the first of `out`; rows serve several examples."""
    n, size = rows.shape[1], c.itemsize
    for j in range(high - low):
        p, count = begin[j], begin[j + 1] - begin[j]
        if count > 0:
            _add_onto(at(out), out.shape[1], at(c) + size * p, ld,
                      at(rows) + rows.itemsize * ((low + j) * K * n + left), n,
                      at(example) + 4 * p, count, K, right - left, zero, kind)  # fmt: skip


@_serial
def write(out, S, ld, K, low, high, off, gate, place):
    """out[b, units of the block] = S, zero elsewhere: the layer without an output transform."""
    for b in range(off.shape[0] - 1):
        row = out[b]
        row[low * K : high * K] = 0
        for e in range(off[b], off[b + 1]):
            for r in range(K):
                row[gate[e] * K + r] = S[r * ld + place[e]]


@_serial
def scatter(out, dg, p, low, high, off, gate, place, clear):
    """out[b, gate] = dg, which begins at entry p; zero elsewhere if that is to be cleared."""
    for b in range(off.shape[0] - 1):
        row = out[b]
        if clear:
            row[low:high] = 0
        for e in range(off[b], off[b + 1]):
            row[gate[e]] = dg[place[e] - p]


@_serial
def differentiate(dS, ld, K, dy, w_out, w_in, low, high, begin, example, outgoing, nothing, zero):
    """dS = w_out · dy, gate by gate; rows of dy are as long as those of `outgoing`, if it has any.

    Without an output transform dS is dy itself. Rows of w_in are needed soon, if it has any.
    """
    n, size = w_out.shape[1], dS.itemsize
    for c in range(high - low):
        p, count = begin[c], begin[c + 1] - begin[c]
        if n == 0:
            for r in range(K):
                for q in range(p, p + count):
                    dS[r * ld + q] = dy[example[q], (low + c) * K + r]
        elif count > 0 and outgoing.shape[1] > 0:
            padded(w_out, (low + c) * K, outgoing, zero)
            products(dS, ld, p, count, at(outgoing), K, outgoing.shape[1], dy, example,
                     at(nothing), at(outgoing), 0, 0, zero, zero)  # fmt: skip
        elif count > 0:
            row, m = at(w_out) + size * (low + c) * K * n, w_in.shape[1]
            soon = at(w_in) + size * (low + c) * K * m if w_in.shape[0] > 0 else 0
            products(dS, ld, p, count, row, K, n, dy, example, at(nothing), row + size * K * n,
                     soon, m, zero, zero)  # fmt: skip


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


@_serial
def total(bias, c, ld, K, low, high, begin, lr):
    """bias[u] = Σ c over the examples for which u is on; with a learning rate, a step of SGD."""
    for j in range(high - low):
        for r in range(K):
            sum_ = c.dtype.type(0)
            for q in range(begin[j], begin[j + 1]):
                sum_ += c[r * ld + q]
            u = (low + j) * K + r
            bias[u] = sum_ if lr < 0 else bias[u] - lr * sum_


@_serial
def weigh(out, c, ld, K, x, low, high, begin, example, scaled, lr, most, zero):
    """out[u] = Σ c x over the examples for which u is on: a weight's gradient.

    With a learning rate (-1: none) it is one step of SGD instead, out[u] -= lr Σ c x for units that
    are on, after which these rows are no longer than `most` (0: any length). A gradient that no
    cache holds is written past them: else each line would be read first.
    """
    n, size = x.shape[1], c.itemsize
    # Shorter vectors in tiles would write parts of lines, which is slower than to read them first.
    past = (
        size * out.size >= LARGE
        and at(out) % vectors.VECTOR == size * n % vectors.VECTOR == 0
        and (K < 4 or vectors.WHOLE_LINES)
    )
    for j in range(high - low):
        p, count, u = begin[j], begin[j + 1] - begin[j], (low + j) * K
        i, address = at(example) + 4 * p, at(out) + size * u * n
        if count == 0:
            if lr < 0 and past:
                vectors.clear(address, K * n, zero)
            elif lr < 0:
                out[u : u + K] = 0
            continue
        factors, ldc = at(c) + size * p, ld
        if lr >= 0:
            factors, ldc = at(scaled), scaled.shape[1]
            for r in range(K):
                for q in range(count):
                    scaled[r, q] = -lr * c[r * ld + p + q]
        if K >= 4 and lr >= 0:
            _add_rows(address, n, factors, ldc, at(x), n, i, K, count, n, zero, zero)
        elif K >= 4 and past:
            _past_rows(address, n, factors, ldc, at(x), n, i, K, count, n, zero, zero)
        elif K >= 4:
            _set_rows(address, n, factors, ldc, at(x), n, i, K, count, n, zero, zero)
        for r in range(K if K < 4 else 0):
            row, c_r = address + size * r * n, factors + size * r * ldc
            if lr >= 0:
                _add_row(row, c_r, 0, at(x), n, i, count, n, zero, zero)
            elif past and count <= 8:
                _past_row(row, c_r, 0, at(x), n, i, count, n, zero, zero)
            else:
                _set_row(row, c_r, 0, at(x), n, i, count, n, zero, zero)
        for r in range(K if most > 0 else 0):
            _limit(out[u + r], most)
    if past and lr < 0:
        vectors.settle(zero)


@_serial
def mask(value, h, low, high, begin, example):
    """value = 0 where h is not positive."""
    for c in range(high - low):
        for q in range(begin[c], begin[c + 1]):
            if h[example[q], low + c] <= 0:
                value[q] = 0

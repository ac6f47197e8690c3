"""What one thread does of a pass over the gates: every T-th chunk, from index to output.

Arguments are addresses (0 for what is not there), sizes, a zero that gives the dtype, and in the
forward pass `kind`, another that gives that of the weights. Each is compiled once and called by its
address: linked into the functions that start the threads, it would be optimised again in each of
them, which took minutes.

A slot is room for the index of one chunk. With a slot for each chunk the lists are kept: those of
share t follow one another from its first slot on, and room that is not needed is not touched. With
a slot for each share, every chunk overwrites the last.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit

from hardgate.kernels.compiled import chunk, index, layout, vectors
from hardgate.kernels.compiled.layout import BLOCK, LINE, NARROW, SLAB

# Numba's cache on disk watches the file of a function and nothing else, so this file has to change
# when those it calls do: `hardgate.kernels.compiler` holds them together.
CALLED = "61405af6abccf981"

_serial = njit(**index.OPTIONS)

_scan = index.scan
length, of_index, of_values = (
    _serial(layout.length),
    _serial(layout.of_index),
    _serial(layout.of_values),
)
at_once = _serial(layout.at_once)


@_serial
def matrix(address, rows, columns, zero):
    """The numbers at the address; no rows where there are none."""
    return carray(vectors.pointer(address, zero), (rows if address != 0 else 0, columns))


@_serial
def vector(address, length, zero):
    """The numbers at the address; none where there are none."""
    return carray(vectors.pointer(address, zero), (length if address != 0 else 0,))


@_serial
def _first(slots, T, t):
    """The first slot of share t, which has its T-th part of them."""
    return t * (slots // T) + min(t, slots % T)


@_serial
def _lists(address, slots, C, B):
    """A row for each slot; example, gate and place by entry."""
    first, n = of_index(slots, C, B, 0), length(slots, C, B)
    ints = vector(address, of_index(slots, C, B, n), np.int32(0))
    return (
        ints[:first].reshape(slots, C + B + 2 + LINE),
        ints[first : first + n],
        ints[first + n : first + 2 * n],
        ints[first + 2 * n :],
    )


@_serial
def _slot(slot, s, C, B):
    """begin and off of one chunk."""
    return slot[s, : C + 1], slot[s, C + 1 : C + B + 2]


@_serial
def _values(address, n, K, zero):
    """value, H, S."""
    floats = vector(address, of_values(K, n), zero)
    return floats[:n], floats[n : (K + 1) * n], floats[(K + 1) * n :]


@_serial
def whole(n):
    """n and what it lacks to whole vectors."""
    return (n + vectors.LANES - 1) // vectors.LANES * vectors.LANES


@_serial
def width(n):
    """Of rows of n numbers to add into: whole vectors, or no multiple of a page."""
    return whole(n) if n <= NARROW else n + 16


@_serial
def _reads_on(rows, end, columns):
    """Whether short rows before `end` can be read as if they had so many columns."""
    n = rows.shape[1]
    return n <= NARROW and (end - 1) * n + columns <= rows.size


@_serial
def _part(t, parts, B, n, zero):
    """The rows that share t adds into; two more of them keep the shares' cache lines apart."""
    of_all = matrix(parts, (t + 1) * (B + 2), width(n), zero)
    out = of_all[of_all.shape[0] - (B + 2) if parts != 0 else 0 :]
    out[:] = 0
    return out


def up(t, y, x, gates, w_in, b_in, w_out, parts, ints, floats, slots, B, G, K, n, O, relu, C, T,
       zero, kind):  # fmt: skip
    """H = w_in · x + b_in and S = g·H for each entry, and what they add to the output."""
    slot, example, gate, place = _lists(ints, slots, C, B)
    value, H, S = _values(floats, length(slots, C, B), K, zero)
    rows, inputs = matrix(gates, B, G, zero), matrix(x, B, n, zero)
    outgoing = matrix(w_out, G * K, O, kind)
    cursor, found = np.empty(C, np.int32), np.empty(C + 8, np.int32)
    held = np.empty(C * B, value.dtype)
    ld, chunks, size = length(slots, C, B), (G + C - 1) // C, inputs.itemsize
    row = vectors.size(kind) * n
    out = _part(t, parts, B, O, zero)
    short = np.zeros((K, out.shape[1] if O <= NARROW else 0), value.dtype)
    bias = np.zeros(G * K, value.dtype) if b_in == 0 else vector(b_in, G * K, zero)
    soon = w_out if parts != 0 and O > NARROW else 0  # which the chunk reads after w_in
    p = _first(slots, T, t) * C * B
    for k in range(t, chunks, T):
        low, high = k * C, min(G, k * C + C)
        begin, off = _slot(slot, k if slots == chunks else t, C, B)
        end = _scan(rows, low, high, p, begin, off, example, value, gate, place, cursor,
                    found, held, zero)  # fmt: skip
        c = chunk.on_from(0, begin, high - low)
        while c < high - low:
            first, count, u = begin[c], begin[c + 1] - begin[c], (low + c) * K
            c = chunk.on_from(c + 1, begin, high - low)
            chunk.products(H, ld, first, count, w_in + row * u, K, n, inputs, example,
                           chunk.at(bias) + size * u, w_in + row * (low + c) * K,
                           soon + vectors.size(kind) * u * O if soon != 0 else 0, O, zero,
                           kind)  # fmt: skip
        chunk.scale(value, H, S, K, ld, p, end, relu)
        if parts != 0 and K < BLOCK and _reads_on(outgoing, high * K, out.shape[1]):
            chunk.gather(out, out.shape[1], S, ld, K, outgoing, off, gate, place, zero, kind)
        elif parts != 0 and O <= NARROW:
            chunk.pour(out, outgoing, S, ld, K, low, high, begin, example, short, zero, kind)
        elif parts != 0 and K >= BLOCK:
            chunk.gather_columns(out, 0, O, S, ld, K, outgoing, low, high, begin, example, zero,
                                 kind)  # fmt: skip
        elif parts != 0:
            chunk.gather(out, O, S, ld, K, outgoing, off, gate, place, zero, kind)
        elif w_out == 0 and y != 0:
            chunk.write(matrix(y, B, G * K, zero), S, ld, K, low, high, off, gate, place)
        p = end if slots == chunks else p


def down(t, y, bias, c, rows, ints, slots, B, G, K, n, C, T, zero, kind):
    """Some columns of y[b] = bias + Σ c · rows, for blocks: a strip of them at a time."""
    slot, example, _, _ = _lists(ints, slots, C, B)
    ld = length(slots, C, B)
    numbers, shift = vector(c, K * ld, zero), vector(bias, n, zero)
    out, weights = matrix(y, B, n, zero), matrix(rows, G * K, n, kind)
    left, right = n * t // T // 16 * 16, n * (t + 1) // T // 16 * 16 if t + 1 < T else n
    strip = min(max(64, SLAB // B // 32 * 32), right - left)
    part = np.empty((B, strip + LINE), numbers.dtype)
    for first in range(left, right, max(1, strip)):
        end = min(first + strip, right)
        part[:] = 0
        for k in range(slots):
            low, high = k * C, min(G, k * C + C)
            begin, _ = _slot(slot, k, C, B)
            chunk.gather_columns(part, first, end, numbers, ld, K, weights, low, high, begin,
                                 example, zero, kind)  # fmt: skip
        for b in range(B):
            for o in range(first, end):
                out[b, o] = part[b, o - first] + (shift[o] if shift.shape[0] > 0 else 0)


def back(t, dy, w_in, w_out, ints, floats, dH, dgates, parts, slots, B, G, K, n, O, columns, clear,
         weighted, relu, C, T, zero):  # fmt: skip
    """dS = w_out · dy, dH = dS·g, the gate's gradient dg = Σ dS·H, and what goes back to x.

    The gradient of a gate that is probed is weighted by what it was probed with.
    """
    slot, example, gate, place = _lists(ints, slots, C, B)
    value, H, _ = _values(floats, length(slots, C, B), K, zero)
    numbers, out = vector(dH, K * length(slots, C, B), zero), _part(t, parts, B, n, zero)
    output, gradient = matrix(dy, B, columns, zero), matrix(dgates, B, G, zero)
    incoming, outgoing = matrix(w_in, G * K, n, zero), matrix(w_out, G * K, O, zero)
    soon = incoming[: G * K if parts != 0 else 0]  # which the chunk reads after w_out
    ld, nothing = length(slots, C, B), np.zeros(K, value.dtype)
    short = np.zeros((K, columns if 0 < O <= NARROW else 0), value.dtype)
    dg = np.empty(C * B, value.dtype)
    for k in range(t, slots, T):
        low, high = k * C, min(G, k * C + C)
        begin, off = _slot(slot, k, C, B)
        p, end = begin[0], begin[high - low]
        chunk.differentiate(numbers, ld, K, output, outgoing, soon, low, high, begin, example,
                            short, nothing, zero)  # fmt: skip
        chunk.chain(numbers, H, value, dg, K, ld, p, end, relu)
        for q in range(end - p if weighted else 0):
            dg[q] *= value[p + q]
        if dgates != 0:
            chunk.scatter(gradient, dg, p, low, high, off, gate, place, clear)
        if parts != 0 and K >= BLOCK:
            chunk.gather_columns(out, 0, n, numbers, ld, K, incoming, low, high, begin, example,
                                 zero, zero)  # fmt: skip
        elif parts != 0:
            chunk.gather(out, n, numbers, ld, K, incoming, off, gate, place, zero, zero)


def weigh(t, dw_in, db_in, dw_out, dH, floats, x, dy, ints, slots, B, G, K, n, O, lr, most, C, T,
          zero):  # fmt: skip
    """The gradients of the weights, or with a learning rate the weights a step further."""
    slot, example, _, _ = _lists(ints, slots, C, B)
    into, out_of = matrix(dw_in, G * K, n, zero), matrix(dw_out, G * K, O, zero)
    bias = vector(db_in, G * K, zero)
    inputs, output = matrix(x, B, n, zero), matrix(dy, B, O, zero)
    ld, scaled = length(slots, C, B), np.empty((K, B), inputs.dtype)
    _, _, sums = _values(floats, ld, K, zero)
    experts = vector(dH, K * ld, zero)
    for k in range(t, slots, T):
        low, high = k * C, min(G, k * C + C)
        begin, _ = _slot(slot, k, C, B)
        if db_in != 0:
            chunk.total(bias, experts, ld, K, low, high, begin, lr)
        if dw_in != 0:
            chunk.weigh(into, experts, ld, K, inputs, low, high, begin, example, scaled, lr,
                        most, zero)  # fmt: skip
        if dw_out != 0:
            chunk.weigh(out_of, sums, ld, K, output, low, high, begin, example, scaled, lr, 0.0,
                        zero)  # fmt: skip


def linear(t, da, h, z, w, dw, db, parts, B, G, n, lr, most, C, T, zero):
    """Parts of dz = da w, dw = daᵀ z and db = Σ da over the entries of da that are not zero."""
    begin, off = np.empty(C + 1, np.int32), np.empty(B + 1, np.int32)
    example, gate = np.empty(C * B, np.int32), np.empty(C * B, np.int32)
    place, out = np.empty(C * B, np.int32), _part(t, parts, B, n, zero)
    cursor, found = np.empty(C, np.int32), np.empty(C + 8, np.int32)
    gradient, positive = matrix(da, B, G, zero), matrix(h, B, G, zero)
    inputs = matrix(z, B, n, zero)
    weights, target, bias = matrix(w, G, n, zero), matrix(dw, G, n, zero), vector(db, G, zero)
    scaled, value = np.empty((1, B), inputs.dtype), np.empty(C * B, inputs.dtype)
    held = np.empty(C * B, inputs.dtype)
    for k in range(t, (G + C - 1) // C, T):
        low, high = k * C, min(G, k * C + C)
        _scan(gradient, low, high, 0, begin, off, example, value, gate, place, cursor, found, held,
              zero)  # fmt: skip
        if h != 0:
            chunk.mask(value, positive, low, high, begin, example)
        if parts != 0:
            chunk.gather(out, n, value, 0, 1, weights, off, gate, place, zero, zero)
        if db != 0:
            chunk.total(bias, value, 0, 1, low, high, begin, lr)
        if dw != 0:
            chunk.weigh(target, value, 0, 1, inputs, low, high, begin, example, scaled, lr, most,
                        zero)  # fmt: skip

"""The kernels: the conditional layer on a CPU, touching only (example, gate) pairs that are on.

Gates are taken in chunks, and everything that is done with a chunk is done while it is in the
cache: its index, its experts, their part of the output. Thread t takes the chunks t, t + T, …, and
adds into rows of its own, so results do not depend on timing.

First come the functions for one thread of a pass. Each is compiled by itself and called by its
address: inlined into the functions that start the threads, it would be optimised again in each of
them, which took minutes. Arguments are addresses (0 for what is not there), sizes, a zero that
gives the dtype, and in the forward pass `kind`, another zero that gives the dtype of the weights.

Then come the functions that Python calls. They take the addresses of those for one thread, and
addresses of tensors too: unpacking a dozen arrays would take as long as a small layer.

A slot is memory for the index of one chunk. With a slot for each chunk the lists are kept: those of
thread t follow one another from its first slot on, and memory that is not needed is not touched.
With a slot for each thread, every chunk overwrites the last.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, prange

from hardgate.kernels.compiled import chunk, index, layout, vectors
from hardgate.kernels.compiled.layout import BLOCK, LINE, NARROW, SLAB

# Numba's cache on disk watches the file of a function and nothing else, so this file has to change
# when those that it calls do. `hardgate.kernels.compiler` checks it, and says what to write here.
CALLED = "2d1b0bba7e362a29"

_inline = njit(**index.OPTIONS)
_serial = njit(cache=True, **index.OPTIONS)
_parallel = njit(cache=True, parallel=True, **index.OPTIONS)

length, of_index = _inline(layout.length), _inline(layout.of_index)
of_values, at_once = _inline(layout.of_values), _inline(layout.at_once)
call = vectors.call


@_inline
def matrix(address, rows, columns, zero):
    """The numbers at the address; no rows where there are none."""
    return carray(vectors.pointer(address, zero), (rows if address != 0 else 0, columns))


@_inline
def vector(address, length, zero):
    """The numbers at the address; none where there are none."""
    return carray(vectors.pointer(address, zero), (length if address != 0 else 0,))


@_inline
def _first(slots, T, t):
    """The first slot of thread t, which has its T-th part of them."""
    return t * (slots // T) + min(t, slots % T)


@_inline
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


@_inline
def _slot(slot, s, C, B):
    """begin and off of one chunk."""
    return slot[s, : C + 1], slot[s, C + 1 : C + B + 2]


@_inline
def _values(address, n, K, zero):
    """value, H, S."""
    floats = vector(address, of_values(K, n), zero)
    return floats[:n], floats[n : (K + 1) * n], floats[(K + 1) * n :]


@_inline
def whole(n):
    """n and what it lacks to whole vectors."""
    return (n + vectors.LANES - 1) // vectors.LANES * vectors.LANES


@_inline
def width(n):
    """Of rows of n numbers to add into: whole vectors, or no multiple of a page."""
    return whole(n) if n <= NARROW else n + 16


@_inline
def _reads_on(rows, end, columns):
    """Whether short rows before `end` can be read as if they had so many columns."""
    n = rows.shape[1]
    return n <= NARROW and (end - 1) * n + columns <= rows.size


@_inline
def _part(t, parts, B, n, zero):
    """The rows that thread t adds into; two more of them keep the threads' cache lines apart."""
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
        end = index.scan(rows, low, high, p, begin, off, example, value, gate, place, cursor,
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
        index.scan(gradient, low, high, 0, begin, off, example, value, gate, place, cursor, found,
                   held, zero)  # fmt: skip
        if h != 0:
            chunk.mask(value, positive, low, high, begin, example)
        if parts != 0:
            chunk.gather(out, n, value, 0, 1, weights, off, gate, place, zero, zero)
        if db != 0:
            chunk.total(bias, value, 0, 1, low, high, begin, lr)
        if dw != 0:
            chunk.weigh(target, value, 0, 1, inputs, low, high, begin, example, scaled, lr, most,
                        zero)  # fmt: skip


# fmt: off


@_serial
def count(gates, B, G, every, zero):
    """How many gates are on, in every so many examples."""
    rows, n = matrix(gates, B, G, zero), 0
    for b in range(0, B, every):
        row, m = rows[b], np.int32(0)
        for j in range(G):
            m += np.int32(row[j] != 0)
        n += m
    return n


@_serial
def _parts(wanted, T, B, n, zero):
    """Rows for each thread to add into."""
    return np.empty((T, B + 2 if wanted else 0, width(n)), type(zero))


@_serial
def _add(y, bias, parts, B, n, zero):
    """y = bias + what the threads have added up."""
    out, shift = matrix(y, B, n, zero), vector(bias, n, zero)
    for b in range(B):
        row = out[b]
        for o in range(n):
            row[o] = shift[o] if shift.shape[0] > 0 else 0
        for t in range(parts.shape[0]):
            part = parts[t, b]
            for o in range(n):
                row[o] += part[o]


@_parallel
def forward(up, down, y, x, gates, w_in, b_in, w_out, b_out, ints, floats, slots, B, G, K, n, O,
            relu, C, T, zero, kind):
    """y, and in ints and floats, if they are there, what the backward pass needs.

    Without a w_out y is S; with one of no columns, nothing. `kind` is that of w_in and w_out.
    """
    n_list, in_one_pass = length(slots, C, B), O > 0 and at_once(K, B, O)
    lists = np.empty(of_index(slots, C, B, n_list) if ints == 0 else 0, np.int32)
    values = np.empty(of_values(K, n_list) if floats == 0 else 0, type(zero))
    parts = _parts(in_one_pass, T, B, O, zero)
    index_at = chunk.at(lists) if ints == 0 else ints
    values_at = chunk.at(values) if floats == 0 else floats
    parts_at, rectified = chunk.at(parts) if in_one_pass else 0, np.int64(relu)
    for t in prange(T):
        call(up, (np.int64(t), y, x, gates, w_in, b_in, w_out, parts_at, index_at, values_at,
                  slots, B, G, K, n, O, rectified, C, T, zero, kind))
    if in_one_pass:
        _add(y, b_out, parts, B, O, zero)
    elif O > 0:
        S = values_at + values.itemsize * (K + 1) * n_list
        for t in prange(T):
            call(down, (np.int64(t), y, b_out, S, w_out, index_at, slots, B, G, K, O, C, T, zero,
                        kind))
    return lists.size + values.size + parts.size  # which must live until here


@_serial
def _pad(dy, B, n, zero):
    """Short rows with zeros at their end, so that they are whole vectors; nothing for others."""
    out = np.zeros((B if 0 < n <= NARROW else 0, whole(n)), type(zero))
    rows = matrix(dy, B, n, zero)
    for b in range(out.shape[0]):
        for o in range(n):
            out[b, o] = rows[b, o]
    return out


@_serial
def _column_sums(out, rows, lr):
    """out = Σ rows; with a learning rate, a step of SGD instead."""
    sums = np.zeros(out.shape[0], out.dtype)
    for b in range(rows.shape[0] if out.shape[0] > 0 else 0):
        row = rows[b]
        for k in range(sums.shape[0]):
            sums[k] += row[k]
    for k in range(sums.shape[0]):
        out[k] = sums[k] if lr < 0 else out[k] - lr * sums[k]


@_parallel
def backward(back, down, weigh, dy, x, w_in, w_out, ints, floats, dx, dgates, dw_in, db_in, dw_out,
             db_out, slots, B, G, K, n, O, clear, weighted, relu, lr, most, C, T, zero):
    """The gradients that have an address, or with a learning rate the weights a step further.

    The gradient of a gate that is probed is weighted by what it was probed with.
    """
    in_one_pass = dx != 0 and at_once(K, B, n)
    cleared, probed = np.int64(clear), np.int64(weighted)
    dH = np.empty(K * length(slots, C, B), type(zero))
    parts = _parts(in_one_pass, T, B, n, zero)
    short = _pad(dy, B, O, zero)
    dH_at, parts_at = chunk.at(dH), chunk.at(parts) if in_one_pass else 0
    rows, columns = dy, O if w_out != 0 else G * K
    if short.shape[0] > 0:
        rows, columns = chunk.at(short), short.shape[1]
    rectified = np.int64(relu)
    for t in prange(T):
        call(back, (np.int64(t), rows, w_in, w_out, ints, floats, dH_at, dgates, parts_at, slots, B,
                    G, K, n, O, columns, cleared, probed, rectified, C, T, zero))
    if in_one_pass:
        _add(dx, 0, parts, B, n, zero)
    elif dx != 0:  # before the weights, which a step changes
        for t in prange(T):
            call(down, (np.int64(t), dx, 0, dH_at, w_in, ints, slots, B, G, K, n, C, T, zero, zero))
    if dw_in != 0 or db_in != 0 or dw_out != 0:
        for t in prange(T):
            call(weigh, (np.int64(t), dw_in, db_in, dw_out, dH_at, floats, x, dy, ints, slots, B, G,
                         K, n, O, lr, most, C, T, zero))
    _column_sums(vector(db_out, O, zero), matrix(dy, B, O, zero), lr)
    return dH.size + parts.size + short.size  # which must live until here


@_parallel
def linear_backward(linear, da, h, z, w, dz, dw, db, B, G, n, lr, most, C, T, zero):
    """dz = da w, dw = daᵀ z and db = Σ da over the entries of da that are not zero.

    Where h is given and not positive, da counts as zero. A learning rate: as in `backward`.
    """
    parts = _parts(dz != 0, T, B, n, zero)
    parts_at = chunk.at(parts) if dz != 0 else 0
    for t in prange(T):
        call(linear, (np.int64(t), da, h, z, w, dw, db, parts_at, B, G, n, lr, most, C, T, zero))
    if dz != 0:
        _add(dz, 0, parts, B, n, zero)
    return parts.size  # which must live until here

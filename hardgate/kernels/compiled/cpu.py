"""The kernels: the conditional layer on a CPU, touching only (example, gate) pairs that are on.

Gates are taken in chunks, and everything that is done with a chunk is done while it is in the
cache: its index, its experts, their part of the output. Share t takes the chunks t, t + T, …, and
adds into rows of its own, so results do not depend on timing.

These are the functions that Python calls. They take the addresses of what the shares do (see
`per_thread`), the addresses of tensors (0 for what is not there), sizes, and a zero of the
dtype: unpacking a dozen arrays would take as long as a small layer.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from hardgate.kernels.compiled import chunk, index, per_thread
from hardgate.kernels.compiled.call import call
from hardgate.kernels.compiled.layout import NARROW

# Numba's cache on disk watches the file of a function and nothing else, so this file has to change
# when those it calls do: `hardgate.kernels.compiler` holds them together.
CALLED = "b01f20969e3d62cf"

_serial = njit(cache=True, **index.OPTIONS)
_parallel = njit(cache=True, parallel=True, **index.OPTIONS)

_at = chunk.at

# fmt: off


@_serial
def count(gates, B, G, every, zero):
    """How many gates are on, in every so many examples."""
    rows, n = per_thread.matrix(gates, B, G, zero), 0
    for b in range(0, B, every):
        row, m = rows[b], np.int32(0)
        for j in range(G):
            m += np.int32(row[j] != 0)
        n += m
    return n


@_serial
def finite(address, n, zero):
    """Whether none of n numbers is NaN or infinite: times zero, either is NaN."""
    numbers, total = per_thread.vector(address, n, zero), zero
    for k in range(n):
        total += numbers[k] * zero
    return total == 0


@_serial
def _parts(wanted, T, B, n, zero):
    """Rows for each share to add into."""
    return np.empty((T, B + 2 if wanted else 0, per_thread.width(n)), type(zero))


@_serial
def _add(y, bias, parts, B, n, zero):
    """y = bias + what the shares have added up."""
    out, shift = per_thread.matrix(y, B, n, zero), per_thread.vector(bias, n, zero)
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
    room, at_once = per_thread.length(slots, C, B), O > 0 and per_thread.at_once(K, B, O)
    lists = np.empty(per_thread.of_index(slots, C, B, room) if ints == 0 else 0, np.int32)
    values = np.empty(per_thread.of_values(K, room) if floats == 0 else 0, type(zero))
    parts = _parts(at_once, T, B, O, zero)
    index_at, values_at = _at(lists) if ints == 0 else ints, _at(values) if floats == 0 else floats
    parts_at, rectified = _at(parts) if at_once else 0, np.int64(relu)
    for t in prange(T):
        call(up, (np.int64(t), y, x, gates, w_in, b_in, w_out, parts_at, index_at, values_at,
                  slots, B, G, K, n, O, rectified, C, T, zero, kind))
    if at_once:
        _add(y, b_out, parts, B, O, zero)
    elif O > 0:
        S = values_at + values.itemsize * (K + 1) * room
        for t in prange(T):
            call(down, (np.int64(t), y, b_out, S, w_out, index_at, slots, B, G, K, O, C, T, zero,
                        kind))
    return lists.size + values.size + parts.size  # which must live until here


@_serial
def _pad(dy, B, n, zero):
    """Short rows with zeros at their end, so that they are whole vectors; nothing for others."""
    out = np.zeros((B if 0 < n <= NARROW else 0, per_thread.whole(n)), type(zero))
    rows = per_thread.matrix(dy, B, n, zero)
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
    at_once = dx != 0 and per_thread.at_once(K, B, n)
    cleared, probed = np.int64(clear), np.int64(weighted)
    dH = np.empty(K * per_thread.length(slots, C, B), type(zero))
    parts = _parts(at_once, T, B, n, zero)
    short = _pad(dy, B, O, zero)
    dH_at, parts_at = _at(dH), _at(parts) if at_once else 0
    rows, columns = dy, O if w_out != 0 else G * K
    if short.shape[0] > 0:
        rows, columns = _at(short), short.shape[1]
    rectified = np.int64(relu)
    for t in prange(T):
        call(back, (np.int64(t), rows, w_in, w_out, ints, floats, dH_at, dgates, parts_at, slots, B,
                    G, K, n, O, columns, cleared, probed, rectified, C, T, zero))
    if at_once:
        _add(dx, 0, parts, B, n, zero)
    elif dx != 0:  # before the weights, which a step changes
        for t in prange(T):
            call(down, (np.int64(t), dx, 0, dH_at, w_in, ints, slots, B, G, K, n, C, T, zero, zero))
    if dw_in != 0 or db_in != 0 or dw_out != 0:
        for t in prange(T):
            call(weigh, (np.int64(t), dw_in, db_in, dw_out, dH_at, floats, x, dy, ints, slots, B, G,
                         K, n, O, lr, most, C, T, zero))
    _column_sums(per_thread.vector(db_out, O, zero), per_thread.matrix(dy, B, O, zero), lr)
    return dH.size + parts.size + short.size  # which must live until here


@_serial
def _through_tanh(dz, z, dc, lr):
    """dz·(1 - z²) in the place of dz, and its sum over the examples; or a step by it."""
    for b in range(dz.shape[0]):
        for k in range(dz.shape[1]):
            dz[b, k] *= 1 - z[b, k] * z[b, k]
    _column_sums(dc, dz, lr)


@_parallel
def linear_backward(linear, da, h, z, w, dz, dw, db, dc, B, G, n, tanh, lr, most, C, T, zero):
    """dz = da w, dw = daᵀ z and db = Σ da over the entries of da that are not zero.

    Where h is given and not positive, da counts as zero. With `tanh`, z = tanh(s), and dz is the
    gradient of s, dc the sum of it. A learning rate: as in `backward`.
    """
    parts = _parts(dz != 0, T, B, n, zero)
    parts_at = _at(parts) if dz != 0 else 0
    for t in prange(T):
        call(linear, (np.int64(t), da, h, z, w, dw, db, parts_at, B, G, n, lr, most, C, T, zero))
    if dz != 0:
        _add(dz, 0, parts, B, n, zero)
    if dz != 0 and tanh:
        _through_tanh(per_thread.matrix(dz, B, n, zero), per_thread.matrix(z, B, n, zero),
                      per_thread.vector(dc, n, zero), lr)
    return parts.size  # which must live until here

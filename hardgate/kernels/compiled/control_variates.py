"""Learnt control variates in one call: what they are, and how they learn from what they missed.

On a few numbers a dozen operations of torch take some hundred microseconds, nearly all of it to
start them. `hardgate.estimators.nvil`, with the network it trains, and `linear_cv` are the
definition. All in this one file, which is what Numba's cache watches. Arguments are addresses of
numbers in fp32, sizes and settings.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

_options = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",
    "nogil": True,
    "cache": True,
}
_POWERS = [np.float32(math.log(2) ** k / math.factorial(k)) for k in range(7)]
_E0, _E1, _E2, _E3, _E4, _E5, _E6 = _POWERS
_LARGE = np.float32(9.0)  # from where on tanh is 1 in fp32
_LARGEST = np.finfo(np.float32).max
_HALF = np.float32(0.5)


@intrinsic
def _floats(context, address):
    def generate(context, b, signature, values):
        return b.inttoptr(values[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@intrinsic
def _power(context, n):
    """2ⁿ in fp32, by its exponent's bits."""

    def generate(context, b, signature, values):
        word = ir.IntType(32)
        return b.bitcast(b.shl(b.add(values[0], word(127)), word(23)), ir.FloatType())

    return types.float32(types.int32), generate


@njit(**_options)
def _tanh(z):
    """tanh of each, in its place, to 3e-7: 1 - 2/(1 + e^{2z}), and 2^t by its whole part."""
    for k in range(z.shape[0]):
        x = min(max(z[k], -_LARGE), _LARGE)
        t = x * np.float32(2 / math.log(2))
        whole = math.floor(t + np.float32(0.5))
        r = np.float32(t - whole)
        rest = _E0 + r * (_E1 + r * (_E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * _E6)))))
        e = rest * _power(np.int32(whole))
        z[k] = np.float32(1) - np.float32(2) / (np.float32(1) + e) if z[k] == z[k] else z[k]


@njit(**_options)
def _finite(x):
    """By its size: math.isfinite asks whether x - x is zero, which LLVM may take for granted."""
    return math.fabs(x) <= _LARGEST


@njit(**_options)
def _moved(sums, by, decay):
    """sums ← decay · sums + by, unless one would not be finite: as `averages.decay_`."""
    kept, total = np.float32(decay), np.float32(0)
    for k in range(sums.shape[0]):
        by[k] += kept * sums[k]
        total += by[k]
    if _finite(total):
        for k in range(sums.shape[0]):
            sums[k] = by[k]


@njit(**_options)
def _adam(psi, gradient, first, second, steps, rate, decay1, decay2, epsilon):
    """As `hardgate.estimators._adam`."""
    total = np.float32(0)
    for k in range(gradient.shape[0]):
        total += gradient[k]
    if not _finite(total):
        return
    steps[0] += 1
    n, tiny = np.float64(steps[0]), np.float32(epsilon)
    new1, new2, kept = np.float32(1 - decay1), np.float32(1 - decay2), np.float32(decay2)
    step, root = np.float32(rate / (1 - decay1**n)), np.float32(1 / math.sqrt(1 - decay2**n))
    for k in range(gradient.shape[0]):
        g = gradient[k]
        first[k] += new1 * (g - first[k])
        second[k] = kept * second[k] + new2 * g * g
        psi[k] -= step * first[k] / (math.sqrt(second[k]) * root + tiny)


@njit(**_options)
def nvil(rest, L, x, psi, first, second, steps, sums, B, N, H, rate, decay1, decay2, epsilon,
         decay, learn):  # fmt: skip
    """rest = L - C_ψ(x) - c; then, if it is to learn, C_ψ, c and s are moved by it.

    L and rest `[B]`, x `[B, N]`; without hidden units C_ψ is zero.
    """
    out, losses = carray(_floats(rest), (B,)), carray(_floats(L), (B,))
    inputs, known = carray(_floats(x), (B, N)), carray(_floats(sums), (3,))
    size = H * (N + 2) + 1 if H > 0 else 0
    weights, gradient = carray(_floats(psi), (size,)), np.zeros(size, np.float32)
    hidden, back = np.empty((B, H), np.float32), np.empty(H, np.float32)
    # Transposed, so that the inner loops are over the hidden units, however few inputs there are.
    W, dW = np.empty((N, H), np.float32), np.zeros((N, H), np.float32)
    for h in range(H):
        for i in range(N):
            W[i, h] = weights[h * N + i]
    bias, outer = weights[H * N : H * (N + 1)], weights[H * (N + 1) : H * (N + 2)]
    db, dw = gradient[H * N : H * (N + 1)], gradient[H * (N + 1) : H * (N + 2)]
    c = known[1] / max(known[0], np.float32(1e-30))
    factor = np.float32(-2 / max(1, B))
    for b in range(B):
        z = hidden[b]
        for h in range(H):
            z[h] = bias[h]
        for i in range(N):
            value, row = inputs[b, i], W[i]
            for h in range(H):
                z[h] += value * row[h]
        _tanh(z)
        predicted = weights[size - 1] if H > 0 else np.float32(0)
        for h in range(H):
            predicted += z[h] * outer[h]
        out[b] = losses[b] - predicted - c
        if not learn or H == 0:
            continue
        by = out[b] * factor
        gradient[size - 1] += by
        for h in range(H):
            dw[h] += by * z[h]
            back[h] = by * outer[h] * (np.float32(1) - z[h] * z[h])
            db[h] += back[h]
        for i in range(N):
            value, row = inputs[b, i], dW[i]
            for h in range(H):
                row[h] += value * back[h]
    if learn and H > 0:
        for h in range(H):
            for i in range(N):
                gradient[h * N + i] = dW[i, h]
        _adam(weights, gradient, carray(_floats(first), (size,)),
              carray(_floats(second), (size,)), carray(_floats(steps), (1,)), rate, decay1,
              decay2, epsilon)  # fmt: skip
    if learn:
        r = np.zeros(3, np.float32)
        for b in range(B):
            beyond = out[b] + c
            r[0] += 1
            r[1] += beyond
            r[2] += beyond * beyond
        _moved(known, r, decay)


@njit(**_options)
def linear_cv(out, b, p, q, L, sums, B, D, decay, learn):
    """out = g + α v of two samples; then, if it is to learn, w and α are moved by it.

    out, p and q `[B, D]`, b `[2, B, D]`, L `[2, B]`, sums `[2, D + 1]`.
    """
    result, pair = carray(_floats(out), (B, D)), carray(_floats(b), (2, B, D))
    one, other = carray(_floats(p), (B, D)), carray(_floats(q), (B, D))
    losses, known = carray(_floats(L), (2, B)), carray(_floats(sums), (2 * (D + 1),))
    w, now = np.empty(D + 1, np.float32), np.zeros(2 * (D + 1), np.float32)
    above, below = now[: D + 1], now[D + 1 :]
    for i in range(D + 1):
        ratio = known[i] / known[D + 1 + i]
        w[i] = ratio if _finite(ratio) else np.float32(0)
    alpha, product, square = w[D], np.float32(0), np.float32(0)
    for r in range(B):
        first, second, ps, qs, to = pair[0, r], pair[1, r], one[r], other[r], result[r]
        slope = np.float32(0)
        for i in range(D):
            slope += (first[i] - second[i]) * w[i]
        difference, slope = (losses[0, r] - losses[1, r]) * _HALF, slope * _HALF
        for i in range(D):
            s, variance = (first[i] - second[i]) * max(ps[i], qs[i]), ps[i] * qs[i]
            g, v = difference * s, slope * s - w[i] * variance
            to[i] = g + alpha * v
            above[i] += to[i]
            below[i] += variance
            product += g * v
            square += v * v
    if learn:
        above[D], below[D] = -product, square
        _moved(known, now, decay)

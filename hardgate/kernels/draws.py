"""Random numbers as fast as the kernels that use them: torch draws on one thread, some 5 ns each.

xoshiro128++ (Blackman & Vigna), many generators side by side, so that LLVM makes vectors of them.
Numbers come in blocks with a seed of their own, drawn by SplitMix64 from the seed of the call: the
same numbers for any number of threads. All in this one file, which is what Numba's cache watches.
"""

from __future__ import annotations

import math

import numpy as np
from llvmlite import ir
from numba import carray, njit, prange, types
from numba.extending import intrinsic

_LANES = 32  # generators side by side
_BLOCK = 4096  # numbers of one seed

_options = {
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
    "error_model": "numpy",  # a division that may raise is no vector
    "nogil": True,
    "cache": True,
}


def _bitcast(to):
    @intrinsic
    def bitcast(context, x):
        def generate(context, b, signature, values):
            (value,) = values
            if to is types.int32:
                return b.bitcast(value, ir.IntType(32))
            return b.bitcast(b.trunc(value, ir.IntType(32)), ir.FloatType())

        return to(x if to is types.int32 else types.int64), generate

    return bitcast


_bits, _float = _bitcast(types.int32), _bitcast(types.float32)


@njit(**_options)
def _seed(state, seed, block):
    """SplitMix64 from a place of its own for each block."""
    z = np.uint64(seed) + np.uint64(block) * np.uint64(0xD1342543DE82EF95)
    for word in range(4):
        for lane in range(_LANES):
            z += np.uint64(0x9E3779B97F4A7C15)
            x = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            state[word, lane] = np.uint32((x ^ (x >> np.uint64(31))) >> np.uint64(32))


@njit(**_options)
def _turn(x, k):
    return (x << np.uint32(k)) | (x >> np.uint32(32 - k))


@njit(**_options)
def _next(state, out):
    """32 random bits from each of the generators."""
    s0, s1, s2, s3 = state[0], state[1], state[2], state[3]
    for lane in range(_LANES):
        a, b, c, d = s0[lane], s1[lane], s2[lane], s3[lane]
        out[lane] = _turn(np.uint32(a + d), 7) + a
        t, c, d = np.uint32(b << np.uint32(9)), c ^ a, d ^ b
        s1[lane], s0[lane] = b ^ c, a ^ d
        s2[lane], s3[lane] = c ^ t, _turn(np.uint32(d), 11)


@njit(**_options)
def _log(x):
    """ln x for x ≥ 1, by ln m = 2 artanh((m-1)/(m+1)) of the mantissa; to 1e-6."""
    bits = _bits(x)
    m = _float((bits & np.int32(0x7FFFFF)) | np.int32(0x3F800000))
    e = np.float32(np.int32((bits >> np.int32(23)) - np.int32(127)))
    s = (m - np.float32(1)) / (m + np.float32(1))
    q = s * s
    series = np.float32(1 / 9) * q + np.float32(1 / 7)
    series = (series * q + np.float32(1 / 5)) * q + np.float32(1 / 3)
    return e * np.float32(math.log(2)) + np.float32(2) * s * (series * q + np.float32(1))


_SINE = [
    np.float32((-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1)) for k in range(6)
]
_COSINE = [np.float32((-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k)) for k in range(7)]
_S0, _S1, _S2, _S3, _S4, _S5 = _SINE
_C0, _C1, _C2, _C3, _C4, _C5, _C6 = _COSINE


@njit(**_options)
def _normals(first, second, low, high):
    """Box-Muller: two N(0, 1) from 64 random bits."""
    scale = np.float32(2.0**-31)
    for lane in range(_LANES):
        bits = np.float32(np.int32(first[lane] >> np.uint32(1))) + np.float32(0.5)  # in (0, 2³¹]
        square = np.float32(2) * (np.float32(31 * math.log(2)) - _log(bits))
        r = math.sqrt(max(square, np.float32(0)))  # rounding must not make it negative
        t = np.float32(np.int32(second[lane])) * scale  # the angle is π t
        a = np.float32(0.5) - math.fabs(t)  # in [-½, ½]: cos(π t) = sin(π a), |sin(π t)| = cos(π a)
        q = a * a
        sine = a * (_S0 + q * (_S1 + q * (_S2 + q * (_S3 + q * (_S4 + q * _S5)))))
        cosine = _C0 + q * (_C1 + q * (_C2 + q * (_C3 + q * (_C4 + q * (_C5 + q * _C6)))))
        low[lane] = r * sine
        high[lane] = r * math.copysign(cosine, t)


@njit(parallel=True, **_options)
def uniform(out, seed):
    """out ~ U[0, 1): multiples of 2⁻²⁴."""
    n = out.shape[0]
    for block in prange((n + _BLOCK - 1) // _BLOCK):
        state, bits = np.empty((4, _LANES), np.uint32), np.empty(_LANES, np.uint32)
        _seed(state, seed, block)
        for first in range(block * _BLOCK, min(n, (block + 1) * _BLOCK), _LANES):
            _next(state, bits)
            part = out[first : first + _LANES]
            for lane in range(part.shape[0]):
                part[lane] = np.float32(np.int32(bits[lane] >> np.uint32(8))) * np.float32(2.0**-24)


@njit(parallel=True, **_options)
def normal(out, seed):
    """out ~ N(0, 1)."""
    n = out.shape[0]
    for block in prange((n + _BLOCK - 1) // _BLOCK):
        state = np.empty((4, _LANES), np.uint32)
        bits, pair = np.empty((2, _LANES), np.uint32), np.empty(2 * _LANES, np.float32)
        _seed(state, seed, block)
        for first in range(block * _BLOCK, min(n, (block + 1) * _BLOCK), 2 * _LANES):
            _next(state, bits[0])
            _next(state, bits[1])
            _normals(bits[0], bits[1], pair[:_LANES], pair[_LANES:])
            part = out[first : first + 2 * _LANES]
            for lane in range(part.shape[0]):
                part[lane] = pair[lane]


@njit(parallel=True, **_options)
def _rectified(out, a, scale, seed):
    n = out.shape[0]
    for block in prange((n + _BLOCK - 1) // _BLOCK):
        state = np.empty((4, _LANES), np.uint32)
        bits, pair = np.empty((2, _LANES), np.uint32), np.empty(2 * _LANES, np.float32)
        _seed(state, seed, block)
        for first in range(block * _BLOCK, min(n, (block + 1) * _BLOCK), 2 * _LANES):
            _next(state, bits[0])
            _next(state, bits[1])
            _normals(bits[0], bits[1], pair[:_LANES], pair[_LANES:])
            part, given = out[first : first + 2 * _LANES], a[first : first + 2 * _LANES]
            for lane in range(part.shape[0]):
                h = given[lane] + scale * pair[lane]
                part[lane] = np.float32(0) if h < 0 else h


@intrinsic
def _floats(context, address):
    def generate(context, b, signature, values):
        return b.inttoptr(values[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@njit(**_options)
def rectified(out, a, n, scale, seed):
    """out = max(0, a + scale·z), z ~ N(0, 1) the numbers that `normal` draws; NaN stays.

    out and a are the addresses of n numbers in fp32.
    """
    _rectified(carray(_floats(out), (n,)), carray(_floats(a), (n,)), np.float32(scale), seed)

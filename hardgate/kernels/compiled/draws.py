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
_INT = ir.IntType(64)

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


@intrinsic
def _words(context, state, out, rows):
    """out = `rows` > 0 rows of 32 random bits from each of the generators in this state.

    Written as vectors, all of them in registers from row to row: with a loop over the generators
    LLVM keeps them in memory, and a number takes seven times as long.
    """

    def generate(context, b, signature, values):
        vector = ir.VectorType(ir.IntType(32), _LANES)
        at, pointer, rows = values[0], b.inttoptr(values[1], vector.as_pointer()), values[2]

        def constant(k):
            return vector([k] * _LANES)

        def turn(x, k):
            return b.or_(b.shl(x, constant(k)), b.lshr(x, constant(32 - k)))

        places = [b.gep(b.inttoptr(at, vector.as_pointer()), [_INT(k)]) for k in range(4)]
        before = [b.load(place, align=4) for place in places]
        entry, loop, after = b.block, b.append_basic_block("rows"), b.append_basic_block("after")
        b.branch(loop)
        b.position_at_end(loop)
        row, (s0, s1, s2, s3) = b.phi(_INT), [b.phi(vector) for _ in range(4)]
        bits = b.add(turn(b.add(s0, s3), 7), s0)
        b.store(bits, b.gep(pointer, [row]), align=4)
        c, d = b.xor(s2, s0), b.xor(s3, s1)
        moved = [b.xor(s0, d), b.xor(s1, c), b.xor(c, b.shl(s1, constant(9))), turn(d, 11)]
        following = b.add(row, _INT(1))
        for phi, first, later in zip((s0, s1, s2, s3), before, moved):
            phi.add_incoming(first, entry)
            phi.add_incoming(later, loop)
        row.add_incoming(_INT(0), entry)
        row.add_incoming(following, loop)
        b.cbranch(b.icmp_signed("<", following, rows), loop, after)
        b.position_at_end(after)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


@njit(**_options)
def _block(seed, block, n):
    """At least n ≤ _BLOCK random words, the beginning of this block's; then its generators.

    In one array: Numba frees what is only known by its address before the address is used.
    """
    words = np.empty(_BLOCK + 4 * _LANES, np.uint32)
    _seed(words[_BLOCK:].reshape(4, _LANES), seed, block)
    at = words.ctypes.data
    _words(at + 4 * _BLOCK, at, (n + _LANES - 1) // _LANES)
    return words


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
def _normals(words, out):
    """Box-Muller: two N(0, 1) from 64 random bits, so many in `out` that rows come in pairs."""
    scale = np.float32(2.0**-31)
    for k in range(0, out.shape[0], 2 * _LANES):
        first, second = words[k : k + _LANES], words[k + _LANES : k + 2 * _LANES]
        low, high = out[k : k + _LANES], out[k + _LANES : k + 2 * _LANES]
        for lane in range(_LANES):
            u = np.float32(np.int32(first[lane] >> np.uint32(1))) + np.float32(0.5)  # in (0, 2³¹]
            square = np.float32(2) * (np.float32(31 * math.log(2)) - _log(u))
            r = math.sqrt(max(square, np.float32(0)))  # rounding must not make it negative
            t = np.float32(np.int32(second[lane])) * scale  # the angle is π t
            a = np.float32(0.5) - math.fabs(t)  # in [-½, ½]: cos(π t) = sin(π a)
            q = a * a
            sine = a * (_S0 + q * (_S1 + q * (_S2 + q * (_S3 + q * (_S4 + q * _S5)))))
            cosine = _C0 + q * (_C1 + q * (_C2 + q * (_C3 + q * (_C4 + q * (_C5 + q * _C6)))))
            low[lane] = r * sine
            high[lane] = r * math.copysign(cosine, t)  # |sin(π t)| = cos(π a)


@njit(**_options)
def _drawn(seed, block, n):
    """n ≤ _BLOCK numbers ~ N(0, 1), and those that fill the last pair of rows."""
    many = (n + 2 * _LANES - 1) // (2 * _LANES) * (2 * _LANES)
    numbers = np.empty(many, np.float32)
    _normals(_block(seed, block, many), numbers)
    return numbers


@intrinsic
def _floats(context, address):
    def generate(context, b, signature, values):
        return b.inttoptr(values[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@njit(**_options)
def _part(address, n, block):
    """The numbers of this block, of the n in fp32 at the address."""
    return carray(_floats(address), (n,))[block * _BLOCK : min(n, (block + 1) * _BLOCK)]


# What Python calls takes addresses, as the other kernels do.


@njit(parallel=True, **_options)
def uniform(out, n, seed):
    """n numbers ~ U[0, 1) at `out`: multiples of 2⁻²⁴."""
    for block in prange((n + _BLOCK - 1) // _BLOCK):
        part = _part(out, n, block)
        words = _block(seed, block, part.shape[0])
        for k in range(part.shape[0]):
            part[k] = np.float32(np.int32(words[k] >> np.uint32(8))) * np.float32(2.0**-24)


@njit(parallel=True, **_options)
def normal(out, n, seed):
    """n numbers ~ N(0, 1) at `out`."""
    for block in prange((n + _BLOCK - 1) // _BLOCK):
        part = _part(out, n, block)
        numbers = _drawn(seed, block, part.shape[0])
        for k in range(part.shape[0]):
            part[k] = numbers[k]


@njit(parallel=True, **_options)
def rectified(out, a, n, scale, seed):
    """max(0, a + scale·z) at `out`, z ~ N(0, 1) the numbers that `normal` draws; NaN stays."""
    width = np.float32(scale)
    for block in prange((n + _BLOCK - 1) // _BLOCK):
        part, given = _part(out, n, block), _part(a, n, block)
        numbers = _drawn(seed, block, part.shape[0])
        for k in range(part.shape[0]):
            h = given[k] + width * numbers[k]
            part[k] = np.float32(0) if h < 0 else h

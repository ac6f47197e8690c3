"""The inner loops of the kernels, emitted as explicit vectors.

Three loops do all the multiplications: `dots`, products of one or four rows with others; `sums`,
rows added to one row; `onto`, rows added to several rows. LLVM's own vectoriser leaves up to a
third of their speed behind. `nnan` and `ninf` are *not* allowed: NaN and ∞ come through.

Integer arguments are addresses, row lengths (ld…) and counts; `zero` gives the dtype, and indices
are int32. `kind` gives the dtype of rows that may be narrower, weights in bf16: uint16 stands for
it, and they are widened in the register.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

FLAGS = ("reassoc", "contract", "nsz", "arcp")
# What Numba compiles for; its cache on disk tells such machines apart, too.
_AVX512 = "+avx512f" in cpu_target.target_context.codegen().magic_tuple()[2]
VECTOR = 64 if _AVX512 else 32  # bytes; where there are only shorter ones, LLVM splits them
LANES = VECTOR // 4  # numbers in a vector, at most
_SHORT = 4  # numbers in a vector for what is left of a row: one at a time, 15 take as long as 240
TILE = 6 if _AVX512 else 3  # times 4 sums, what they are of and a factor fill 32 or 16 registers
_LINE = 64  # bytes of a cache line
WHOLE_LINES = VECTOR == _LINE
_NEAR, _FAR = 3, 1  # how close to bring memory that is asked for: all caches; not the smallest

_INT, _INDEX, _BF16 = ir.IntType(64), ir.IntType(32), ir.IntType(16)


# --- what they are made of --------------------------------------------------------------------


def _loop(b, start, stop, step, carried, body):
    """Emit: while start + step <= stop: carried = body(start, carried); start += step."""
    before = b.block
    head, inside, after = (b.append_basic_block(name) for name in ("head", "inside", "after"))
    b.branch(head)
    b.position_at_end(head)
    k, values = b.phi(_INT), [b.phi(value.type) for value in carried]
    following = b.add(k, _INT(step))
    b.cbranch(b.icmp_signed("<=", following, stop), inside, after)
    b.position_at_end(inside)
    results = body(k, values)
    for phi, first, later in zip([k, *values], [start, *carried], [following, *results]):
        phi.add_incoming(first, before)
        phi.add_incoming(later, b.block)
    b.branch(head)
    b.position_at_end(after)
    return k, values


def _columns(b, n, width, unroll, carried, body):
    """Emit body over 0..n: `unroll` vectors at a time, then one, short ones, single numbers.

    `carried` are sums, one vector for each of the unrolled; they come back as numbers.
    """
    k, carried = _loop(b, _INT(0), n, unroll * width, carried, body(unroll, width))
    each = len(carried) // unroll
    for s in range(1, unroll):
        for q in range(each):
            carried[q] = b.fadd(carried[q], carried[s * each + q], flags=FLAGS)
    carried = carried[:each]
    for shorter in dict.fromkeys((width, _SHORT, 1)):
        carried = [_folded(b, vector, shorter) for vector in carried]
        k, carried = _loop(b, k, n, shorter, carried, body(1, shorter))
    return carried


def _ladder(b, count, most, emit):
    """Emit emit(R, first, start) over `count` > 0 rows: up to `most`, then `most` at a time."""
    odd = b.add(b.urem(b.sub(count, _INT(1)), _INT(most)), _INT(1))
    after = b.append_basic_block("after")
    choice = b.switch(odd, after)
    for R in range(1, most + 1):
        block = b.append_basic_block(f"rows{R}")
        choice.add_case(_INT(R), block)
        b.position_at_end(block)
        emit(R, _INT(0), True)
        b.branch(after)
    b.position_at_end(after)

    def more(k, _):
        emit(most, k, False)
        return []

    _loop(b, odd, count, most, [], more)


def _pointer(b, address, scalar, offset=None):
    pointer = b.inttoptr(address, scalar.as_pointer())
    return pointer if offset is None else b.gep(pointer, [offset])


def _nth(b, indices, k):
    return b.zext(b.load(b.gep(indices, [k])), _INT)


def _chosen(b, address, scalar, ld, indices, first, R):
    """Pointers to the R rows that indices[first…] choose."""
    numbers = [_nth(b, indices, b.add(first, _INT(r))) for r in range(R)]
    return [_pointer(b, address, scalar, b.mul(ld, number)) for number in numbers]


def _load(b, pointer, k, width):
    at, scalar = b.gep(pointer, [k]), pointer.type.pointee
    if width > 1:
        at = b.bitcast(at, ir.VectorType(scalar, width).as_pointer())
    numbers = b.load(at, align=2 if scalar == _BF16 else 4)
    return _widen(b, numbers) if scalar == _BF16 else numbers


def _widen(b, numbers):
    """bf16 as fp32, whose upper half it is."""
    wide, single = _INDEX, ir.FloatType()
    if isinstance(numbers.type, ir.VectorType):
        wide, single = (ir.VectorType(kind, numbers.type.count) for kind in (wide, single))
    upper = _spread(b, _INDEX(16), getattr(wide, "count", 1))
    return b.bitcast(b.shl(b.zext(numbers, wide), upper), single)


def _store(b, value, pointer, k, past=False):
    """pointer[k…] = value; `past` the caches, where it is a vector and lies as vectors do."""
    place = b.bitcast(b.gep(pointer, [k]), value.type.as_pointer())
    past = past and isinstance(value.type, ir.VectorType)
    stored = b.store(value, place, align=_bytes(value.type) if past else 4)
    if past:
        stored.set_metadata("nontemporal", b.module.add_metadata([_INDEX(1)]))


def _bytes(vector):
    return vector.count * (4 if vector.element == ir.FloatType() else 8)


def _product(b, x, y, z):
    """x·y + z."""
    return b.fadd(b.fmul(x, y, flags=FLAGS), z, flags=FLAGS)


def _prefetch(b, pointer, k, near=_NEAR):
    """Ask for the cache line of pointer[k]."""
    byte, flag = ir.IntType(8).as_pointer(), _INDEX
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0")
    b.call(function, [b.bitcast(b.gep(pointer, [k]), byte), flag(0), flag(near), flag(1)])


def _zeros(scalar, width, count):
    zero = scalar(0.0) if width == 1 else ir.VectorType(scalar, width)([0.0] * width)
    return [zero] * count


def _spread(b, number, width):
    """The vector that is `number` everywhere."""
    if width == 1:
        return number
    none = ir.VectorType(number.type, width)(ir.Undefined)
    first = b.insert_element(none, number, _INDEX(0))
    return b.shuffle_vector(first, none, ir.VectorType(_INDEX, width)([0] * width))


def _folded(b, vector, shorter):
    """The sum of its parts of that length, by halves; a number where it is 1."""
    width = vector.type.count
    while width > shorter:
        width //= 2
        halves = [list(range(width)), list(range(width, 2 * width))]
        masks = [ir.VectorType(_INDEX, width)(half) for half in halves]
        low, high = (b.shuffle_vector(vector, vector, mask) for mask in masks)
        vector = b.fadd(low, high, flags=FLAGS)
    return vector if shorter > 1 else b.extract_element(vector, _INDEX(0))


def _kind(context, zero):
    """The dtype's scalar, and how many fill a vector."""
    return context.get_value_type(zero), VECTOR * 8 // zero.bitwidth


def _void(integers, *zeros):
    return types.void(*[types.int64] * integers, *zeros)


# --- the loops --------------------------------------------------------------------------------


def dots(U, most, far) -> Any:
    """out[u, r] = w[u] · x[i[r]] + bias[u] for U rows of w and 0 ≤ r < count, count > 0.

    Meanwhile it asks for as many rows at the address `ahead`, which are next; with `far` also for
    those at `also`, of length lda, which are read after these: into the larger cache, as the
    smallest is full of x. `kind` is that of w and of both.
    """

    @intrinsic
    def emitted(context, w, ldw, x, ldx, i, count, n, out, ldo, bias, ahead, also, lda, zero, kind):
        def generate(context, b, signature, values):
            w, ldw, x, ldx, i, count, n, out, ldo, bias, ahead, also, lda, _, _ = values
            (scalar, width), narrow = _kind(context, zero), context.get_value_type(kind)
            indices, results = _pointer(b, i, _INDEX), _pointer(b, out, scalar)
            ws = [_pointer(b, w, narrow, b.mul(ldw, _INT(u))) for u in range(U)]
            asked = [_pointer(b, ahead, narrow, b.mul(ldw, _INT(u))) for u in range(U)]
            if far:
                asked += [_pointer(b, also, narrow, b.mul(lda, _INT(u))) for u in range(U)]

            line, near = 8 * _LINE, _FAR if far or U > 1 else _NEAR

            def emit(R, first, start):
                xs = _chosen(b, x, scalar, ldx, indices, first, R)

                def body(unroll, width):
                    def step(k, sums):
                        sums = list(sums)
                        for s in range(unroll):
                            at = b.add(k, _INT(s * width))
                            if start and width > 1 and s * width * kind.bitwidth % line == 0:
                                for pointer in asked:
                                    _prefetch(b, pointer, at, near)
                            # Four rows: sums, others and a weight fill the registers.
                            # One row: the others are read where they are multiplied.
                            rows = [_load(b, pointer, at, width) for pointer in xs if U > 1]
                            for u, pointer in enumerate(ws):
                                weight = _load(b, pointer, at, width)
                                for r in range(R):
                                    row = rows[r] if U > 1 else _load(b, xs[r], at, width)
                                    q = (s * U + u) * R + r
                                    sums[q] = _product(b, weight, row, sums[q])
                        return sums

                    return step

                unroll = max(1, min(4, 10 // (U * R)))  # enough sums at once to hide the latency
                sums = _zeros(scalar, width, U * R * unroll)
                sums = _columns(b, n, width, unroll, sums, body)
                for u in range(U):
                    shift = b.load(_pointer(b, bias, scalar, _INT(u)))
                    for r in range(R):
                        at = b.add(b.mul(ldo, _INT(u)), b.add(first, _INT(r)))
                        _store(b, b.fadd(sums[u * R + r], shift), results, at)

            _ladder(b, count, most, emit)
            return context.get_dummy_value()

        return _void(13, zero, kind), generate

    return emitted


def sums(add, placed, past=False) -> Any:
    """out (+)= Σ c[r] x[i[r]] over 0 ≤ r < count, count > 0; with `placed`, c[place[r]].

    `kind` is that of x. With `past`, which is for up to eight rows, out is written past the caches.
    """

    @intrinsic
    def emitted(context, out, c, place, x, ldx, i, count, n, zero, kind):
        def generate(context, b, signature, values):
            out, c, place, x, ldx, i, count, n, _, _ = values
            (scalar, width), narrow = _kind(context, zero), context.get_value_type(kind)
            indices, places = _pointer(b, i, _INDEX), _pointer(b, place, _INDEX)
            result, factors = _pointer(b, out, scalar), _pointer(b, c, scalar)

            def emit(R, first, start):
                xs = _chosen(b, x, narrow, ldx, indices, first, R)
                rs = [b.add(first, _INT(r)) for r in range(R)]
                cs = [b.load(b.gep(factors, [_nth(b, places, r) if placed else r])) for r in rs]

                def body(unroll, width):
                    spread = [_spread(b, factor, width) for factor in cs]

                    def step(k, _):
                        for s in range(unroll):
                            at = b.add(k, _INT(s * width))
                            (total,) = _zeros(scalar, width, 1)
                            if add or not start:
                                total = _load(b, result, at, width)
                            for factor, pointer in zip(spread, xs):
                                total = _product(b, factor, _load(b, pointer, at, width), total)
                            _store(b, total, result, at, past)
                        return []

                    return step

                _columns(b, n, width, 2, [], body)

            _ladder(b, count, 8, emit)
            return context.get_dummy_value()

        return _void(8, zero, kind), generate

    return emitted


def onto(most, V, add, by_rows, past=False) -> Any:
    """out[m] (+)= Σ_q c[m, q] x[q] for 0 ≤ m < count and 0 ≤ q < many, V vectors at a time.

    The indices i choose the rows out[i[m]] that are added to, with c [many, count]; or, with
    `by_rows`, the rows x[i[q]] that are added, with c [count, many]. ldc is the length of c's rows,
    `kind` is that of x. With `past`, out is written past the caches.
    """

    @intrinsic
    def emitted(context, out, ldo, c, ldc, x, ldx, i, count, many, n, zero, kind):
        def generate(context, b, signature, values):
            out, ldo, c, ldc, x, ldx, i, count, many, n, _, _ = values
            (scalar, width), narrow = _kind(context, zero), context.get_value_type(kind)
            indices, factors = _pointer(b, i, _INDEX), _pointer(b, c, scalar)

            def strip(k, unroll, width):
                at = [b.add(k, _INT(v * width)) for v in range(unroll)]

                def emit(M, first, start):
                    ms = [b.add(first, _INT(m)) for m in range(M)]
                    lines = ms if by_rows else [_nth(b, indices, m) for m in ms]
                    outs = [_pointer(b, out, scalar, b.mul(ldo, line)) for line in lines]
                    totals = _zeros(scalar, width, M * unroll)
                    if add:
                        totals = [_load(b, pointer, kk, width) for pointer in outs for kk in at]

                    def step(q, totals):
                        line, totals = _nth(b, indices, q) if by_rows else q, list(totals)
                        row = _pointer(b, x, narrow, b.mul(ldx, line))
                        vectors = [_load(b, row, kk, width) for kk in at]
                        for p, m in enumerate(ms):
                            large, small = (m, q) if by_rows else (q, m)
                            factor = b.load(b.gep(factors, [b.add(b.mul(ldc, large), small)]))
                            factor = _spread(b, factor, width)
                            for v, vector in enumerate(vectors, p * unroll):
                                totals[v] = _product(b, factor, vector, totals[v])
                        return totals

                    _, totals = _loop(b, _INT(0), many, 1, totals, step)
                    for p, total in enumerate(totals):
                        _store(b, total, outs[p // unroll], at[p % unroll], past)

                _ladder(b, count, most, emit)
                return []

            # Strips outside, rows inside: a strip of x stays in the cache for all rows of out.
            def body(unroll, width):
                return lambda k, _: strip(k, unroll, width)

            _columns(b, n, width, V, [], body)
            return context.get_dummy_value()

        return _void(10, zero, kind), generate

    return emitted


@intrinsic
def pointer(context, address, zero):
    """The address as a pointer to numbers of this dtype."""

    def generate(context, b, signature, values):
        return b.inttoptr(values[0], context.get_value_type(zero).as_pointer())

    return types.CPointer(zero)(types.int64, zero), generate


@intrinsic
def number(context, value, zero):
    """A number of another kind as one of this dtype."""

    def generate(context, b, signature, values):
        return _widen(b, values[0]) if values[0].type == _BF16 else values[0]

    return zero(value, zero), generate


@intrinsic
def size(context, kind):
    """How many bytes a number of this kind has."""
    return types.int64(kind), lambda context, b, signature, values: _INT(kind.bitwidth // 8)


@intrinsic
def fetch(context, address, size, zero):
    """Ask for the memory at the address, of so many bytes; to be used soon, not at once."""

    def generate(context, b, signature, values):
        address, size, _ = values
        byte = _pointer(b, address, ir.IntType(8))

        def line(k, _):
            _prefetch(b, byte, k)
            return []

        _loop(b, _INT(0), size, _LINE, [], line)
        return context.get_dummy_value()

    return _void(2, zero), generate


@intrinsic
def clear(context, address, n, zero):
    """Write n zeros past the caches, whole vectors of them."""

    def generate(context, b, signature, values):
        address, n, _ = values
        scalar, width = _kind(context, zero)
        (nothing,), place = _zeros(scalar, width, 1), _pointer(b, address, scalar)

        def vector(k, _):
            _store(b, nothing, place, k, True)
            return []

        _loop(b, _INT(0), n, width, [], vector)
        return context.get_dummy_value()

    return _void(2, zero), generate


@intrinsic
def settle(context, zero):
    """What was written past the caches is there for everybody before anything that follows."""

    def generate(context, b, signature, values):
        b.fence("seq_cst")
        return context.get_dummy_value()

    return _void(0, zero), generate


@intrinsic
def pack8(context, address, positions, first, out, zero):
    """Which of the 8 numbers at the address are not zero: `first` + their positions, and how many.

    `positions` is the table of what to write for each of the 256 cases; 8 int32 are always written.
    """

    def generate(context, b, signature, values):
        scalar, (address, positions, first, out, _) = context.get_value_type(zero), values
        eight = _load(b, _pointer(b, address, scalar), _INT(0), 8)
        on = b.fcmp_unordered("!=", eight, _zeros(scalar, 8, 1)[0])
        case = b.zext(b.bitcast(on, ir.IntType(8)), _INT)
        row = _load(b, _pointer(b, positions, _INDEX), b.mul(case, _INT(8)), 8)
        row = b.add(row, _spread(b, b.trunc(first, _INDEX), 8))
        _store(b, row, _pointer(b, out, _INDEX), _INT(0))
        return b.ctpop(case)

    return types.int64(*[types.int64] * 4, zero), generate


@intrinsic
def call(context, address, arguments):
    """Call the function at the address with these numbers, in C's convention; it returns nothing.

    Called so, it is not compiled into its callers.
    """

    def generate(context, b, signature, values):
        at, packed = values
        numbers = cgutils.unpack_tuple(b, packed)
        kind = ir.FunctionType(ir.VoidType(), [number.type for number in numbers])
        b.call(b.inttoptr(at, kind.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate

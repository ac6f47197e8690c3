"""Calling a compiled function by its address, so that it is not compiled into its callers."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def call(context, address, arguments):
    """Call the function at the address, in C's convention, with these numbers; it returns none."""

    def generate(context, b, signature, values):
        at, packed = values
        numbers = cgutils.unpack_tuple(b, packed)
        kind = ir.FunctionType(ir.VoidType(), [number.type for number in numbers])
        b.call(b.inttoptr(at, kind.as_pointer()), numbers)
        return context.get_dummy_value()

    return types.void(types.int64, arguments), generate

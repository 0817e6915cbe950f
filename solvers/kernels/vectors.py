"""Pieces of machine code on vectors of eight numbers, from which kernels make their intrinsics.

numba's cache does not notice a change here: after one, clear it, or change the kernels' files too.
"""

from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir

from solvers.tensor.compiled import inlined
from solvers.tensor.products import Float64

# Numbers of a vector; where the processor has shorter ones, LLVM takes several.
LANES = 8
I64, NUMBER = ir.IntType(64), ir.DoubleType()
VECTOR = ir.VectorType(NUMBER, LANES)
LINE = 8 * LANES  # bytes of a vector

Value: TypeAlias = Any  # of llvmlite, which is not typed


def vector(builder: Value, address: Value) -> Value:
    return builder.inttoptr(address, VECTOR.as_pointer())


def load(builder: Value, address: Value, place: int = 0) -> Value:
    """The vector so many places after the address."""
    return builder.load(vector(builder, offset(builder, address, place)), align=8)


def store(builder: Value, value: Value, address: Value, place: int = 0) -> None:
    builder.store(value, vector(builder, offset(builder, address, place)), align=8)


def offset(builder: Value, address: Value, place: int) -> Value:
    return builder.add(address, ir.Constant(I64, LINE * place))


def item(builder: Value, address: Value, place: Value, kind: Value = NUMBER) -> Value:
    """The number so many places after the address."""
    found = builder.add(address, builder.mul(place, ir.Constant(I64, 8)))
    return builder.load(builder.inttoptr(found, kind.as_pointer()))


def spread(builder: Value, number: Value) -> Value:
    """The number in every lane."""
    single = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), order)


@inlined
def aligned_zeros(rows: int, columns: int) -> Float64:
    """From a multiple of a vector's length on: no vector lies across two lines of the cache."""
    buffer = np.zeros(rows * columns + LANES)
    first = (-buffer.ctypes.data // 8) % LANES
    return buffer[first : first + rows * columns].reshape((rows, columns))

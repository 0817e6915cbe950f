"""Building blocks for intrinsics on vectors of eight numbers.

numba's cache does not notice changes in this file: after one, clear the cache or change the files of the kernels too.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from sparse_ncp.solvers.tensor.jit import jit_inline
from sparse_ncp.solvers.tensor.products import Float64

# Numbers in a vector; LLVM uses several registers if those of the processor are shorter.
LANES = 8
I64, NUMBER = ir.IntType(64), ir.DoubleType()
VECTOR = ir.VectorType(NUMBER, LANES)
LINE = 8 * LANES  # bytes of a vector
# Number of vectors of a row that are kept in registers together.
MOST_VECTORS = 4

Value: TypeAlias = Any  # of llvmlite, which is not typed


def vector(builder: Value, address: Value) -> Value:
    return builder.inttoptr(address, VECTOR.as_pointer())


def load(builder: Value, address: Value, place: int = 0) -> Value:
    """Load the vector `place` vectors after an address."""
    return builder.load(vector(builder, offset(builder, address, place)), align=8)


def store(builder: Value, value: Value, address: Value, place: int = 0) -> None:
    builder.store(value, vector(builder, offset(builder, address, place)), align=8)


def offset(builder: Value, address: Value, place: int) -> Value:
    return builder.add(address, ir.Constant(I64, LINE * place))


def item(builder: Value, address: Value, place: Value, kind: Value = NUMBER) -> Value:
    """Load the number `place` numbers after an address."""
    found = builder.add(address, builder.mul(place, ir.Constant(I64, 8)))
    return builder.load(builder.inttoptr(found, kind.as_pointer()))


def broadcast(builder: Value, number: Value) -> Value:
    """Return a vector with the number in every lane."""
    single = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, ir.Constant(ir.IntType(32), 0))
    order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), None)
    return builder.shuffle_vector(single, ir.Constant(VECTOR, ir.Undefined), order)


def constant(number: float) -> Value:
    """Return a constant vector with the number in every lane."""
    return ir.Constant(VECTOR, [number] * LANES)


def emit_difference(
    builder: Value,
    target: Value,
    start: Value,
    count: Value,
    width: Value,
    term: Callable[[Value], tuple[Value, Value]],
) -> None:
    """target ← start − Σ_k factor · source, over `count` terms, for up to `MOST_VECTORS` vectors.

    `term` emits the factor of term k and the address of its source. There is separate code for each width, so that the
    vectors of the target stay in registers during the loop.
    """
    done = builder.append_basic_block("done")
    switch = builder.switch(width, done)
    for vectors in range(1, MOST_VECTORS + 1):
        entry, loop, end = (builder.append_basic_block(f"{name}{vectors}") for name in ("start", "terms", "store"))
        switch.add_case(ir.Constant(I64, vectors), entry)
        builder.position_at_end(entry)
        begun = [load(builder, start, place) for place in range(vectors)]
        builder.cbranch(builder.icmp_signed("<", ir.Constant(I64, 0), count), loop, end)
        builder.position_at_end(loop)
        k, rest = builder.phi(I64), [builder.phi(VECTOR) for _ in range(vectors)]
        k.add_incoming(ir.Constant(I64, 0), entry)
        factor, source = term(k)
        after = []
        for place in range(vectors):
            product = builder.fmul(factor, load(builder, source, place), flags=("contract",))
            after.append(builder.fsub(rest[place], product, flags=("contract",)))
        following = builder.add(k, ir.Constant(I64, 1))
        k.add_incoming(following, loop)
        for place in range(vectors):
            rest[place].add_incoming(begun[place], entry)
            rest[place].add_incoming(after[place], loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, end)
        builder.position_at_end(end)
        results = [builder.phi(VECTOR) for _ in range(vectors)]
        for place in range(vectors):
            results[place].add_incoming(begun[place], entry)
            results[place].add_incoming(after[place], loop)
        for place in range(vectors):
            store(builder, results[place], target, place)
        builder.branch(done)
    builder.position_at_end(done)


def multiples(typing, target, source, factors, count):  # type: ignore[no-untyped-def]
    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        target, source, factors, count = arguments
        vector, before = load(builder, source), builder.block
        loop, done = builder.append_basic_block("multiples"), builder.append_basic_block("multiples_done")
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(I64)
        k.add_incoming(ir.Constant(I64, 0), before)
        place = builder.add(target, builder.mul(k, ir.Constant(I64, LINE)))
        product = builder.fmul(vector, broadcast(builder, item(builder, factors, k)), flags=("contract",))
        store(builder, builder.fadd(load(builder, place), product, flags=("contract",)), place)
        following = builder.add(k, ir.Constant(I64, 1))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, done)
        builder.position_at_end(done)
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 4), emit


# target[k] ← target[k] + factors[k] source, for vectors target[k] and source and at least one k; all are addresses.
add_multiples: Any = intrinsic(multiples)


@jit_inline
def padded_length(rank: int) -> int:
    """Row length padded to a whole number of vectors."""
    return (rank + LANES - 1) // LANES * LANES


@jit_inline
def aligned_zeros(rows: int, columns: int) -> Float64:
    """Return zeros aligned to the length of a vector, so that no vector straddles two cache lines."""
    buffer = np.zeros(rows * columns + LANES)
    first = (-buffer.ctypes.data // 8) % LANES
    return buffer[first : first + rows * columns].reshape((rows, columns))

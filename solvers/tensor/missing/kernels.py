"""Kernels for missing entries: fill tiles with zeros for them, sum over bits, and add up Grams from a list."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.jit import jit
from sparse_ncp.solvers.tensor.products import Array, Float64

# Columns of a table of sums, and rows of bits that use it: enough for it to pay off, and both fit into the L1 cache.
WIDTH, SUMS = 16, 256
# Words of bits whose weights and sums, over all columns, stay in the L2 cache.
WORDS = 8
I64 = ir.IntType(64)

Value: TypeAlias = Any  # of llvmlite, which is not typed


@jit
def fill_tile(
    flat: Array,
    origin: tuple[int, int, int],
    inner: int,
    after: int,
    observed: NDArray[np.bool_],
    rows: tuple[NDArray[np.intp], NDArray[np.intp]],
    counts: bool,
    out: Array,
) -> None:
    """Copy a tile of before × `inner` × `after` entries, starting at an origin, with zeros for missing entries.

    An entry is missing if it is NaN or not `observed`. `rows` maps the rows (before and inner) of the tile to those of
    `observed`, whose columns are those of the tile, or a single one for all. Entries count as 1 if `counts`.
    """
    for b in range(out.shape[0]):
        for i in range(out.shape[1]):
            start = ((origin[0] + b) * inner + origin[1] + i) * after + origin[2]
            entries, tile = flat[start : start + out.shape[2]], out[b, i]
            row = observed[rows[0][b], rows[1][i]]
            if len(row) > 1 and counts:
                for a in range(len(tile)):
                    tile[a] = 1.0 if row[a] and entries[a] == entries[a] else 0.0
            elif len(row) > 1:
                for a in range(len(tile)):
                    tile[a] = entries[a] if row[a] and entries[a] == entries[a] else 0.0
            elif not row[0]:
                tile[:] = 0.0
            elif counts:
                for a in range(len(tile)):
                    tile[a] = 1.0 if entries[a] == entries[a] else 0.0
            else:
                for a in range(len(tile)):
                    tile[a] = entries[a] if entries[a] == entries[a] else 0.0


@jit
def multiply_pairs(A: Float64, out: Float64) -> None:
    """Write the products of the columns r ≤ s of A side by side."""
    for i in range(len(A)):
        place = 0
        for r in range(A.shape[1]):
            for s in range(r, A.shape[1]):
                out[i, place] = A[i, r] * A[i, s]
                place += 1


@jit
def unpack_pairs(packed: Float64, common: Float64, out: Float64) -> None:
    """Unpack symmetric matrices from rows with their entries r ≤ s, each multiplied elementwise by `common`."""
    rank = common.shape[0]
    for i in range(len(packed)):
        place, matrix = 0, out[i]
        for r in range(rank):
            for s in range(r, rank):
                matrix[r, s] = packed[i, place] * common[r, s]
                place += 1
        for r in range(rank):
            for s in range(r):
                matrix[r, s] = matrix[s, r]


@jit
def add_products(
    places: NDArray[np.int32],
    order: NDArray[np.int32],
    begins: NDArray[np.int64],
    mode: int,
    factors: Float64,
    offsets: NDArray[np.int64],
    sums: Float64,
) -> None:
    """sums[i] ← Σ b bᵀ over the entries of row i of a mode; b is the product of the other modes' rows at the entry.

    `places` has the index of each entry in each mode, `order` lists the entries row by row, and `begins` says where
    each row of `sums` starts there. `factors` has the factors of all modes, stacked at these offsets.
    """
    rank = factors.shape[1]
    b = np.empty(rank)
    for i in range(len(sums)):
        total = sums[i]
        total[:] = 0.0
        for entry in order[begins[i] : begins[i + 1]]:
            b[:] = 1.0
            for other in range(places.shape[1]):
                if other != mode:
                    row = factors[offsets[other] + places[entry, other]]
                    for r in range(rank):
                        b[r] *= row[r]
            for r in range(rank):
                for s in range(rank):
                    total[r, s] += b[r] * b[s]


class _Rows:
    """Rows of a table at an address, as vectors."""

    def __init__(self, builder: Value) -> None:
        self.builder, self.vector = builder, ir.VectorType(ir.DoubleType(), WIDTH)

    def row(self, address: Value, number: int) -> Value:
        place = self.builder.add(address, ir.Constant(I64, 8 * WIDTH * number))
        return self.builder.inttoptr(place, self.vector.as_pointer())


def table_of_sums(typing, weights, step, table):  # type: ignore[no-untyped-def]
    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        """Compute all 16 sums of each 4 of 32 rows of weights; bit b of the index of a sum stands for row b."""
        b, at = builder, _Rows(builder)
        weights, step, table = arguments
        for group in range(8):
            sums = {0: ir.Constant(at.vector, None)}
            for bit in range(4):
                place = b.add(weights, b.mul(step, ir.Constant(I64, 4 * group + bit)))
                single = b.load(at.row(place, 0), align=8)
                sums |= {place + (1 << bit): b.fadd(found, single) for place, found in sums.items() if place}
                sums[1 << bit] = single
            for place, found in sums.items():
                b.store(found, at.row(table, 16 * group + place), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


def chosen_sums(typing, table, bits, sums):  # type: ignore[no-untyped-def]
    def emit(context: Any, builder: Value, signature: Any, arguments: Sequence[Value]) -> Value:
        """Add the chosen sums to a row; compiled from Python, each addition would check nine rows for overlap."""
        b, at = builder, _Rows(builder)
        table, bits, sums = arguments
        terms = []
        for group in range(8):
            four = b.and_(b.lshr(bits, ir.Constant(I64, 4 * group)), ir.Constant(I64, 15))
            begin = b.add(table, b.mul(four, ir.Constant(I64, 8 * WIDTH)))
            terms.append(b.load(at.row(begin, 16 * group), align=8))
        while len(terms) > 1:
            terms = [b.fadd(one, other) for one, other in zip(terms[::2], terms[1::2], strict=True)]
        b.store(b.fadd(b.load(at.row(sums, 0), align=8), terms[0]), at.row(sums, 0), align=8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


_fill_table: Any = intrinsic(table_of_sums)
_add_chosen: Any = intrinsic(chosen_sums)


@jit
def _aligned(rows: int) -> Float64:
    """Return an array of rows aligned to cache lines: a vector across two lines takes two loads."""
    line = 64 // 8
    room = np.empty(rows * WIDTH + line)
    first = (line - room.ctypes.data // 8 % line) % line
    return room[first : first + rows * WIDTH].reshape((rows, WIDTH))


@jit
def sum_where(bits: NDArray[np.uint32], weights: Float64, out: Float64) -> None:
    """out[o] += Σ weights[s] over the s whose bit is set in row o.

    Four bits at a time select one of the 16 sums of four rows. These are computed once for many rows of bits, so that
    one addition replaces four products. The order of the additions depends on the lengths only.
    """
    part, sums = np.empty((32, WIDTH)), _aligned(min(SUMS, len(bits)))
    table = _aligned(8 * 16)
    w0, p0, t0, s0 = weights.ctypes.data, part.ctypes.data, table.ctypes.data, sums.ctypes.data
    for row in range(0, len(bits), SUMS):
        rows = min(SUMS, len(bits) - row)
        for begin in range(0, bits.shape[1], WORDS):
            for column in range(0, weights.shape[1], WIDTH):
                count = min(WIDTH, weights.shape[1] - column)
                sums[:] = 0.0
                for word in range(begin, min(begin + WORDS, bits.shape[1])):
                    if count == WIDTH and 32 * word + 32 <= len(weights):
                        _fill_table(w0 + 8 * (32 * word * weights.shape[1] + column), 8 * weights.shape[1], t0)
                    else:  # zeros beyond the ends
                        some = weights[32 * word : 32 * word + 32, column : column + count]
                        part[:] = 0.0
                        part[: len(some), :count] = some
                        _fill_table(p0, 8 * WIDTH, t0)
                    for o in range(rows):
                        _add_chosen(t0, np.int64(bits[row + o, word]), s0 + 8 * WIDTH * o)
                for o in range(rows):
                    for c in range(count):
                        out[row + o, column + c] += sums[o, c]

"""Machine code for missing entries: tiles in which they are zero, sums over bits, and Grams of rows from a list."""

import numpy as np
from numpy.typing import NDArray

from solvers.tensor.compiled import compiled
from solvers.tensor.products import Array, Float64

# Weights and rows of bits whose sums are formed at a time: large enough for a table to pay, small enough for a cache.
COLUMNS, SUMS = 256, 512


@compiled
def fill_tile(
    flat: Array,
    corner: tuple[int, int, int],
    inner: int,
    after: int,
    seen: NDArray[np.bool_],
    rows: tuple[NDArray[np.intp], NDArray[np.intp]],
    counts: bool,
    out: Array,
) -> None:
    """The tile of before × `inner` × `after` entries from a corner on: zero where an entry is missing.

    An entry is missing if it is NaN, or not `seen`: the rows (before and inner) of that array are found through two
    lists of places, its columns are those of the tile, or a single one for all. Entries count as 1 if `counts`.
    """
    for b in range(out.shape[0]):
        for i in range(out.shape[1]):
            start = ((corner[0] + b) * inner + corner[1] + i) * after + corner[2]
            entries, tile = flat[start : start + out.shape[2]], out[b, i]
            row = seen[rows[0][b], rows[1][i]]
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


@compiled
def multiply_pairs(A: Float64, out: Float64) -> None:
    """The products of the columns r ≤ s of A, side by side."""
    for i in range(len(A)):
        place = 0
        for r in range(A.shape[1]):
            for s in range(r, A.shape[1]):
                out[i, place] = A[i, r] * A[i, s]
                place += 1


@compiled
def unpack_pairs(packed: Float64, common: Float64, out: Float64) -> None:
    """Symmetric matrices from their entries r ≤ s, which are rows of `packed`, each times another symmetric matrix."""
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


@compiled
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

    `places` has the index of every entry in each mode, `order` the entries row by row, `begins` where each row of
    `sums` begins there. `factors` are those of all modes one below the other, each from its offset on.
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


@compiled
def _fill_table(weights: Array, first: int, table: Float64) -> None:
    """For each four of 32 columns from `first` on, all sixteen sums of some of them; columns beyond the ends are zero.

    Bit b of a sum's place stands for column b of its four.
    """
    count, length = weights.shape
    for group in range(len(table)):
        chosen = table[group]
        chosen[0] = 0.0
        for bit in range(4):
            place, column = 1 << bit, first + 4 * group + bit
            single = chosen[place]
            single[:] = 0.0
            if 0 <= column < length:
                for c in range(count):
                    single[c] = weights[c, column]
            for other in range(1, place):
                without, both = chosen[other], chosen[place + other]
                for c in range(len(both)):
                    both[c] = without[c] + single[c]


@compiled
def sum_where(bits: NDArray[np.uint8], skipped: int, weights: Array, out: Array) -> None:
    """out[:, o] ← Σ weights[:, s] over those s whose bit is set in row o; bits begin `skipped` before the weights.

    Four bits at a time choose one of sixteen sums of four columns: those are formed once and serve all rows, so that
    an addition stands for four products. The order of the additions depends on the lengths alone.
    """
    width = -(-len(weights) // -(-len(weights) // COLUMNS))  # nearly equal parts
    table, sums = np.empty((8, 16, width)), np.empty((min(SUMS, len(bits)), width))
    for column in range(0, len(weights), width):
        part = weights[column : column + width]
        for row in range(0, len(bits), SUMS):
            rows = bits[row : row + SUMS]
            sums[:] = 0.0
            for byte in range(0, bits.shape[1], 4):
                _fill_table(part, 8 * byte - skipped, table)
                whole = byte + 4 <= bits.shape[1]
                for o in range(len(rows)):
                    b0 = rows[o, byte]
                    b1 = rows[o, byte + 1] if whole or byte + 1 < bits.shape[1] else 0
                    b2 = rows[o, byte + 2] if whole or byte + 2 < bits.shape[1] else 0
                    b3 = rows[o, byte + 3] if whole else 0
                    t0, t1, t2, t3 = table[0, b0 & 15], table[1, b0 >> 4], table[2, b1 & 15], table[3, b1 >> 4]
                    t4, t5, t6, t7 = table[4, b2 & 15], table[5, b2 >> 4], table[6, b3 & 15], table[7, b3 >> 4]
                    total = sums[o]
                    for c in range(width):
                        total[c] += ((t0[c] + t1[c]) + (t2[c] + t3[c])) + ((t4[c] + t5[c]) + (t6[c] + t7[c]))
            for c in range(len(part)):
                for o in range(len(rows)):
                    out[column + c, row + o] = sums[o, c]

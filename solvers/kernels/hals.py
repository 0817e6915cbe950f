"""HALS: coordinate descent over the columns of a factor."""

import numpy as np

from sparse_ncp.solvers.kernels.simd import LANES, LINE, add_multiples, aligned_zeros
from sparse_ncp.solvers.tensor.jit import jit, jit_inline
from sparse_ncp.solvers.tensor.products import Float64


@jit
def hals_rows(A: Float64, C: Float64, Q: Float64, out: Float64, passes: int) -> None:
    """a_r ← [a_r + (C_r − A Q_r) / Q_rr]₊ for r = 1 … R, `passes` times.

    Rows are independent, so each one goes through all columns at once and keeps its gradient from pass to pass.
    """
    if Q.ndim == 2:
        _many_rows(A, C, np.ascontiguousarray(Q), out, passes)
    else:
        rank = A.shape[1]
        gradient = np.empty(rank)
        for i in range(len(A)):
            for r in range(rank):
                gradient[r] = -C[i, r]
            for r in range(rank):
                out[i, r] = A[i, r]
                for s in range(rank):
                    gradient[s] += A[i, r] * Q[i, r, s]
            for _ in range(passes):
                for r in range(rank):
                    before = out[i, r]
                    after = max(0.0, before - _downhill(before, gradient[r], Q[i, r, r]))
                    if after != before:
                        out[i, r] = after
                        for s in range(rank):
                            gradient[s] += (after - before) * Q[i, r, s]


@jit_inline
def _many_rows(A: Float64, C: Float64, Q: Float64, out: Float64, passes: int) -> None:
    """Update rows that share one Q, one per SIMD lane; lanes beyond the last row repeat it."""
    count, rank = A.shape
    vectors = aligned_zeros(2 * rank + 1, LANES)
    gradient, entries, moved = vectors[:rank], vectors[rank : 2 * rank], vectors[2 * rank]
    g0, e0, m0 = gradient.ctypes.data, entries.ctypes.data, moved.ctypes.data
    for begin in range(0, count, LANES):
        lanes = min(LANES, count - begin)
        for r in range(rank):
            for lane in range(LANES):
                row = min(begin + lane, count - 1)
                gradient[r, lane] = -C[row, r]
                entries[r, lane] = A[row, r]
        for r in range(rank):
            add_multiples(g0, e0 + LINE * r, Q[r].ctypes.data, rank)
        for _ in range(passes):
            for r in range(rank):
                for lane in range(LANES):
                    before = entries[r, lane]
                    entries[r, lane] = max(0.0, before - _downhill(before, gradient[r, lane], Q[r, r]))
                    moved[lane] = entries[r, lane] - before
                add_multiples(g0, m0, Q[r].ctypes.data, rank)
        for lane in range(lanes):
            for r in range(rank):
                out[begin + lane, r] = entries[r, lane]


@jit_inline
def _downhill(entry: float, slope: float, curvature: float) -> float:
    """Return the step to the minimum; a component without curvature has vanished, and is stationary or goes to zero."""
    if curvature > 0:
        return slope / curvature
    return entry if slope > 0 else 0.0


@jit
def hals_normalised(A: Float64, Q: Float64, C: Float64, AQ: Float64, rounding: float) -> Float64:
    """Update one column after another for all rows, scaling each to unit length before the next one.

    AQ is A Q or, with a Gram per row (of which Q is a bound), each row of A times its own Gram. A column that vanished
    stays zero. A column also becomes zero if its norm could be due to rounding alone, which is up to the fraction
    `rounding` of the numbers whose difference it is.
    """
    count, rank = A.shape
    columns, descent, moved = A.T.copy(), np.empty((rank, count)), np.empty((rank, count))
    squares, differences = np.zeros(rank), np.zeros(rank)  # squared norms of A, and of |C| + |A Q|
    for i in range(count):
        for r in range(rank):
            descent[r, i] = C[i, r] - AQ[i, r]
            squares[r] += A[i, r] ** 2
            differences[r] += (abs(C[i, r]) + abs(AQ[i, r])) ** 2
    for r in range(rank):
        column, downhill = columns[r].copy(), descent[r]
        for s in range(r):
            for i in range(count):
                downhill[i] -= Q[r, s] * moved[s, i]
        squared = 0.0
        for i in range(count):
            if Q[r, r] > 0:
                column[i] = max(0.0, column[i] + downhill[i] / Q[r, r])
            elif downhill[i] < 0:
                column[i] = 0.0
            squared += column[i] * column[i]
        size = np.sqrt(squares[r]) + (np.sqrt(differences[r]) / Q[r, r] if Q[r, r] > 0 else 0.0)
        if squared > (rounding * size) ** 2:
            column /= np.sqrt(squared)
        else:
            column[:] = 0.0
        moved[r] = column - columns[r]
        columns[r] = column
    return columns.T.copy()

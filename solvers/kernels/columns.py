"""Coordinate descent over the columns of a factor: passes of HALS."""

import numpy as np

from solvers.tensor.compiled import compiled
from solvers.tensor.products import Float64


@compiled
def rows_by_column(A: Float64, C: Float64, Q: Float64, out: Float64, passes: int) -> None:
    """a_r ← [a_r + (C_r − A Q_r) / Q_rr]₊ for r = 1 … R, `passes` times.

    Rows do not meet, so each goes through all columns at once; its gradient is kept from pass to pass.
    """
    rank = Q.shape[-1]
    gradient = np.empty(rank)
    for i in range(A.shape[0]):
        own = Q if Q.ndim == 2 else Q[i]
        gradient[:] = -C[i]
        for r in range(rank):
            out[i, r] = A[i, r]
            for s in range(rank):
                gradient[s] += A[i, r] * own[r, s]
        for _ in range(passes):
            for r in range(rank):
                before = out[i, r]
                # A vanished component (Q_rr = 0) is flat, or falls towards zero.
                downhill = gradient[r] / own[r, r] if own[r, r] > 0 else (before if gradient[r] > 0 else 0.0)
                after = max(0.0, before - downhill)
                if after != before:
                    out[i, r] = after
                    for s in range(rank):
                        gradient[s] += (after - before) * own[r, s]


@compiled
def normalised_columns(A: Float64, Q: Float64, C: Float64, AQ: Float64, rounding: float) -> Float64:
    """The same for all rows at once, each column scaled to unit length before the next is updated.

    AQ is what C is to become: A Q, or with a Gram per row, of which Q is the bound, each row of A times its own.
    A column that vanished stays zero. One becomes so whose norm is not above what rounding alone can give it: this
    share of the numbers that it is the difference of.
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

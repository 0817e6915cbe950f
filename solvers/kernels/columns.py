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
def normalised_columns(A: Float64, Q: Float64, descent: Float64, least: Float64) -> Float64:
    """The same from the descent C − A Q, each column scaled to unit length before the next is updated.

    A column that vanished stays zero, and one becomes so whose norm is not above its `least`.
    """
    rank = Q.shape[0]
    columns, downhill = np.ascontiguousarray(A.T), np.ascontiguousarray(descent.T)
    for r in range(rank):
        column = columns[r].copy()
        squared = 0.0
        for i in range(len(column)):
            if Q[r, r] > 0:
                column[i] = max(0.0, column[i] + downhill[r, i] / Q[r, r])
            elif downhill[r, i] < 0:
                column[i] = 0.0
            squared += column[i] * column[i]
        if squared > least[r] ** 2:
            column /= np.sqrt(squared)
        else:
            column[:] = 0.0
        for s in range(r + 1, rank):
            for i in range(len(column)):
                downhill[s, i] -= Q[s, r] * (column[i] - columns[r, i])
        columns[r] = column
    return columns.T.copy()

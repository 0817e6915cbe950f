"""Run a kernel over the rows of a factor, on several threads.

A kernel gets rows and writes rows; it holds no lock and knows no threads.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

RowKernel: TypeAlias = Callable[..., None]

# Rows that a kernel takes at a time, of so many components: about a millisecond of work. Of fewer components it takes
# more rows, up to so many times more, as the work goes with their square: one thread has done less by the time another
# wakes.
ROWS, COMPONENTS, MOST_TIMES = 256, 40, 16


def update_rows(
    kernel: RowKernel,
    A: Float64,
    C: Float64,
    Q: Float64,
    threads: Threads,
    *options: int,
    out: Float64 | None = None,
) -> Float64:
    """The rows that the kernel writes to its fourth argument, from those of A and C, and of Q if each has its own.

    They are put into `out`, which may be A or C, or else into a new array.
    """
    out = np.empty_like(C) if out is None else out

    def piece(rows: slice) -> None:
        written = np.empty(C[rows].shape)
        kernel(A[rows], C[rows], Q if Q.ndim == 2 else Q[rows], written, *options)
        out[rows] = written

    at_once = round(ROWS * min(MOST_TIMES, max(1.0, (COMPONENTS / C.shape[1]) ** 2)))
    threads.each(piece, split_evenly(len(C), -(-len(C) // at_once)))
    return out

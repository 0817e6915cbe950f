"""Run a kernel over the rows of a factor on several threads.

A kernel reads and writes rows, without the GIL and without regard to threads.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

RowKernel: TypeAlias = Callable[..., None]

# A kernel processes ROWS rows of COMPONENTS components at a time, about a millisecond of work. The work is quadratic in
# the number of components: with fewer of them it takes up to MOST_TIMES as many rows, because waking a thread takes
# equally long.
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
    """Apply a kernel to the rows of A and C, and of Q if there is one per row.

    The kernel writes to its fourth argument. The result is stored in `out`, which may be A or C, or in a new array.
    """
    out = np.empty_like(C) if out is None else out

    def piece(rows: slice) -> None:
        written = np.empty(C[rows].shape)
        kernel(A[rows], C[rows], Q if Q.ndim == 2 else Q[rows], written, *options)
        out[rows] = written

    at_once = round(ROWS * min(MOST_TIMES, max(1.0, (COMPONENTS / C.shape[1]) ** 2)))
    threads.each(piece, split_evenly(len(C), -(-len(C) // at_once)))
    return out

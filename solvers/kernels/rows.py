"""Run a kernel over the rows of a factor, on several threads.

A kernel gets rows and writes rows; it holds no lock and knows no threads.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from solvers.tensor.products import Float64
from solvers.tensor.threads import Threads, slabs

RowKernel: TypeAlias = Callable[..., None]

# Rows that a kernel takes at a time: a fraction of a millisecond of work, by least squares and by passes of HALS.
LEAST_SQUARES_ROWS, HALS_ROWS = 64, 256


def update_rows(
    kernel: RowKernel, at_once: int, A: Float64, C: Float64, Q: Float64, threads: Threads, *options: int
) -> Float64:
    """The rows that the kernel writes to its fourth argument, from those of A and C, and of Q if each has its own."""
    out = np.empty_like(C)

    def piece(rows: slice) -> None:
        kernel(A[rows], C[rows], Q if Q.ndim == 2 else Q[rows], out[rows], *options)

    threads.each(piece, slabs(len(C), -(-len(C) // at_once)))
    return out

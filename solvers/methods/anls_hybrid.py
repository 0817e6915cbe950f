"""Alternating nonnegative least squares, exact in short modes. It is not in the paper.

Exact updates need few sweeps, but in a mode with thousands of rows one costs more than the rest of the sweep. There, a
few passes of HALS replace it: they come close to the minimiser, and hardly more sweeps are needed.
"""

from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.kernels.parallel_rows import update_rows
from sparse_ncp.solvers.kernels.regularise import regularise
from sparse_ncp.solvers.tensor.products import Float64

# Rows of a mode from which on passes of HALS are made, and how many.
LONG, PASSES = 1000, 3


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← argmin F(A) over A ≥ 0 by block principal pivoting; in a long mode, passes of HALS towards it."""
    # Numba: see hals.py.
    from sparse_ncp.solvers.kernels.bpp_simd import bpp_rows
    from sparse_ncp.solvers.kernels.hals import hals_rows

    if len(A) < LONG:
        return regularise(A, block.Q, block.C).solve_rows(bpp_rows, block.threads), memory
    return update_rows(hals_rows, A, block.C, block.Q, block.threads, PASSES), memory

"""Hierarchical alternating least squares (the paper's Algorithm 3)."""

from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.kernels.parallel_rows import update_rows
from sparse_ncp.solvers.tensor.products import Float64

# A column below this share of the numbers that it is the difference of is their rounding. A component that is zero in
# the last mode has C_r = 0 and Q_r = α e_r, so that a_r − a_r is left: unit length would make noise of that.
ROUNDING = 1e-12


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """Column by column, a_r ← [a_r + (M_r − β − A Q_r) / Q_rr]₊, then a_r ← a_r / ‖a_r‖ where columns are normalised.

    The norm is dropped, as in the paper: only mode N carries the scale. On unit columns this is the exact minimiser
    of O over the unit sphere, so O falls from the first sweep's value on.
    """
    # Numba takes half a second and 100 MB to load: only a process that solves should pay for it.
    from sparse_ncp.solvers.kernels.hals import hals_normalised, hals_rows

    if block.normalise:
        # With a Gram per row, the unit sphere has no such minimiser. What is missing is then filled in by the model:
        # the same gradient, one Q for all rows that is no less than theirs, and O still falls.
        for _ in range(block.passes):
            A = hals_normalised(A, block.bound, block.C, block.times(A), ROUNDING)
        return A, memory
    return update_rows(hals_rows, A, block.C, block.Q, block.threads, block.passes), memory

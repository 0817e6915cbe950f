"""Hierarchical alternating least squares (the paper's Algorithm 3)."""

from solvers.arrays import Float64
from solvers.block import Block, Memory


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """Column by column, a_r ← [a_r + (M_r − β − A Q_r) / Q_rr]₊, then a_r ← a_r / ‖a_r‖ where columns are normalised.

    The norm is dropped, as in the paper: only mode N carries the scale. On unit columns this is the exact minimiser
    of O over the unit sphere, so O falls from the first sweep's value on.
    """
    # Numba takes half a second and 100 MB to load: only a process that solves should pay for it.
    from solvers.kernels.columns import normalised_columns, rows_by_column

    if block.normalise:
        return normalised_columns(A, block.Q, block.C - A @ block.Q), memory
    return block.threads.over_rows(rows_by_column, A, block.C, block.Q), memory

"""Alternating nonnegative least squares by block principal pivoting (the paper's Algorithm 5 with NNLS_BPP)."""

from solvers.arrays import Float64
from solvers.block import Block, Memory
from solvers.definite import definite


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← argmin F(A) over A ≥ 0, exactly; every row starts from its last passive set."""
    from solvers.kernels.nnls import pivoting_rows  # numba: see hals.py

    return definite(A, block.Q, block.C).solve_rows(pivoting_rows, block.threads), memory

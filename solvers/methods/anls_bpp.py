"""Alternating nonnegative least squares by block principal pivoting (the paper's Algorithm 5 with NNLS_BPP)."""

from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.kernels.regularise import regularise
from sparse_ncp.solvers.tensor.products import Float64


def update(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
    """A ← argmin F(A) over A ≥ 0, exactly; every row starts from its last passive set."""
    from sparse_ncp.solvers.kernels.bpp_simd import bpp_rows  # numba: see hals.py

    return regularise(A, block.Q, block.C).solve_rows(bpp_rows, block.threads), memory

"""Unconstrained least squares: solve Z Q = C for the rows of Z, with one positive definite Q."""

import numpy as np

from sparse_ncp.solvers.kernels.simd import LANES, LINE, add_multiples, aligned_zeros
from sparse_ncp.solvers.tensor.jit import jit
from sparse_ncp.solvers.tensor.products import Float64


@jit
def ldl_factors(Q: Float64) -> Float64:
    """Factorise Q = Uᵀ D U with unit upper triangular U; return 1/D on the diagonal, −U above and −Uᵀ below it."""
    rank = len(Q)
    factors, rest = np.empty((rank, rank)), Q.copy()
    for j in range(rank):
        factors[j, j] = 1 / rest[j, j]
        for s in range(j + 1, rank):
            share = rest[j, s] * factors[j, j]
            factors[j, s] = factors[s, j] = -share
            for t in range(s, rank):
                rest[s, t] -= share * rest[j, t]
    return factors


@jit
def solve_rows(start: Float64, C: Float64, factors: Float64, out: Float64) -> None:
    """Substitute forward with Uᵀ and back with U, one row per SIMD lane; lanes beyond the last row repeat it."""
    count, rank = C.shape
    rows = aligned_zeros(rank, LANES)
    r0 = rows.ctypes.data
    for begin in range(0, count, LANES):
        lanes = min(LANES, count - begin)
        for lane in range(LANES):
            row = min(begin + lane, count - 1)
            for j in range(rank):
                rows[j, lane] = C[row, j]
        for j in range(rank - 1):
            add_multiples(r0 + LINE * (j + 1), r0 + LINE * j, factors[j, j + 1 :].ctypes.data, rank - 1 - j)
        for j in range(rank):
            for lane in range(LANES):
                rows[j, lane] *= factors[j, j]
        for j in range(rank - 1, 0, -1):
            add_multiples(r0, r0 + LINE * j, factors[j].ctypes.data, j)
        for lane in range(lanes):
            for j in range(rank):
                out[begin + lane, j] = rows[j, lane]

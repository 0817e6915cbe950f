"""Scale many small symmetric matrices to a unit diagonal, and test how close to singular they are."""

import numpy as np

from sparse_ncp.solvers.tensor.jit import jit
from sparse_ncp.solvers.tensor.products import Float64


@jit
def unit_diagonals(Q: Float64) -> tuple[Float64, Float64, Float64]:
    """Scale I × R × R matrices to unit diagonals.

    Return the scaled matrices, the square roots of the diagonals (1 where not positive), and the smallest pivot of the
    Cholesky factorisation of each scaled matrix (0 if it fails).
    """
    count, rank = Q.shape[0], Q.shape[1]
    scaled, scales, smallest, rest = np.empty(Q.shape), np.ones((count, rank)), np.empty(count), np.empty((rank, rank))
    for i in range(count):
        for r in range(rank):
            if Q[i, r, r] > 0:
                scales[i, r] = np.sqrt(Q[i, r, r])
        for r in range(rank):
            for s in range(rank):
                scaled[i, r, s] = Q[i, r, s] / (scales[i, r] * scales[i, s])
                rest[r, s] = scaled[i, r, s]
        least = np.inf
        for r in range(rank):
            pivot = rest[r, r]
            least = min(least, pivot)
            if not pivot > 0:
                least = 0.0
                break
            for s in range(r + 1, rank):
                share = rest[r, s] / pivot
                for t in range(s, rank):
                    rest[s, t] -= share * rest[r, t]
        smallest[i] = least
    return scaled, scales, smallest

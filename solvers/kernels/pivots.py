"""Pivots of many small matrices."""

import numpy as np

from solvers.tensor.compiled import compiled
from solvers.tensor.products import Float64


@compiled
def smallest_pivots(Q: Float64) -> Float64:
    """The smallest pivot of the Cholesky factorisation of each of I × R × R matrices; zero where it fails."""
    count, rank = Q.shape[0], Q.shape[1]
    smallest, rest = np.empty(count), np.empty((rank, rank))
    for i in range(count):
        rest[:] = Q[i]
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
    return smallest

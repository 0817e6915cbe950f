"""Kernels that go over a factor once, where numpy would go over it several times.

All except `balance` give the same bits as numpy.
"""

import math
from typing import Any

import numpy as np

from sparse_ncp.solvers.tensor.jit import jit_strict
from sparse_ncp.solvers.tensor.products import Array, Float64

# A Newton step doubles the number of correct digits, so a handful is enough from any start.
NEWTON_STEPS = 50
CONVERGED = 1e-12


@jit_strict
def extrapolate_factor(A: Array, before: Array, weight: np.floating[Any], out: Array) -> None:
    """out ← [A + weight (A − before)]₊."""
    for i in range(A.shape[0]):
        for r in range(A.shape[1]):
            beyond = A[i, r] + weight * (A[i, r] - before[i, r])
            out[i, r] = beyond if beyond > 0 else 0.0


@jit_strict
def squares_and_sums(A: Array) -> Float64:
    """Return the sum of squares and the sum of each column as 2 × R, added up row by row."""
    squares, sums = np.zeros(A.shape[1]), np.zeros(A.shape[1])
    for i in range(A.shape[0]):
        for r in range(A.shape[1]):
            entry = np.float64(A[i, r])
            squares[r] += entry * entry
            sums[r] += entry
    return np.concatenate((squares, sums)).reshape(2, -1)


@jit_strict
def column_maxima(A: Array) -> Float64:
    """Return the column maxima, at least 0; NaN where a column contains NaN."""
    largest = np.zeros(A.shape[1])
    for i in range(A.shape[0]):
        for r in range(A.shape[1]):
            entry = np.float64(A[i, r])
            if entry > largest[r] or np.isnan(entry):
                largest[r] = entry
    return largest


@jit_strict
def balance(p: Float64, q: Float64) -> Float64:
    """Find scales s with p s² + q s = λ in every mode (rows) and ∏ s = 1, for each component (columns).

    log s is an increasing function of log λ with a slope between ½ and 1, so Newton's method on its sum cannot fail.
    """
    order, rank = p.shape
    scales = np.empty((order, rank))
    for r in range(rank):
        log_lambda = 0.0
        for mode in range(order):
            log_lambda += math.log(p[mode, r] + q[mode, r]) / order
        for _ in range(NEWTON_STEPS):
            size, excess, slope = math.exp(log_lambda), 0.0, 0.0
            for mode in range(order):
                root = math.sqrt(q[mode, r] * q[mode, r] + 4 * p[mode, r] * size)
                scales[mode, r] = 2 * size / (q[mode, r] + root)
                excess += math.log(scales[mode, r])
                slope += (q[mode, r] + root) / (2 * root)
            log_lambda -= excess / slope
            if abs(excess) < CONVERGED:
                break
        for mode in range(order):
            scales[mode, r] *= math.exp(-excess / order)  # make the product exactly 1, up to rounding
    return scales


def precompile(dtype: np.dtype[Any]) -> None:
    """Compile the kernels, or load them from the cache."""
    one = np.ones((1, 1), dtype)
    extrapolate_factor(one, one, dtype.type(0), one.copy())
    squares_and_sums(one)
    column_maxima(one)
    balance(np.ones((1, 1)), np.ones((1, 1)))

"""Machine code for whole factors: over each entry once, where numpy would go again and again, with numpy's bits."""

from typing import Any

import numpy as np

from solvers.tensor.compiled import as_written
from solvers.tensor.products import Array, Float64


@as_written
def carry_on(A: Array, before: Array, weight: np.floating[Any], out: Array) -> None:
    """out ← [A + weight (A − before)]₊."""
    for i in range(A.shape[0]):
        for r in range(A.shape[1]):
            beyond = A[i, r] + weight * (A[i, r] - before[i, r])
            out[i, r] = beyond if beyond > 0 else 0.0


@as_written
def squares_and_sums(A: Array) -> Float64:
    """Of every column the sum of the squares, then of the entries: 2 × R, added up row after row."""
    squares, sums = np.zeros(A.shape[1]), np.zeros(A.shape[1])
    for i in range(A.shape[0]):
        for r in range(A.shape[1]):
            entry = np.float64(A[i, r])
            squares[r] += entry * entry
            sums[r] += entry
    return np.concatenate((squares, sums)).reshape(2, -1)


def load(dtype: np.dtype[Any]) -> None:
    """Compile, or read what was compiled before."""
    one = np.ones((1, 1), dtype)
    carry_on(one, one, dtype.type(0), one.copy())
    squares_and_sums(one)

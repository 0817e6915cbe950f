"""Whether the factors of a run are still numbers that the next products can be made of."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from solvers.arrays import Array
from solvers.errors import InvalidInput

# Of the factors' sizes, multiplied over the modes: their squares, times a tensor as large as the door lets in, stay
# below the largest number of the precision.
LARGEST_PRODUCT = {np.dtype(np.float64): 1e90, np.dtype(np.float32): 1e25}


def size_of(A: Array) -> float:
    """At least the norm, and at least 1: found without a square that might overflow."""
    return max(1.0, float(A.max()) * math.sqrt(A.size))


def check_reach(sizes: Sequence[float], dtype: np.dtype[Any]) -> None:
    """Weights of very different size drive the scale out of one mode and into another, without end."""
    if not math.prod(sizes) < LARGEST_PRODUCT[dtype]:
        problem = f"the penalties drive the factors out of the range of {dtype}"
        raise InvalidInput("alpha", problem, "give the modes weights (alpha, beta) of similar size, or set rescale")

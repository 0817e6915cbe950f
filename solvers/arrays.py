"""The array types of the package, and products of factors."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]
Float64: TypeAlias = NDArray[np.float64]


def khatri_rao(factors: Sequence[Array]) -> Array:
    """Column-wise Kronecker product, transposed: row r is the outer product of all columns r, last mode fastest."""
    product = np.ascontiguousarray(factors[0].T)
    for A in factors[1:]:
        product = (product[:, :, None] * np.ascontiguousarray(A.T)[:, None, :]).reshape(len(product), -1)
    return product


def gram(A: Array) -> Float64:
    """AᵀA, accumulated in float64 whatever the precision of A."""
    A = A.astype(np.float64, copy=False)
    return A.T @ A


def hadamard(matrices: Sequence[Float64]) -> Float64:
    """Elementwise product of arrays of the same shape."""
    product: Float64 = np.multiply.reduce(matrices)
    return product

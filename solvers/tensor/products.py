"""Array types of the package, and products of factors."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]
Float64: TypeAlias = NDArray[np.float64]

# Bytes of a cache line. In an array that starts at one, no SIMD vector straddles two lines.
LINE = 64
# Largest number of entries of a Khatri-Rao product that is kept whole although parts of it would do.
HELD = 1 << 23
# glibc keeps freed arrays for later ones once a large one was freed. Without that, a sweep gets the memory of its
# partial results from the system, page by page. The array is never touched, so it takes no memory.
np.empty(1 << 23, np.uint8)


def khatri_rao(factors: Sequence[Array]) -> Array:
    """Return the transposed Khatri-Rao product: row r is the Kronecker product of all columns r, last mode fastest."""
    product = np.ascontiguousarray(factors[0].T)
    for A in factors[1:]:
        product = (product[:, :, None] * np.ascontiguousarray(A.T)[:, None, :]).reshape(len(product), -1)
    return product


def khatri_rao_columns(factors: Sequence[Array], columns: slice) -> Array:
    """Return some columns of `khatri_rao(factors)` without computing many others."""
    first, *rest = factors
    if not rest:
        return np.ascontiguousarray(first[columns].T)
    length = math.prod(map(len, rest))
    begin, end = columns.start // length, -(-columns.stop // length)  # rows of the first factor
    if length <= columns.stop - columns.start:
        whole = khatri_rao([first[begin:end], *rest])
        return whole[:, columns.start - begin * length : columns.stop - begin * length]
    parts = []
    for row in range(begin, end):  # at most two
        part = slice(max(0, columns.start - row * length), min(length, columns.stop - row * length))
        parts.append(first[row][:, None] * khatri_rao_columns(rest, part))
    return np.hstack(parts)


class KhatriRao:
    """Columns of `khatri_rao(factors)`, computed at once or, if there are many, on access.

    Columns that are `used_once` are computed on access too, if there are at most two factors: with more, the products
    would be taken in another order and could differ in the last bits.
    """

    def __init__(self, factors: Sequence[Array], used_once: bool = False) -> None:
        self._factors = factors
        self.length = math.prod(map(len, factors))
        is_held = self.length * factors[0].shape[1] <= HELD and not (used_once and len(factors) <= 2)
        self._whole = khatri_rao(factors) if is_held else None

    def __getitem__(self, columns: slice) -> Array:
        return khatri_rao_columns(self._factors, columns) if self._whole is None else self._whole[:, columns]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array that starts at a cache line."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def aligned(A: Array, dtype: np.dtype[Any]) -> Array:
    """Return A in C order and the given precision, starting at a cache line; copy it only if necessary."""
    if A.ctypes.data % LINE == 0 and A.dtype == dtype and A.flags.c_contiguous and A.flags.writeable:
        return A
    copy = aligned_empty(A.shape, dtype)
    copy[...] = A
    return copy


def padded(A: Array, unit: int) -> Array:
    """Append columns of zeros until the number of columns is a multiple of `unit`."""
    rank = A.shape[1]
    if rank % unit == 0:
        return A
    whole = np.zeros((len(A), rank + -rank % unit), A.dtype)
    whole[:, :rank] = A
    return whole


def gram(A: Array) -> Float64:
    """Return AᵀA, accumulated in float64 whatever the precision of A."""
    A = A.astype(np.float64, copy=False)
    return A.T @ A


def hadamard(matrices: Sequence[Float64]) -> Float64:
    """Return the elementwise product of arrays of the same shape."""
    product: Float64 = reduce(np.multiply, matrices)
    return product


def times_rows(A: Float64, Q: Float64) -> Float64:
    """Return A Q, where Q is R × S, or I × R × S with one matrix for each row of A."""
    product: Float64 = A @ Q if Q.ndim == 2 else np.matmul(A[:, None, :], Q)[:, 0]
    return product

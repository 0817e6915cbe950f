"""The array types of the package, and products of factors."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]
Float64: TypeAlias = NDArray[np.float64]

# Bytes of a cache line. Vectors of an array that begins with one do not lie across two.
LINE = 64
# Entries of a Khatri-Rao product that is held whole where parts of it are enough.
HELD = 1 << 23


def khatri_rao(factors: Sequence[Array]) -> Array:
    """Column-wise Kronecker product, transposed: row r is the outer product of all columns r, last mode fastest."""
    product = np.ascontiguousarray(factors[0].T)
    for A in factors[1:]:
        product = (product[:, :, None] * np.ascontiguousarray(A.T)[:, None, :]).reshape(len(product), -1)
    return product


def khatri_rao_columns(factors: Sequence[Array], columns: slice) -> Array:
    """Some columns of `khatri_rao(factors)`, without forming many more of them."""
    first, *rest = factors
    if not rest:
        return np.ascontiguousarray(first[columns].T)
    length = math.prod(map(len, rest))
    begin, end = columns.start // length, -(-columns.stop // length)  # rows of the first factor
    if length <= columns.stop - columns.start:
        whole = khatri_rao([first[begin:end], *rest])
        return whole[:, columns.start - begin * length : columns.stop - begin * length]
    parts = []
    for row in range(begin, end):  # two at most
        part = slice(max(0, columns.start - row * length), min(length, columns.stop - row * length))
        parts.append(first[row][:, None] * khatri_rao_columns(rest, part))
    return np.hstack(parts)


class KhatriRao:
    """The columns of `khatri_rao(factors)`: all are held, or where they are many, they are formed as they are used.

    So are those that are `used_once`, if they are products of no more than two numbers: of more, they would be formed
    in another order, and have other bits.
    """

    def __init__(self, factors: Sequence[Array], used_once: bool = False) -> None:
        self._factors = factors
        self.length = math.prod(map(len, factors))
        is_held = self.length * factors[0].shape[1] <= HELD and not (used_once and len(factors) <= 2)
        self._whole = khatri_rao(factors) if is_held else None

    def __getitem__(self, columns: slice) -> Array:
        return khatri_rao_columns(self._factors, columns) if self._whole is None else self._whole[:, columns]


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array that begins with a cache line."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + LINE, np.uint8)
    first = -memory.ctypes.data % LINE
    return memory[first : first + size].view(dtype).reshape(shape)


def aligned(A: Array, dtype: np.dtype[Any]) -> Array:
    """The same in C order and this precision, from the beginning of a cache line on; a copy if A is not."""
    if A.ctypes.data % LINE == 0 and A.dtype == dtype and A.flags.c_contiguous and A.flags.writeable:
        return A
    copy = aligned_empty(A.shape, dtype)
    copy[...] = A
    return copy


def padded(A: Array, unit: int) -> Array:
    """The same with columns of zeros up to the next multiple of `unit`."""
    rank = A.shape[1]
    if rank % unit == 0:
        return A
    whole = np.zeros((len(A), rank + -rank % unit), A.dtype)
    whole[:, :rank] = A
    return whole


def gram(A: Array) -> Float64:
    """AᵀA, accumulated in float64 whatever the precision of A."""
    A = A.astype(np.float64, copy=False)
    return A.T @ A


def hadamard(matrices: Sequence[Float64]) -> Float64:
    """Elementwise product of arrays of the same shape."""
    product: Float64 = reduce(np.multiply, matrices)
    return product


def times_rows(A: Float64, Q: Float64) -> Float64:
    """A Q for one Q (R × S) of all rows, or for each row its own (I × R × S)."""
    product: Float64 = A @ Q if Q.ndim == 2 else np.matmul(A[:, None, :], Q)[:, 0]
    return product

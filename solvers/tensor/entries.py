"""Read the entries of a tensor tile by tile, with zeros where they are missing, and the normal equations of a slice."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.gemm.blocks import split_point
from sparse_ncp.solvers.tensor.gemm.out_of_core import MatrixTile, matrix_tiles
from sparse_ncp.solvers.tensor.products import Float64, KhatriRao
from sparse_ncp.solvers.tensor.scan import Booleans, Region, mask_region

# Entries of a tile of a slice: its temporaries stay in the L2 cache.
TILE = 1 << 16


class Entries:
    """The entries of a tensor in memory order, read in tiles of a matrix or box by box, and which are missing.

    An entry is missing where it is no number, or where `mask` (true: observed; each mode's length or 1) is false.
    """

    def __init__(self, tensor: NDArray[Any], mask: Booleans | None = None) -> None:
        if isinstance(tensor, np.ma.MaskedArray):
            own = ~np.ma.getmaskarray(tensor)
            tensor, mask = np.ma.getdata(tensor), own if mask is None else own & mask
        contiguous = tensor.flags.c_contiguous or tensor.flags.f_contiguous
        entries = tensor if contiguous else np.ascontiguousarray(tensor)
        reverse = not entries.flags.c_contiguous
        self.stored = entries.T if reverse else entries
        self.modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
        self.cut = split_point(self.stored.shape)
        self.matrix = self.stored.reshape(math.prod(self.stored.shape[: self.cut]), -1)
        self._mask = None if mask is None else mask.T if reverse else mask
        self._observed = None if self._mask is None else _MaskMatrix(self._mask, self.stored.shape, self.cut)

    def observed_in(self, box: Region, part: NDArray[Any]) -> Booleans | None:
        """Return which entries of a region of `stored` are observed; None if all are."""
        observed: Booleans | None = None
        if self._mask is not None:
            observed = np.broadcast_to(mask_region(self._mask, box), part.shape)
        if part.dtype.kind == "f":
            numbers = np.isfinite(part)
            observed = numbers if observed is None else observed & numbers
        return None if observed is None or observed.all() else observed

    def observed(self, tile: MatrixTile) -> tuple[Float64, Booleans | None]:
        """The entries of a tile, zero where they are missing, and which are observed; None if all are."""
        entries = tile.entries.astype(np.float64)
        observed = None if self._observed is None else self._observed.tile(tile.rows, tile.columns)
        if self.stored.dtype.kind == "f":
            numbers = np.isfinite(entries)
            observed = numbers if observed is None else observed & numbers
        if observed is None or observed.all():
            return entries, None
        entries[~observed] = 0
        return entries, observed


class _MaskMatrix:
    """A mask as the matrix of `Entries`, without repeating it along the modes where its length is 1."""

    def __init__(self, mask: Booleans, shape: tuple[int, ...], cut: int) -> None:
        halves = [(mask.shape[part], shape[part]) for part in (slice(cut), slice(cut, None))]
        self._matrix = mask.reshape(tuple(math.prod(own) for own, _ in halves))
        self._rows, self._columns = (_places(own, lengths) for own, lengths in halves)

    def tile(self, rows: slice, columns: slice) -> Booleans:
        found: Booleans = self._matrix[self._rows[rows, None], self._columns[None, columns]]
        return found


def _places(own: Sequence[int], lengths: Sequence[int]) -> NDArray[np.intp]:
    """Return the position of each index of some modes in a mask, which may have length 1 in them."""
    numbered = np.arange(math.prod(own)).reshape(tuple(own))
    return np.broadcast_to(numbered, tuple(lengths)).reshape(-1)


class NormalEquations(NamedTuple):
    """Least squares for one row a of a factor, from the slice x of its index: ½ a gram aᵀ − a product + ½ square."""

    gram: Float64
    product: Float64
    square: float
    observed: int

    def residual(self, a: Float64) -> float:
        """Return the squared residual of the slice over its observed entries."""
        return max(0.0, self.square - 2 * float(a @ self.product) + float(a @ self.gram @ a))


def normal_equations(part: NDArray[Any], mask: Booleans | None, factors: Sequence[Float64]) -> NormalEquations:
    """Return the normal equations of a slice, which has length 1 in its own mode; entries may be missing.

    `factors` has a row of ones for the mode of the slice. The slice is read in tiles.
    """
    entries, rank = Entries(part, mask), factors[0].shape[1]
    halves = entries.modes[: entries.cut], entries.modes[entries.cut :]
    left, right = (KhatriRao([factors[mode] for mode in half]) for half in halves)
    first, second = np.triu_indices(rank)
    pairs, product, square, observed = np.zeros(len(first)), np.zeros(rank), 0.0, 0
    for group in matrix_tiles(entries.matrix, TILE):
        for tile in group:
            x, seen = entries.observed(tile)
            L, R = left[tile.rows].astype(np.float64), right[tile.columns].astype(np.float64)
            product += ((x @ R.T) * L.T).sum(axis=0)
            square += float(np.vdot(x, x))
            if seen is None:
                pairs += ((L @ L.T) * (R @ R.T))[first, second]
                observed += x.size
            else:
                pairs += ((seen @ (R[first] * R[second]).T) * (L[first] * L[second]).T).sum(axis=0)
                observed += int(seen.sum())
    gram = np.zeros((rank, rank))
    gram[first, second] = gram[second, first] = pairs
    return NormalEquations(gram, product, square, observed)

"""Read missing entries as zeros, tile by tile, without copying or changing the tensor.

A NaN that reaches BLAS spoils a whole row, so the entries are read only in this way.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.gemm.blocks import (
    BlockRegion,
    Blocks,
    Split,
    Tile,
    block_sizes,
    length_of,
    origin,
    region_shape,
    relative_to,
    split_by,
)
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.scan import Booleans, Region, mask_region

# Entries of one tile, which stays in a cache: smaller ones would gain little, and each tile costs two calls.
TILE = 1 << 17
# Longest row of a tile in the product that keeps its columns, and in the one that sums over them: a tile is summed over
# its longer side, so that the result stays in the cache, too.
SHORT_ROW, LONG_ROW = 512, 1024


class Mask:
    """Which entries of a tensor in memory order are observed: those that are not NaN, and for which `observed` is true.

    A mode of `observed` has the length of the tensor, or 1 if the mask is constant along it.
    """

    def __init__(self, stored: NDArray[Any], observed: Booleans | None) -> None:
        self.stored = np.asarray(stored)
        self.observed = observed

    def missing(self, box: Region, entries: NDArray[Any] | None = None) -> Booleans:
        """Return where entries of a region are missing; pass its entries if they have been read already."""
        missing: Booleans = np.isnan(self.stored[box] if entries is None else entries)
        return missing if self.observed is None else np.logical_or(missing, ~mask_region(self.observed, box))


class MaskedBlocks(Blocks):
    """Products over the observed entries, or over an indicator of them (1 if observed) if `counts` is true."""

    def __init__(self, mask: Mask, split: Split, counts: bool = False) -> None:
        from sparse_ncp.solvers.tensor.missing.kernels import fill_tile  # numba: see methods/hals.py

        self._fill_tile = fill_tile
        self.shape = block_sizes(mask.stored.shape, split)
        self.dtype: np.dtype[Any] = np.dtype(np.float64) if counts else mask.stored.dtype
        self._counts = counts
        self.entries = mask.stored.reshape(self.shape)
        self._whole = Tile(self._resolved((slice(None),) * 3), self.entries)
        lengths = mask.stored.shape
        observed = np.ones((1,) * len(lengths), bool) if mask.observed is None else mask.observed
        if math.prod(observed.shape[split.stop :]) > 1:  # else one value serves a whole row
            observed = np.broadcast_to(observed, observed.shape[: split.stop] + lengths[split.stop :])
        # The mask as before × inner × after, short where it is constant, and the positions of rows in it.
        self.observed: Booleans = np.ascontiguousarray(observed).reshape(block_sizes(observed.shape, split))
        self.places = (
            _places(lengths[: split.start], observed.shape),
            _places(lengths[slice(*split)], observed.shape[split.start :]),
        )
        for columns in (slice(0, 1), slice(None)):  # compile for both kinds of rows now, so that no sweep is delayed
            region = self._resolved((slice(0, 1), slice(0, 1), columns))
            for kind in {counts, True}:
                self._tile(region, kind)
                if not self.entries.flags.writeable:  # unlike the map, entries read from its file are writable
                    self._tile(region, kind, Tile(region, np.zeros(region_shape(region), self.entries.dtype)))

    def read(self, region: BlockRegion, source: Tile | None = None) -> Array:
        return self._tile(self._resolved(region), self._counts, source)

    def residual(self, region: BlockRegion, entries: Array, model: Array) -> Array:
        cut = self._resolved(region)
        source = Tile(cut, entries.reshape(region_shape(cut)))
        difference: Array = self._tile(cut, False, source) - self._tile(cut, True, source) * model
        return difference

    def times(self, weights: Array, region: BlockRegion, out: Array | None = None) -> Array:
        before, inner, after = self._resolved(region)
        if out is None:
            out = np.empty((length_of(before), len(weights), length_of(after)), self.dtype)
        room = _Room(self.dtype)
        for b, i, a in _tiles((before, inner, after), SHORT_ROW):
            part = out[relative_to(b, before), :, relative_to(a, after)]
            tile = self._tile((b, i, a), self._counts, out=room.tile((b, i, a)))
            room.add(part, weights[:, relative_to(i, inner)], tile, is_first=i.start == inner.start)
        return out

    def times_transposed(
        self, weights: Array, block: int, inner: slice, after: slice, out: Array | None = None
    ) -> Array:
        before, inner, after = self._resolved((slice(block, block + 1), inner, after))
        if out is None:
            out = np.empty((len(weights), length_of(inner)), self.dtype)
        room = _Room(self.dtype)
        for _, i, a in _tiles((before, inner, after), LONG_ROW):
            part = out[:, relative_to(i, inner)]
            tile = self._tile((before, i, a), self._counts, out=room.tile((before, i, a)))
            room.add(part, weights[:, relative_to(a, after)], tile[0].T, is_first=a.start == after.start)
        return out

    def _resolved(self, region: BlockRegion) -> BlockRegion:
        before, inner, after = (slice(*cut.indices(length)) for cut, length in zip(region, self.shape, strict=True))
        return before, inner, after

    def _tile(self, region: BlockRegion, counts: bool, source: Tile | None = None, out: Array | None = None) -> Array:
        """Return the entries or the indicator of a region, from a tile that contains it or from the whole tensor."""
        source = source or self._whole
        tile = np.empty(region_shape(region), np.float64 if counts else self.entries.dtype) if out is None else out
        before, inner, after = region
        observed = self.observed if self.observed.shape[2] == 1 else self.observed[:, :, after]
        rows, (_, height, width) = (self.places[0][before], self.places[1][inner]), source.entries.shape
        self._fill_tile(source.entries.reshape(-1), origin(source, region), height, width, observed, rows, counts, tile)
        return tile


class _Room:
    """Memory for a tile and its product, reused for the next one: fresh memory would cost as much as both."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._tile, self._product = np.empty(TILE, dtype), np.empty(0, dtype)

    def tile(self, region: BlockRegion) -> Array:
        lengths = region_shape(region)
        return self._tile[: lengths[0] * lengths[1] * lengths[2]].reshape(lengths)

    def add(self, part: Array, weights: Array, tile: Array, is_first: bool) -> None:
        """Add weights @ tile to a part of a sum, or start the sum with it."""
        if is_first:
            np.matmul(weights, tile, out=part)
            return
        if self._product.size < part.size:
            self._product = np.empty(part.size, part.dtype)
        product = self._product[: part.size].reshape(part.shape)
        np.matmul(weights, tile, out=product)
        part += product


def _places(lengths: tuple[int, ...], shorter: tuple[int, ...]) -> NDArray[np.intp]:
    """Return the positions of all indices of these modes, in C order, in an array with length 1 in some of them."""
    position = np.zeros((), np.intp)
    for length, ours in zip(lengths, shorter, strict=False):
        steps = np.arange(length) if ours > 1 else np.zeros(length, np.intp)
        position = position[..., None] * ours + steps
    return position.reshape(-1)


def _tiles(region: BlockRegion, longest_row: int) -> Iterator[BlockRegion]:
    """Split a region into tiles, by its lengths alone; tiles summed into the same part come in order."""
    before, inner, after = region
    columns = min(length_of(after), longest_row)
    rows = min(length_of(inner), max(1, TILE // columns))
    blocks = max(1, TILE // (columns * rows))
    for b, a, i in product(split_by(before, blocks), split_by(after, columns), split_by(inner, rows)):
        yield b, i, a

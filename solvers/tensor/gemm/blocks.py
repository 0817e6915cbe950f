"""View a tensor as before × inner × after blocks, and describe regions and tiles of them.

The inner half is a run of consecutive modes in memory order; the outer half are the modes before and after it.
`before` is 1 if the inner modes come first.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparse_ncp.solvers.tensor.products import Array

# BLAS is slow for pieces with fewer columns: the product is then split along the summed side instead.
NARROW = 64


BlockRegion: TypeAlias = tuple[slice, slice, slice]


class Tile(NamedTuple):
    """A region of the blocks and a contiguous array of its entries, before × inner × after."""

    region: BlockRegion
    entries: Array


def split_by(part: slice, step: int) -> Iterator[slice]:
    """Split a slice into pieces of length `step`; the last one may be shorter."""
    return (slice(start, min(start + step, part.stop)) for start in range(part.start, part.stop, step))


def whole_region(shape: tuple[int, ...]) -> BlockRegion:
    """Return the region of all before × inner × after entries."""
    before, inner, after = shape
    return slice(0, before), slice(0, inner), slice(0, after)


def region_shape(region: BlockRegion) -> tuple[int, int, int]:
    """Return the lengths of a region: before, inner, after."""
    before, inner, after = (part.stop - part.start for part in region)
    return before, inner, after


def origin(tile: Tile, region: BlockRegion) -> tuple[int, int, int]:
    """Return the index in the tile at which a region starts."""
    before, inner, after = (part.start - whole.start for part, whole in zip(region, tile.region, strict=True))
    return before, inner, after


class Split(NamedTuple):
    """The inner half of the modes: `start` to `stop` (exclusive) in memory order."""

    start: int
    stop: int


def length_of(part: slice) -> int:
    """Return the number of entries in a slice of step 1."""
    return int(part.stop - part.start)


def relative_to(part: slice, whole: slice) -> slice:
    """Return a slice counted from the start of another one."""
    return slice(part.start - whole.start, part.stop - whole.start)


def shifted(part: slice, by: slice) -> slice:
    """Shift a slice that is counted from the start of another one, undoing `relative_to`."""
    return slice(part.start + by.start, part.stop + by.start)


def split_point(lengths: Sequence[int]) -> int:
    """Return where to split the modes in two so that both partial results together are smallest."""
    return min(
        range(1, len(lengths)),
        key=lambda cut: math.prod(lengths[:cut]) + math.prod(lengths[cut:]),
    )


def best_split(lengths: Sequence[int]) -> Split:
    """Split the first modes from the rest, unless a long mode in the middle makes both partial results large.

    With the inner half in the middle, a sweep needs a third pass over the tensor whenever the last partial result
    cannot be reused, so this has to save a lot: otherwise the partial results would be nearly as large as the tensor
    (for example 9 × 4260 × 42).
    """

    def kept(split: Split) -> int:
        """Return the number of entries of both partial results, per component."""
        inner = math.prod(lengths[slice(*split)])
        return inner + math.prod(lengths) // inner

    first = Split(0, split_point(lengths))
    middles = [Split(a, b) for a, b in combinations(range(1, len(lengths)), 2) if math.prod(lengths[b:]) >= NARROW // 2]
    middle = min(middles, key=kept, default=first)
    heavy = 100 * kept(first) > math.prod(lengths)
    return middle if heavy and 4 * kept(middle) < kept(first) else first


def block_sizes(lengths: Sequence[int], split: Split) -> tuple[int, int, int]:
    """Return the number of entries before, in and after the inner half."""
    return math.prod(lengths[: split.start]), math.prod(lengths[slice(*split)]), math.prod(lengths[split.stop :])


class Blocks:
    """The entries as before × inner × after, and products with parts of them."""

    def __init__(self, stored: Array, split: Split) -> None:
        self.shape = block_sizes(stored.shape, split)
        self.dtype: np.dtype[Any] = stored.dtype
        self.entries = stored.reshape(self.shape)  # as they are stored

    def read(self, region: BlockRegion, source: Tile | None = None) -> Array:
        """Return the entries of a region, from a tile that contains it or from the whole tensor."""
        if source is None:
            return self.entries[region]
        return source.entries[
            tuple(
                slice(begin, begin + part.stop - part.start)
                for begin, part in zip(origin(source, region), region, strict=True)
            )
        ]

    def residual(self, region: BlockRegion, entries: Array, model: Array) -> Array:
        """Subtract a model from the entries of a region."""
        difference: Array = entries - model
        return difference

    def times(self, weights: Array, region: BlockRegion, out: Array | None = None) -> Array:
        """Sum over the inner modes of a region: R × inner weights give before × R × after."""
        product: Array = np.matmul(weights, self.entries[region], out=out)
        return product

    def times_transposed(
        self, weights: Array, block: int, inner: slice, after: slice, out: Array | None = None
    ) -> Array:
        """Sum over the modes after, in one block of the modes before: R × after weights give R × inner."""
        product: Array = np.matmul(weights, self.entries[block, inner, after].T, out=out)
        return product

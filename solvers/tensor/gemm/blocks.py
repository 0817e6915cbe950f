"""The two large products with a tensor: contract the inner half of its modes and keep the outer half, or the reverse.

In memory order the inner half is one run of modes, with the outer half before and after it:
X is before × inner × after, a view, and `before` is 1 wherever the inner modes come first.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from sparse_ncp.solvers.tensor.products import Array

# A piece with fewer columns is a poor BLAS call too: the product is then cut along the summed side instead.
NARROW = 64


BlockRegion: TypeAlias = tuple[slice, slice, slice]


class Tile(NamedTuple):
    """Entries of a region, side by side as before × inner × after."""

    region: BlockRegion
    entries: Array


def split_by(part: slice, step: int) -> Iterator[slice]:
    """A part in pieces of `step`; the last one may be shorter."""
    return (slice(start, min(start + step, part.stop)) for start in range(part.start, part.stop, step))


def whole_region(shape: tuple[int, ...]) -> BlockRegion:
    """Where all of before × inner × after entries are."""
    before, inner, after = shape
    return slice(0, before), slice(0, inner), slice(0, after)


def region_shape(region: BlockRegion) -> tuple[int, int, int]:
    """How many entries a region has before, inside and after."""
    before, inner, after = (part.stop - part.start for part in region)
    return before, inner, after


def origin(tile: Tile, region: BlockRegion) -> tuple[int, int, int]:
    """Where a region begins in the tile."""
    before, inner, after = (part.start - whole.start for part, whole in zip(region, tile.region, strict=True))
    return before, inner, after


class Split(NamedTuple):
    """The inner half: modes `start` to `stop` in memory order, without `stop`."""

    start: int
    stop: int


def length_of(part: slice) -> int:
    """Return the number of entries in a slice of step 1."""
    return int(part.stop - part.start)


def relative_to(part: slice, whole: slice) -> slice:
    """Return a slice counted from the start of another one."""
    return slice(part.start - whole.start, part.stop - whole.start)


def shifted(part: slice, by: slice) -> slice:
    """A part that is counted from the beginning of another, counted as that one is."""
    return slice(part.start + by.start, part.stop + by.start)


def split_point(lengths: Sequence[int]) -> int:
    """Where to cut the modes in two: both partial results together should be as small as possible."""
    return min(
        range(1, len(lengths)),
        key=lambda cut: math.prod(lengths[:cut]) + math.prod(lengths[cut:]),
    )


def best_split(lengths: Sequence[int]) -> Split:
    """The first modes against the rest, unless one long run of modes in the middle makes both partial results large.

    A run in the middle costs a third pass over the tensor whenever the last partial result cannot be carried into the
    next sweep, so it must save a lot: the other split's results come near the tensor in size (9 × 4260 × 42).
    """
    first = Split(0, split_point(lengths))
    middles = [Split(a, b) for a, b in combinations(range(1, len(lengths)), 2) if math.prod(lengths[b:]) >= NARROW // 2]
    middle = min(middles, key=lambda split: _kept(lengths, split), default=first)
    heavy = 100 * _kept(lengths, first) > math.prod(lengths)
    return middle if heavy and 4 * _kept(lengths, middle) < _kept(lengths, first) else first


def block_sizes(lengths: Sequence[int], split: Split) -> tuple[int, int, int]:
    """The entries before, in and after the inner half."""
    return math.prod(lengths[: split.start]), math.prod(lengths[slice(*split)]), math.prod(lengths[split.stop :])


class Blocks:
    """The entries as before × inner × after, and products with a part of them."""

    def __init__(self, stored: Array, split: Split) -> None:
        self.shape = block_sizes(stored.shape, split)
        self.dtype: np.dtype[Any] = stored.dtype
        self.entries = stored.reshape(self.shape)  # as they are stored

    def read(self, region: BlockRegion, source: Tile | None = None) -> Array:
        """The entries of a region, from a tile that it lies in or from all of them."""
        if source is None:
            return self.entries[region]
        return source.entries[
            tuple(
                slice(begin, begin + part.stop - part.start)
                for begin, part in zip(origin(source, region), region, strict=True)
            )
        ]

    def residual(self, region: BlockRegion, entries: Array, model: Array) -> Array:
        """The entries of a region, as they were read, less those of a model."""
        difference: Array = entries - model
        return difference

    def times(self, weights: Array, region: BlockRegion, out: Array | None = None) -> Array:
        """Σ over the inner modes of a region: R × inner weights give before × R × after."""
        product: Array = np.matmul(weights, self.entries[region], out=out)
        return product

    def times_transposed(
        self, weights: Array, block: int, inner: slice, after: slice, out: Array | None = None
    ) -> Array:
        """Σ over the modes after, in one block of those before: R × after weights give R × inner."""
        product: Array = np.matmul(weights, self.entries[block, inner, after].T, out=out)
        return product


def _kept(lengths: Sequence[int], split: Split) -> int:
    """How many entries both partial results have, per component."""
    inner = math.prod(lengths[slice(*split)])
    return inner + math.prod(lengths) // inner

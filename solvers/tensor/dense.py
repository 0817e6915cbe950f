"""A dense tensor in memory or in a memory map, complete or with gaps. No unfolding of it is ever copied."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from sparse_ncp.solvers.tensor.dimension_tree import DimensionTree
from sparse_ncp.solvers.tensor.gemm.blocks import Blocks, Place, Slab, Split, best_split, shifted, split_point
from sparse_ncp.solvers.tensor.gemm.out_of_core import FileEntries, MatrixTile, matrix_tiles, slab_entries
from sparse_ncp.solvers.tensor.missing.gemm import products_over_observed
from sparse_ncp.solvers.tensor.missing.grams import Complete, RowGrams
from sparse_ncp.solvers.tensor.missing.masked import Mask, MaskedBlocks
from sparse_ncp.solvers.tensor.products import Array, Float64, KhatriRao, padded
from sparse_ncp.solvers.tensor.protocol import Modes, Observed
from sparse_ncp.solvers.tensor.scan import Tell
from sparse_ncp.solvers.tensor.threads import Threads, slabs

# Entries of one tile of the streamed residual: its temporaries stay in the second-level cache.
TILE = 1 << 16
# Groups of tiles, each summed by one thread at a time.
GROUPS = 16
# A tensor of more entries may lie in a file larger than memory. There a mode that no slab has all of is unfolded by two
# products, if it is so many times longer than what it is multiplied by.
MANY_ENTRIES, LONG_MODE = 1 << 24, 4
# Of an entry in single precision.
SINGLE_BYTES = 4
# Entries that are copied between two looks at whether to go on.
COPIED_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Unfolded:
    """XXᵀV of an unfolding X, and the squared norms of the positive and the negative part of each column of XᵀV."""

    product: Float64
    positive: Float64
    negative: Float64

    @classmethod
    def of(cls, tile: Float64, V: Float64) -> "Unfolded":
        right = tile.T @ V
        return cls(
            tile @ right, np.square(np.maximum(right, 0)).sum(axis=0), np.square(np.minimum(right, 0)).sum(axis=0)
        )

    def add(self, other: "Unfolded") -> "Unfolded":
        """These sums, the others added to them in place."""
        np.add(self.product, other.product, out=self.product)
        np.add(self.positive, other.positive, out=self.positive)
        np.add(self.negative, other.negative, out=self.negative)
        return self


class Positive(NamedTuple):
    """Norm and sum of a tensor whose negative entries count as zero."""

    norm: float
    sum: float


class Gaps(NamedTuple):
    """Where a tensor has entries that were not observed, and what that makes of Grams."""

    mask: Mask
    observed: RowGrams
    are_zeros: bool = False  # in the entries too, not only to be read so

    def of_core(self, entries: Array, modes: Modes) -> "Gaps":
        """Those of a core that was truncated along modes where the mask is the same; `modes` are those of its axes."""
        constant = (mode in self.observed.constant for mode in modes)
        seen = ~self.mask.missing(tuple(slice(0, 1) if same else slice(None) for same in constant))
        return Gaps(Mask(entries, seen), self.observed, are_zeros=True)


class Tensor(DimensionTree):
    """A tensor in memory order: `entries` is C-contiguous, or Fortran-contiguous and read reversed.

    `norm` and the `positive` norm and sum, which take negative entries as zero, are over the observed entries.
    """

    def __init__(
        self,
        entries: Array,
        norm: float,
        positive: Positive,
        threads: Threads,
        gaps: Gaps | None = None,
    ) -> None:
        reverse = not entries.flags.c_contiguous
        self.stored = entries.T if reverse else entries  # in C order
        self.norm, self.positive = norm, positive
        self.gaps = gaps
        self.observed: Observed = Complete(entries.ndim) if gaps is None else gaps.observed
        split = best_split(self.stored.shape)
        modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
        self._threads = threads
        super().__init__(entries.shape, modes, split, products_over_observed(self.blocks(split), threads))

    def blocks(self, split: Split) -> Blocks:
        """The entries as before × inner × after; those that were not observed read as zeros."""
        if self.gaps is None or self.gaps.are_zeros:
            return Blocks(self.stored, split)
        return MaskedBlocks(self.gaps.mask, split)

    def in_single_precision(self, tell: Tell) -> "Tensor":
        """A copy of a complete tensor; `norm` stays that of the tensor itself. `tell` hears what share was copied."""
        copy = np.empty(self.stored.shape, np.float32)
        entries, copied = self.stored.reshape(-1), copy.reshape(-1)
        for part in slabs(entries.size, -(-entries.size // COPIED_AT_ONCE)):
            tell(part.start / entries.size)
            copied[part] = entries[part]
        return Tensor(copy if self.modes[0] == 0 else copy.T, self.norm, self.positive, self._threads)

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """‖X − ⟦A¹…Aᴺ⟧‖² entry by entry, in tiles: one more product, but no cancellation."""
        cut = split_point(self.stored.shape)
        left, right = (KhatriRao([factors[mode] for mode in half]) for half in (self.modes[:cut], self.modes[cut:]))
        split = Split(0, cut)
        blocks = Blocks(self.stored, split) if self.gaps is None else MaskedBlocks(self.gaps.mask, split)

        def squared(tile: MatrixTile) -> float:
            model = left[tile.rows].T @ right[tile.columns]
            difference = blocks.residual((slice(0, 1), tile.rows, tile.columns), tile.entries, model)
            flat = difference.ravel().astype(np.float64, copy=False)
            return float(flat @ flat)

        groups = matrix_tiles(self.stored.reshape(left.length, right.length), TILE)
        return math.fsum(square for tiles in groups for square in self._threads.each(squared, tiles))

    def unfolded(self, V: Mapping[int, Float64]) -> dict[int, Unfolded]:
        """Of every mode in V, its unfolding times the transpose times V (I_n × k), and the signs of the latter two.

        One pass over the entries serves all modes but the slowest, if slabs of that one are not too large. The others
        take one each, or two.
        """
        found: dict[int, Unfolded] = {}
        together: dict[int, Blocks] = {}
        most, (length, *_) = slab_entries(self.stored.dtype), self.stored.shape
        for mode, basis in V.items():
            axis = self.modes.index(mode)
            blocks = self.blocks(Split(axis, axis + 1))
            before, rows, after = blocks.shape
            is_long = rows >= LONG_MODE * basis.shape[1]
            if self.stored.size > MANY_ENTRIES and rows * after > most and is_long:
                found[mode] = self._unfolded_twice(blocks, basis)
            elif axis > 0 and self.stored.size // length <= most:
                together[mode] = blocks
            else:
                step, wide = max(1, most // (rows * after)), min(after, max(1, most // rows))
                cuts = product(slabs(before, -(-before // step)), slabs(after, -(-after // wide)))
                places = [(some, slice(0, rows), columns) for some, columns in cuts]
                found |= self._unfolded_in_turn({mode: blocks}, V, blocks.shape, places)
        if together:
            rest = self.stored.size // length
            places = [(rows, slice(0, 1), slice(0, rest)) for rows in slabs(length, -(-length // max(1, most // rest)))]
            found |= self._unfolded_in_turn(together, V, (length, 1, rest), places)
        return found

    def _unfolded_in_turn(
        self,
        by_mode: Mapping[int, Blocks],
        V: Mapping[int, Float64],
        shape: tuple[int, int, int],
        places: Sequence[Place],
    ) -> dict[int, Unfolded]:
        """In one pass over slabs that have all of each mode, at places of the entries in this shape."""
        file = FileEntries.of(self.stored)
        read = ((place, None) for place in places) if file is None else file.slabs(shape, places)

        def partial(item: tuple[int, Slab | None, list[Place]]) -> Unfolded:
            mode, slab, tiles = item
            entries = (by_mode[mode].tile(tile, slab) for tile in tiles)
            flat = (np.moveaxis(tile, 1, 0).reshape(len(V[mode]), -1) for tile in entries)
            return reduce(Unfolded.add, (Unfolded.of(tile.astype(np.float64, copy=False), V[mode]) for tile in flat))

        found: dict[int, Unfolded] = {}
        for (some, _, columns), entries in read:
            items = []
            for mode, blocks in by_mode.items():
                before, rows, after = blocks.shape
                blocks_each = before // shape[0]
                own = slice(some.start * blocks_each, some.stop * blocks_each)
                place = own, slice(0, rows), columns if shape == blocks.shape else slice(0, after)
                slab = None if entries is None else Slab(place, entries.reshape(own.stop - own.start, rows, -1))
                tiles = _tiles(place)
                groups = max(2, min(GROUPS, self.stored.size // (4 * V[mode].size)))  # each holds a result for the mode
                items += [(mode, slab, tiles[group]) for group in slabs(len(tiles), groups)]
            most, results = slab_entries(np.dtype(np.float64)), sum(V[mode].size for mode, *_ in items)
            at_once = max(self._threads.count, most * len(items) // results)  # as many as hold about a slab
            for first in range(0, len(items), at_once):
                batch = items[first : first + at_once]
                for (mode, *_), part in zip(batch, self._threads.each(partial, batch), strict=True):
                    found[mode] = found[mode].add(part) if mode in found else part
        return found

    def _unfolded_twice(self, blocks: Blocks, V: Float64) -> Unfolded:
        """The same for a mode whose tiles would lie scattered: XᵀV is held in parts, and X is read in order, twice."""
        products = products_over_observed(blocks, self._threads)
        positive, negative = np.zeros(V.shape[1]), np.zeros(V.shape[1])

        def squares_added(parts: Iterable[Array]) -> Iterator[Array]:
            nonlocal positive, negative
            for right in parts:
                for part in slabs(len(right), -(-right.size // TILE)):
                    some = right[part, : V.shape[1]].astype(np.float64)
                    positive += np.square(np.maximum(some, 0)).sum(axis=0)
                    negative += np.square(np.minimum(some, 0)).sum(axis=0)
                yield right

        weights = padded(V.astype(self.dtype), products.unit)
        product = products.contract_parts(squares_added(products.contracted_parts(weights)), weights.shape[1])
        return Unfolded(product[:, : V.shape[1]].astype(np.float64), positive, negative)


def _tiles(place: Place) -> list[Place]:
    """Cut a place with all of a mode into tiles."""
    before, rows, after = (part.stop - part.start for part in place)
    columns = max(1, TILE // rows)  # of the unfolding, in one tile
    wide = min(after, columns)
    cuts = product(slabs(before, -(-before * wide // columns)), slabs(after, -(-after // wide)))
    return [(shifted(some, place[0]), place[1], shifted(depth, place[2])) for some, depth in cuts]

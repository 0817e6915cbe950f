"""A dense tensor in memory or in a memory map, complete or with gaps. No unfolding of it is ever copied."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from solvers.tensor.contraction import Blocks, Split, best_split, split_point
from solvers.tensor.missing.grams import Complete, RowGrams
from solvers.tensor.missing.masked import Mask, MaskedBlocks
from solvers.tensor.missing.observed import products_over_observed
from solvers.tensor.products import Array, Float64, khatri_rao, padded
from solvers.tensor.protocol import Modes, Observed
from solvers.tensor.scan import Tell
from solvers.tensor.thin.products import ProductsOf
from solvers.tensor.threads import Threads, slabs
from solvers.tensor.tree import DimensionTree

# Entries of one tile of the streamed residual: its temporaries stay in the second-level cache.
TILE = 1 << 16
# Groups of tiles, each summed by one thread at a time.
GROUPS = 16
# A tensor of more entries may lie in a file larger than memory. There the slowest mode is unfolded by two products, if
# it is so many times longer than what it is multiplied by: then what lies between them is small beside the tensor.
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

    def plus(self, other: "Unfolded") -> "Unfolded":
        return Unfolded(self.product + other.product, self.positive + other.positive, self.negative + other.negative)


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
        products_of: ProductsOf = products_over_observed,
    ) -> None:
        reverse = not entries.flags.c_contiguous
        self.stored = entries.T if reverse else entries  # in C order
        self.norm, self.positive = norm, positive
        self.gaps = gaps
        self.observed: Observed = Complete(entries.ndim) if gaps is None else gaps.observed
        split = best_split(self.stored.shape)
        modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
        self.products_of = products_of
        self._threads = threads
        super().__init__(entries.shape, modes, split, products_of(self.blocks(split), threads))

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
        left, right = (khatri_rao([factors[mode] for mode in half]) for half in (self.modes[:cut], self.modes[cut:]))
        rows, columns = left.shape[1], right.shape[1]
        split = Split(0, cut)
        blocks = Blocks(self.stored, split) if self.gaps is None else MaskedBlocks(self.gaps.mask, split)
        wide = min(columns, TILE)
        tiles = product(slabs(rows, -(-rows * wide // TILE)), slabs(columns, -(-columns // wide)))

        def squared(tile: tuple[slice, slice]) -> float:
            row, column = tile
            difference = blocks.residual((slice(0, 1), row, column), left[:, row].T @ right[:, column])
            flat = difference.ravel().astype(np.float64, copy=False)
            return float(flat @ flat)

        return math.fsum(self._threads.each(squared, tiles))

    def unfolded(self, mode: int, V: Float64) -> Unfolded:
        """The mode's unfolding times its transpose times V (I_n × k), and the signs of the transpose times V."""
        axis = self.modes.index(mode)
        before = math.prod(self.stored.shape[:axis])
        blocks = self.blocks(Split(axis, axis + 1))
        if axis == 0 and self.stored.size > MANY_ENTRIES and len(V) >= LONG_MODE * V.shape[1]:
            return self._unfolded_first(blocks, V)
        after = blocks.shape[2]
        columns = max(1, TILE // self.shape[mode])  # of the unfolding, in one tile
        wide = min(after, columns)
        tiles = list(product(slabs(before, -(-before * wide // columns)), slabs(after, -(-after // wide))))

        def partial(group: slice) -> Unfolded:
            read = (blocks.tile((rows, slice(None), depth)) for rows, depth in tiles[group])
            flat = (np.moveaxis(tile, 1, 0).reshape(len(V), -1) for tile in read)
            return reduce(Unfolded.plus, (Unfolded.of(tile.astype(np.float64), V) for tile in flat))

        parts = self._threads.each(partial, slabs(len(tiles), GROUPS))
        return reduce(Unfolded.plus, parts)  # in the order of the parts, whichever thread finished first

    def _unfolded_first(self, blocks: Blocks, V: Float64) -> Unfolded:
        """The same for the slowest mode, whose tiles lie scattered: XᵀV is held, and X is read in order, twice."""
        products = self.products_of(blocks, self._threads)
        right = products.contract_inner(padded(V.astype(self.dtype), products.unit))
        positive, negative = np.zeros(V.shape[1]), np.zeros(V.shape[1])
        for part in slabs(len(right), -(-right.size // TILE)):
            some = right[part, : V.shape[1]].astype(np.float64)
            positive += np.square(np.maximum(some, 0)).sum(axis=0)
            negative += np.square(np.minimum(some, 0)).sum(axis=0)
        product = products.contract_outer(right)[:, : V.shape[1]].astype(np.float64)
        return Unfolded(product, positive, negative)

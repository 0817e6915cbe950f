"""A dense tensor in memory or in a memory map, with or without missing entries; no unfolding is ever copied."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np

from sparse_ncp.solvers.tensor.compressed import LARGEST_LOSS, Compressed, compress, is_worthwhile, sketch_bytes
from sparse_ncp.solvers.tensor.dimension_tree import DimensionTree
from sparse_ncp.solvers.tensor.gemm.blocks import (
    BlockRegion,
    Blocks,
    Split,
    Tile,
    best_split,
    length_of,
    shifted,
    split_point,
)
from sparse_ncp.solvers.tensor.gemm.out_of_core import FileEntries, MatrixTile, matrix_tiles, stream_tile_entries
from sparse_ncp.solvers.tensor.missing.gemm import gemm_over_observed
from sparse_ncp.solvers.tensor.missing.grams import CompleteGrams, RowGrams
from sparse_ncp.solvers.tensor.missing.masked import Mask, MaskedBlocks
from sparse_ncp.solvers.tensor.products import Array, Float64, KhatriRao, padded
from sparse_ncp.solvers.tensor.protocol import GramProduct, Modes, Observed, Positive
from sparse_ncp.solvers.tensor.scan import OnProgress
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# Entries of one tile of the streamed residual: its temporaries stay in the L2 cache.
TILE = 1 << 16
# Number of groups of tiles, each summed by one thread.
GROUPS = 16
# A tensor of more entries may lie in a file larger than memory. There a mode that no tile has all of is unfolded by two
# products, if it is so many times longer than what it is multiplied by.
MANY_ENTRIES, LONG_MODE = 1 << 24, 4
# Bytes of an entry in single precision.
SINGLE_BYTES = 4
# Entries copied between two reports of progress, where a run can be cancelled.
COPIED_AT_ONCE = 1 << 24

Measured = TypeVar("Measured")


class MissingEntries(NamedTuple):
    """The missing entries of a tensor, and the Gram matrices over the observed ones."""

    mask: Mask
    grams: RowGrams
    are_zeros: bool = False  # stored as zeros, so that no mask has to be applied

    def of_core(self, entries: Array, modes: Modes) -> "MissingEntries":
        """Return the missing entries of a core truncated along constant modes; `modes` lists the modes of its axes."""
        constant = (mode in self.grams.constant for mode in modes)
        observed = ~self.mask.missing(tuple(slice(0, 1) if same else slice(None) for same in constant))
        return MissingEntries(Mask(entries, observed), self.grams, are_zeros=True)


class Tensor(DimensionTree):
    """A dense tensor; `entries` is C-contiguous, or Fortran-contiguous and read with its modes reversed.

    `norm` and `positive` refer to the observed entries; `positive` counts negative entries as zero.
    """

    def __init__(
        self,
        entries: Array,
        norm: float,
        positive: Positive,
        threads: Threads,
        missing: MissingEntries | None = None,
    ) -> None:
        reverse = not entries.flags.c_contiguous
        self.stored = entries.T if reverse else entries  # in C order
        self.norm, self.positive = norm, positive
        self.missing = missing
        self.observed: Observed = CompleteGrams(entries.ndim) if missing is None else missing.grams
        split = best_split(self.stored.shape)
        modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
        self._threads = threads
        super().__init__(entries.shape, modes, split, gemm_over_observed(self.blocks(split), threads))

    def blocks(self, split: Split) -> Blocks:
        """View the entries as before × inner × after, with zeros for missing ones."""
        if self.missing is None or self.missing.are_zeros:
            return Blocks(self.stored, split)
        return MaskedBlocks(self.missing.mask, split)

    @property
    def has_gram_times(self) -> bool:
        return True

    def compile_single_precision(self) -> None:
        Tensor(np.ones((1,) * len(self.shape), np.float32), 1.0, Positive(1.0, 1.0), self._threads)

    def compression_bytes(self, rank: int) -> int:
        return sketch_bytes(self.shape, rank)

    def compress(self, rank: int, on_progress: OnProgress, always: bool = False) -> Compressed | None:
        if always:
            return compress(self, rank, self._threads, on_progress=on_progress)
        pays = is_worthwhile(self.shape, rank, self.observed.constant)
        return compress(self, rank, self._threads, LARGEST_LOSS, on_progress) if pays else None

    def with_core(self, entries: Array) -> "Tensor":
        """Return a tensor of the entries that truncation has left, in float64 and in the same memory order."""
        entries = entries.astype(np.float64, copy=False)
        flat = entries.ravel()
        norm = math.sqrt(float(flat @ flat))
        missing = None if self.missing is None else self.missing.of_core(entries, self.modes)
        in_order = entries if self.modes[0] == 0 else entries.T
        return Tensor(in_order, norm, Positive(norm, float(flat.sum())), self._threads, missing)

    def in_single_precision(self, on_progress: OnProgress) -> "Tensor":
        """Return a copy of a complete tensor in float32 that keeps the `norm` of this one."""
        copy = np.empty(self.stored.shape, np.float32)
        entries, copied = self.stored.reshape(-1), copy.reshape(-1)
        for part in split_evenly(entries.size, -(-entries.size // COPIED_AT_ONCE)):
            on_progress(part.start / entries.size)
            copied[part] = entries[part]
        return Tensor(copy if self.modes[0] == 0 else copy.T, self.norm, self.positive, self._threads)

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """Return ‖X − ⟦A¹…Aᴺ⟧‖², summed entry by entry in tiles: one more product, but no cancellation."""

        def squared(difference: Array) -> float:
            flat = difference.ravel().astype(np.float64, copy=False)
            return float(flat @ flat)

        return math.fsum(square for _, _, square in self._residual_tiles(factors, squared))

    def sums_per_index(
        self, mode: int, factors: Sequence[Array], terms: Sequence[Callable[[Float64], Float64]] = (np.square,)
    ) -> Float64:
        """Return sums of X − ⟦A¹…Aᴺ⟧ over the slices of a mode, in tiles: a row for each term, such as its square."""
        cut = split_point(self.stored.shape)
        axis = self.modes.index(mode)
        half = self.stored.shape[:cut] if axis < cut else self.stored.shape[cut:]
        across = 1 if axis < cut else 0  # the axis of a tile that is summed first

        def summed(difference: Array) -> Float64:
            exact = difference.reshape(difference.shape[-2:]).astype(np.float64, copy=False)
            return np.array([term(exact).sum(axis=across) for term in terms])

        total = np.zeros((len(terms), math.prod(half)))
        for rows, columns, part in self._residual_tiles(factors, summed):
            total[:, rows if axis < cut else columns] += part
        axes = tuple(1 + other for other in range(len(half)) if other != axis - (axis >= cut) * cut)
        sums: Float64 = total.reshape(len(terms), *half).sum(axis=axes)
        return sums

    def _residual_tiles(
        self, factors: Sequence[Array], measure: Callable[[Array], Measured]
    ) -> Iterator[tuple[slice, slice, Measured]]:
        """Yield a measure of X − ⟦A¹…Aᴺ⟧, zero where an entry is missing, tile by tile with its rows and columns."""
        cut = split_point(self.stored.shape)
        left, right = (KhatriRao([factors[mode] for mode in half]) for half in (self.modes[:cut], self.modes[cut:]))
        split = Split(0, cut)
        blocks = Blocks(self.stored, split) if self.missing is None else MaskedBlocks(self.missing.mask, split)

        def measured(tile: MatrixTile) -> tuple[slice, slice, Measured]:
            model = left[tile.rows].T @ right[tile.columns]
            difference = blocks.residual((slice(0, 1), tile.rows, tile.columns), tile.entries, model)
            return tile.rows, tile.columns, measure(difference)

        for tiles in matrix_tiles(self.stored.reshape(left.length, right.length), TILE):
            yield from self._threads.each(measured, tiles)

    def gram_times(self, V: Mapping[int, Float64]) -> dict[int, GramProduct]:
        """Return X₍ₙ₎X₍ₙ₎ᵀV for each mode n in V, with X₍ₙ₎ the unfolding along mode n and V of shape I_n × k.

        All modes but the slowest one take a single pass together, if tiles of the slowest mode are small enough. Other
        modes take one or two passes each.
        """
        found: dict[int, GramProduct] = {}
        together: dict[int, Blocks] = {}
        most, (length, *_) = stream_tile_entries(self.stored.dtype), self.stored.shape
        for mode, basis in V.items():
            axis = self.modes.index(mode)
            blocks = self.blocks(Split(axis, axis + 1))
            before, rows, after = blocks.shape
            is_long = rows >= LONG_MODE * basis.shape[1]
            if self.stored.size > MANY_ENTRIES and rows * after > most and is_long:
                found[mode] = self._gram_times_in_two_passes(blocks, basis)
            elif axis > 0 and self.stored.size // length <= most:
                together[mode] = blocks
            else:
                step, wide = max(1, most // (rows * after)), min(after, max(1, most // rows))
                cuts = product(split_evenly(before, -(-before // step)), split_evenly(after, -(-after // wide)))
                regions = [(some, slice(0, rows), columns) for some, columns in cuts]
                found |= self._gram_times_in_one_pass({mode: blocks}, V, blocks.shape, regions)
        if together:
            rest = self.stored.size // length
            regions = [
                (rows, slice(0, 1), slice(0, rest)) for rows in split_evenly(length, -(-length // max(1, most // rest)))
            ]
            found |= self._gram_times_in_one_pass(together, V, (length, 1, rest), regions)
        return found

    def _gram_times_in_one_pass(
        self,
        by_mode: Mapping[int, Blocks],
        V: Mapping[int, Float64],
        shape: tuple[int, int, int],
        regions: Sequence[BlockRegion],
    ) -> dict[int, GramProduct]:
        """Multiply in one pass over tiles at these regions, each of which has all indices of every mode in V."""
        file = FileEntries.of(self.stored)
        read = ((region, None) for region in regions) if file is None else file.tiles(shape, regions)

        def partial(item: tuple[int, Tile | None, list[BlockRegion]]) -> GramProduct:
            mode, tile, regions = item
            entries = (by_mode[mode].read(region, tile) for region in regions)
            flat = (np.moveaxis(tile, 1, 0).reshape(len(V[mode]), -1) for tile in entries)
            return reduce(
                GramProduct.add, (GramProduct.of(tile.astype(np.float64, copy=False), V[mode]) for tile in flat)
            )

        found: dict[int, GramProduct] = {}
        for (some, _, columns), entries in read:
            items = []
            for mode, blocks in by_mode.items():
                before, rows, after = blocks.shape
                blocks_each = before // shape[0]
                own = slice(some.start * blocks_each, some.stop * blocks_each)
                region = own, slice(0, rows), columns if shape == blocks.shape else slice(0, after)
                tile = None if entries is None else Tile(region, entries.reshape(own.stop - own.start, rows, -1))
                width = max(1, TILE // rows)  # columns of the unfolding, in one tile
                wide = min(length_of(region[2]), width)
                cuts = product(
                    split_evenly(length_of(own), -(-length_of(own) * wide // width)),
                    split_evenly(length_of(region[2]), -(-length_of(region[2]) // wide)),
                )
                tiles = [(shifted(some, own), region[1], shifted(depth, region[2])) for some, depth in cuts]
                groups = max(2, min(GROUPS, self.stored.size // (4 * V[mode].size)))  # every group holds a result
                items += [(mode, tile, tiles[group]) for group in split_evenly(len(tiles), groups)]
            most, results = stream_tile_entries(np.dtype(np.float64)), sum(V[mode].size for mode, *_ in items)
            at_once = max(self._threads.count, most * len(items) // results)  # results of about the size of a tile
            for first in range(0, len(items), at_once):
                batch = items[first : first + at_once]
                for (mode, *_), part in zip(batch, self._threads.each(partial, batch), strict=True):
                    found[mode] = found[mode].add(part) if mode in found else part
        return found

    def _gram_times_in_two_passes(self, blocks: Blocks, V: Float64) -> GramProduct:
        """Multiply for a mode whose tiles would be scattered: hold XᵀV in parts, and read X twice, in order."""
        products = gemm_over_observed(blocks, self._threads)
        positive, negative = np.zeros(V.shape[1]), np.zeros(V.shape[1])

        def squares_added(parts: Iterable[Array]) -> Iterator[Array]:
            nonlocal positive, negative
            for right in parts:
                for part in split_evenly(len(right), -(-right.size // TILE)):
                    some = right[part, : V.shape[1]].astype(np.float64)
                    positive += np.square(np.maximum(some, 0)).sum(axis=0)
                    negative += np.square(np.minimum(some, 0)).sum(axis=0)
                yield right

        weights = padded(V.astype(self.dtype), products.unit)
        product = products.contract_parts(squares_added(products.contracted_parts(weights)), weights.shape[1])
        return GramProduct(product[:, : V.shape[1]].astype(np.float64), positive, negative)

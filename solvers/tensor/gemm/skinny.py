"""The two large products for few columns, by our own kernel, with entries in memory or streamed from a file.

A result is summed over blocks in memory order, from tile to tile, however the work is shared among threads: its bits
depend only on the shape and the number of columns.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from sparse_ncp.solvers.tensor.gemm.blas import SMALL, BlasGemm
from sparse_ncp.solvers.tensor.gemm.blocks import (
    BlockRegion,
    Blocks,
    Tile,
    origin,
    region_shape,
    shifted,
    split_by,
    whole_region,
)
from sparse_ncp.solvers.tensor.gemm.float64_partials import Float64Partials, total
from sparse_ncp.solvers.tensor.gemm.out_of_core import (
    ALIGNED_COLUMNS,
    ALIGNED_ROWS,
    FileEntries,
    stream_tile_entries,
    stream_tiles,
)
from sparse_ncp.solvers.tensor.gemm.protocol import Gemm, Side
from sparse_ncp.solvers.tensor.products import Array, aligned, aligned_empty
from sparse_ncp.solvers.tensor.threads import Threads, split_decreasing, split_evenly

# A result with fewer rows than this is summed in sections, to give every thread some work.
FEW_ROWS, SECTIONS = 64, 16
# Number of multiplications that one thread finishes before another has woken up.
QUICK = 1 << 22


def gemm_for(blocks: Blocks, threads: Threads) -> Gemm:
    """Choose our kernel if the processor has suitable vectors, else BLAS."""
    from sparse_ncp.solvers.tensor.gemm.codegen import VECTOR_BYTES  # numba: see methods/hals.py

    return BlasGemm(blocks, threads) if VECTOR_BYTES is None else SkinnyGemm(blocks, threads)


class SkinnyGemm(Float64Partials):
    """Products with few columns, over all entries and on several threads."""

    def __init__(self, blocks: Blocks, threads: Threads) -> None:
        from sparse_ncp.solvers.tensor.gemm import codegen

        super().__init__(blocks.shape, blocks.dtype, threads)
        self._kernel = codegen
        self._entries = blocks.entries
        self._file = FileEntries.of(self._entries)
        self.unit = codegen.unit_of(blocks.dtype)
        codegen.precompile(blocks.dtype)

    def contract_inner(self, weights: Array) -> Array:
        return total(self._contract("inner", weights, whole_region(self._shape)))

    def contract_outer(self, weights: Array) -> Array:
        return total(self._contract("outer", weights, whole_region(self._shape)))

    def parts(self, columns: int, side: Side = "outer") -> list[BlockRegion]:
        """Split so that a part of the matrix has about as many entries as a tile; the split does not change any bit."""
        (before, inner, after), most = self._shape, stream_tile_entries(self.dtype) // columns
        at_once, rows, wide = before, inner, after
        if side == "inner":
            rows = max(1, most // ALIGNED_ROWS) * ALIGNED_ROWS
        elif after <= most:
            at_once = most // after
        else:
            at_once, wide = 1, max(1, most // ALIGNED_COLUMNS) * ALIGNED_COLUMNS
        blocks, inside, beside = whole_region(self._shape)
        return list(product(split_by(blocks, at_once), split_by(inside, rows), split_by(beside, wide)))

    def contracted_parts(self, weights: Array, side: Side = "outer") -> Iterator[Array]:
        for part in self.parts(weights.shape[1], side):
            yield total(self._contract("inner" if side == "outer" else "outer", weights, part))

    def contract_parts(self, weights: Iterable[Array], columns: int, side: Side = "outer") -> Array:
        (first, *others), coming = self.parts(columns, side), iter(weights)
        sums = self._contract(side, next(coming), first)
        for part in others:  # the weights of a part are released before the next are formed
            self._contract(side, next(coming), part, sums)
        return total(sums)

    def _contract(self, side: Side, weights: Array, whole: BlockRegion, sums: Array | None = None) -> Array:
        """Add the products over a region, whose outer modes must be contiguous, to the sums of each section."""
        sections, rows_at_once = self._sections(side), self._kernel.ROWS
        before, inner, after = region_shape(whole)
        weights, by_block = aligned(weights, self.dtype), before >= 2 * self._threads.count
        if sums is None:
            kept = before * after if side == "inner" else inner
            sums = aligned_empty((len(sections), kept, weights.shape[1]), self.dtype)
            sums[...] = 0

        def sum_inner(tile: Tile, region: BlockRegion) -> None:
            blocks, rows, columns = region

            def piece(item: tuple[int, slice]) -> None:
                section, part = item
                cut = _common(rows, sections[section])
                b, a = (shifted(part, blocks), columns) if by_block else (blocks, shifted(part, columns))
                if cut is not None:
                    first = cut.start - whole[1].start
                    self._sum_across(tile, (b, cut, a), weights, first, sums[section], self._row(whole, b, a))

            cut_side, unit = (blocks, 1) if by_block else (columns, rows_at_once)
            self._share(piece, len(sections), cut_side, unit, weights.shape[1])

        def sum_outer(tile: Tile, region: BlockRegion) -> None:
            blocks, rows, columns = region

            def piece(item: tuple[int, slice]) -> None:
                section, part = item
                cut, rows_part = _common(columns, sections[section]), shifted(part, rows)
                if cut is not None:
                    first = rows_part.start - whole[1].start
                    out = sums[section, first : first + rows_part.stop - rows_part.start]
                    row = self._row(whole, blocks, cut)
                    self._sum_along(tile, (blocks, rows_part, cut), weights, row, out)

            self._share(piece, len(sections), rows, rows_at_once, weights.shape[1])

        work = sum_inner if side == "inner" else sum_outer
        for tile, region in stream_tiles(self._entries, self._file, whole):
            work(tile, region)
        return sums

    def _row(self, whole: BlockRegion, blocks: slice, columns: slice) -> int:
        """Return the row of the weights or results for the outer modes that belongs to this block and column."""
        row: int = (blocks.start - whole[0].start) * self._shape[2] + columns.start - whole[2].start
        return row

    def _sum_across(self, tile: Tile, region: BlockRegion, weights: Array, first: int, out: Array, row: int) -> None:
        """Add the sums over the inner modes of a region to rows of `out`, with the weights from row `first`."""
        (b, i, a), (address, block_step, row_step) = region, _address(tile, region)
        self._kernel.sum_across(
            address, a.stop - a.start, row_step, i.stop - i.start, b.stop - b.start, block_step,
            weights, first, self.unit, out, row, self._shape[2],
        )  # fmt: skip

    def _sum_along(self, tile: Tile, region: BlockRegion, weights: Array, row: int, out: Array) -> None:
        """Add the sums over the outer modes of a region to `out`, with the weights from row `row`."""
        (b, i, a), (address, block_step, row_step) = region, _address(tile, region)
        self._kernel.sum_along(
            address, i.stop - i.start, row_step, a.stop - a.start, b.stop - b.start, block_step,
            weights, row, self._shape[2], self._kernel.block_along(weights.shape[1]), self.unit, out,
        )  # fmt: skip

    def _sections(self, side: Side) -> list[slice]:
        """Split the sum over this side between blocks, by shape alone."""
        before, inner, after = self._shape
        rows, depth, block = before * after, inner, self._kernel.ACROSS
        if side == "outer":
            rows, depth, block = inner, after, self._kernel.ALONG
        blocks = -(-depth // block)
        count = 1 if rows >= FEW_ROWS or self._entries.size <= SMALL else SECTIONS
        return [slice(part.start * block, min(depth, part.stop * block)) for part in split_evenly(blocks, count)]

    def _share(
        self, piece: Callable[[tuple[int, slice]], None], sections: int, rows: slice, unit: int, columns: int
    ) -> None:
        """Run `piece` for every section and every part of the rows; parts start at multiples of `unit`."""
        count = rows.stop - rows.start
        alone = sections > 1 or self._entries.size * columns <= QUICK or self._threads.count == 1
        parts = [slice(0, count)] if alone else split_decreasing(count, self._threads.count, unit)
        self._threads.each(piece, product(range(sections), parts))


def _address(tile: Tile, region: BlockRegion) -> tuple[int, int, int]:
    """Return the address of a region, and the steps between its blocks and rows in entries."""
    (before, inner, after), (_, rows, columns) = origin(tile, region), tile.entries.shape
    offset = (before * rows + inner) * columns + after
    return tile.entries.ctypes.data + offset * tile.entries.itemsize, rows * columns, columns


def _common(one: slice, other: slice) -> slice | None:
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return slice(start, stop) if start < stop else None

"""The two large products by the thin kernel. The entries are read where they are, or streamed from their file.

In both, a result is summed over its blocks in memory order, from slab to slab and whatever the threads share out: the
bits depend on the shape and the number of columns alone.
"""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from solvers.tensor.contraction import SMALL, Blocks, Matricization, Place
from solvers.tensor.products import Array
from solvers.tensor.thin.file_entries import FileEntries
from solvers.tensor.threads import Threads, slabs

# A result with fewer rows than this is summed in sections, so that threads have something to share.
FEW_ROWS, SECTIONS = 64, 16
# Pieces of the rows for every thread: enough that none waits long for the last one.
PIECES_PER_THREAD = 4
# A partial result of fewer entries is contracted by one thread sooner than another wakes.
SMALL_PARTIAL = 1 << 18


class Products(Protocol):
    """The products with a tensor that is seen as before × inner × after; columns of weights and results come last."""

    unit: int  # the number of columns must be a multiple of this
    rotates: bool  # whether a sweep may begin at the inner modes, to save a contraction

    def contract_inner(self, weights: Array) -> Array:
        """Σ over the inner modes; weights is inner × R, the result (before · after) × R."""

    def contract_outer(self, weights: Array) -> Array:
        """Σ over the outer modes; weights is (before · after) × R, the result inner × R."""

    def contract_partial(self, partial: Array, weights: Array, away_first: bool) -> Array:
        """Σ over the first or the second axis of a partial result; each component has weights of its own."""


ProductsOf: TypeAlias = Callable[[Blocks, Threads], Products]


def products_with(blocks: Blocks, threads: Threads) -> Products:
    """By the thin kernel where the processor has vectors and every entry is to be read as it is, else by BLAS."""
    from solvers.tensor.thin.kernel import VECTOR_BYTES  # numba: see methods/hals.py

    if VECTOR_BYTES is None or not blocks.is_plain:
        return BlasProducts(blocks, threads)
    return ThinProducts(blocks, threads)


class InDoublePrecision:
    """Contractions inside a partial result, in double precision from there on."""

    rotates = True

    def __init__(self, dtype: np.dtype[Any], threads: Threads) -> None:
        from solvers.tensor.thin import partials  # numba: see methods/hals.py

        self._partials = partials
        self._threads = threads
        partials.load(dtype)

    def contract_partial(self, partial: Array, weights: Array, away_first: bool) -> Array:
        weights = np.require(weights, None, "W")  # else the kernel would be compiled once more
        contract = self._partials.contract_first if away_first else self._partials.contract_second
        rest = np.empty((partial.shape[1 if away_first else 0], weights.shape[1]))
        self._threads.each(
            lambda part: contract(partial, weights, part.start, rest[part]),
            slabs(len(rest), min(partial.size // SMALL_PARTIAL, 2 * self._threads.count)),
        )
        return rest


class BlasProducts(InDoublePrecision):
    """Those of a `Matricization`."""

    unit = 1

    def __init__(self, blocks: Blocks, threads: Threads) -> None:
        super().__init__(blocks.dtype, threads)
        self._matrix = Matricization(blocks, threads)

    def contract_inner(self, weights: Array) -> Array:
        return _transposed(self._matrix.contract_inner(_transposed(weights)))

    def contract_outer(self, weights: Array) -> Array:
        return _transposed(self._matrix.contract_outer(_transposed(weights)))


class ProductsOfFormat1(BlasProducts):
    """The products of the version whose states have format 1, to the bit: all by BLAS, in the tensor's precision."""

    rotates = False

    def contract_partial(self, partial: Array, weights: Array, away_first: bool) -> Array:
        """One matrix-vector product for each component."""
        matrices = np.ascontiguousarray(np.moveaxis(partial, 2, 0))
        vectors = _transposed(weights)
        rest = np.empty((len(vectors), matrices.shape[2 if away_first else 1]), partial.dtype)

        def piece(some: slice) -> None:
            if away_first:
                np.matmul(vectors[some, None, :], matrices[some], out=rest[some, None, :])
            else:
                np.matmul(matrices[some], vectors[some, :, None], out=rest[some, :, None])

        self._threads.each(piece, slabs(len(vectors), partial.size // SMALL_PARTIAL))
        return _transposed(rest)


class _Slab(NamedTuple):
    """Entries of a place, from an address on, with the steps between their blocks and rows."""

    place: Place
    address: int
    block_step: int
    row_step: int


class ThinProducts(InDoublePrecision):
    """The thin kernel over all entries, on threads."""

    def __init__(self, blocks: Blocks, threads: Threads) -> None:
        from solvers.tensor.thin import kernel

        super().__init__(blocks.dtype, threads)
        self._kernel = kernel
        self._entries = blocks.tile((slice(None),) * 3)
        self._file = FileEntries.of(self._entries)
        self.unit = kernel.unit_of(blocks.dtype)
        kernel.load(blocks.dtype)

    def contract_inner(self, weights: Array) -> Array:
        kernel, weights = self._kernel, np.require(weights, self._entries.dtype, ["C", "W"])  # it reads addresses
        before, inner, after = self._entries.shape
        sections = self._sections(before * after, inner, kernel.ACROSS)
        sums = np.zeros((len(sections), before * after, weights.shape[1]), weights.dtype)
        by_block = before >= 2 * self._threads.count

        def work(slab: _Slab) -> None:
            blocks, rows, columns = slab.place

            def piece(item: tuple[int, slice]) -> None:
                section, part = item
                cut = _common(rows, sections[section])
                b, a = (_shifted(part, blocks), columns) if by_block else (blocks, _shifted(part, columns))
                if cut is not None:
                    offset = (b.start - blocks.start) * slab.block_step + (cut.start - rows.start) * slab.row_step
                    kernel.sum_across(
                        slab.address + (offset + a.start - columns.start) * sums.itemsize,
                        a.stop - a.start, slab.row_step, cut.stop - cut.start, b.stop - b.start, slab.block_step,
                        weights, cut.start, self.unit, sums[section], b.start * after + a.start, after,
                    )  # fmt: skip

            if by_block:
                self._share(piece, len(sections), blocks, fewest=1)
            else:
                self._share(piece, len(sections), columns, fewest=kernel.ROWS)

        self._each_slab(work)
        return _total(sums)

    def contract_outer(self, weights: Array) -> Array:
        kernel, weights = self._kernel, np.require(weights, self._entries.dtype, ["C", "W"])  # it reads addresses
        _, inner, after = self._entries.shape
        sections = self._sections(inner, after, kernel.ALONG)
        sums = np.zeros((len(sections), inner, weights.shape[1]), weights.dtype)
        length = kernel.block_along(weights.shape[1])

        def work(slab: _Slab) -> None:
            blocks, rows, columns = slab.place

            def piece(item: tuple[int, slice]) -> None:
                section, part = item
                cut = _common(columns, sections[section])
                if cut is not None:
                    offset = part.start * slab.row_step + cut.start - columns.start
                    kernel.sum_along(
                        slab.address + offset * sums.itemsize,
                        part.stop - part.start, slab.row_step, cut.stop - cut.start,
                        blocks.stop - blocks.start, slab.block_step,
                        weights, blocks.start * after + cut.start, after, length, self.unit,
                        sums[section, rows.start + part.start : rows.start + part.stop],
                    )  # fmt: skip

            self._share(piece, len(sections), rows, fewest=kernel.ROWS)

        self._each_slab(work)
        return _total(sums)

    def _sections(self, rows: int, depth: int, block: int) -> list[slice]:
        """Where to cut the sum, between its blocks and by the shape alone."""
        blocks = -(-depth // block)
        count = 1 if rows >= FEW_ROWS or self._entries.size <= SMALL else SECTIONS
        return [slice(part.start * block, min(depth, part.stop * block)) for part in slabs(blocks, count)]

    def _share(self, piece: Callable[[tuple[int, slice]], None], sections: int, rows: slice, fewest: int) -> None:
        """Every section of every part of the rows, counted from the first; the fewest rows that a part should have."""
        many = 1 if self._entries.size <= SMALL or self._threads.count == 1 else self._threads.count * PIECES_PER_THREAD
        count = rows.stop - rows.start
        self._threads.each(
            piece, product(range(sections), slabs(count, min(-(-many // sections), -(-count // fewest))))
        )

    def _each_slab(self, work: Callable[[_Slab], None]) -> None:
        before, inner, after = self._entries.shape
        if self._file is None:
            everything = slice(0, before), slice(0, inner), slice(0, after)
            work(_Slab(everything, self._entries.ctypes.data, inner * after, after))
            return
        for place, buffer in self._file.slabs():
            _, rows, columns = buffer.shape
            work(_Slab(place, buffer.ctypes.data, rows * columns, columns))


def _transposed(matrix: Array) -> Array:
    return np.ascontiguousarray(matrix.T)


def _shifted(part: slice, by: slice) -> slice:
    return slice(part.start + by.start, part.stop + by.start)


def _common(one: slice, other: slice) -> slice | None:
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return slice(start, stop) if start < stop else None


def _total(sums: Array) -> Array:
    """The sum in the order of the sections."""
    total: Array = sums[0]
    for section in sums[1:]:
        total += section
    return total

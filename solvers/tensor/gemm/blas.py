"""The two large products by BLAS, cut by the shape alone, so that no number of threads shows in the bits."""

import math
from typing import Literal

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blocks import NARROW, Blocks
from sparse_ncp.solvers.tensor.gemm.float64_partials import Float64Partials, total
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# A product over fewer entries is faster in one piece than waking the threads.
SMALL = 1 << 15
# Entries of one piece of a large product, and the largest number of pieces: BLAS is slow for smaller pieces.
PIECE, MOST_PIECES = 1 << 20, 16


def piece_count(size: int) -> int:
    """Return the number of pieces for a product over `size` entries: a power of two, so that threads share evenly."""
    return 1 if size <= SMALL else min(MOST_PIECES, 1 << max(1, (size // PIECE).bit_length() - 1))


class Matricization:
    """The two products, split by shape alone and summed in a fixed order."""

    def __init__(self, blocks: Blocks, threads: Threads) -> None:
        self._blocks = blocks
        self._threads = threads
        self._pieces = piece_count(math.prod(blocks.shape))

    def contract_inner(self, weights: Array) -> Array:
        """Sum over the inner modes: R × inner weights give R × (before · after)."""
        before, inner, after = self._blocks.shape
        if after >= min(inner, NARROW * self._pieces):
            return self._side_by_side(weights, 2)
        if before * after > max(inner // self._pieces, NARROW**2):  # a partial sum per piece would take too much memory
            return self._side_by_side(weights, 0)

        def term(part: slice) -> Array:
            return self._blocks.times(weights[:, part], (slice(None), part, slice(None)))

        return _components_first(total(self._threads.each(term, split_evenly(inner, self._pieces))))

    def contract_outer(self, weights: Array) -> Array:
        """Sum over the outer modes: R × (before · after) weights give R × inner."""
        before, inner, after = self._blocks.shape
        weights = weights.reshape(-1, before, after)
        if inner >= min(after, NARROW * self._pieces):
            kept = np.empty((len(weights), inner), self._blocks.dtype)

            def piece(part: slice) -> None:
                self._blocks.times_transposed(weights[:, 0], 0, part, slice(None), kept[:, part])
                for block in range(1, before):
                    kept[:, part] += self._blocks.times_transposed(weights[:, block], block, part, slice(None))

            self._threads.each(piece, split_evenly(inner, self._pieces))
            return kept

        def term(part: slice) -> Array:
            return total(
                [
                    self._blocks.times_transposed(weights[:, block, part], block, slice(None), part)
                    for block in range(before)
                ]
            )

        return total(self._threads.each(term, split_evenly(after, self._pieces)))

    def _side_by_side(self, weights: Array, axis: Literal[0, 2]) -> Array:
        """Contract the inner modes, with the outer ones split before (axis 0) or after (axis 2) them."""
        before, _, after = self._blocks.shape
        kept = np.empty((before, len(weights), after), self._blocks.dtype)

        def piece(part: slice) -> None:
            before_part, after_part = (part, slice(None)) if axis == 0 else (slice(None), part)
            region = (before_part, slice(None), after_part)
            self._blocks.times(weights, region, kept[region])

        self._threads.each(piece, split_evenly(kept.shape[axis], self._pieces))
        return _components_first(kept)


class BlasGemm(Float64Partials):
    """The products by BLAS, for processors on which our kernel has no advantage."""

    unit = 1

    def __init__(self, blocks: Blocks, threads: Threads) -> None:
        super().__init__(blocks.shape, blocks.dtype, threads)
        self._matrix = Matricization(blocks, threads)

    def contract_inner(self, weights: Array) -> Array:
        return _transposed(self._matrix.contract_inner(_transposed(weights)))

    def contract_outer(self, weights: Array) -> Array:
        return _transposed(self._matrix.contract_outer(_transposed(weights)))


def _components_first(kept: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(kept, 1, 0)).reshape(kept.shape[1], -1)


def _transposed(matrix: Array) -> Array:
    return np.ascontiguousarray(matrix.T)

"""The two large products by BLAS, cut by the shape alone, so that no number of threads shows in the bits."""

import math

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


class BlasGemm(Float64Partials):
    """The products by BLAS, for processors on which our kernel has no advantage.

    They are split by shape alone and summed in a fixed order.
    """

    unit = 1

    def __init__(self, blocks: Blocks, threads: Threads) -> None:
        super().__init__(blocks.shape, blocks.dtype, threads)
        self._blocks = blocks
        self._pieces = piece_count(math.prod(blocks.shape))

    def contract_inner(self, weights: Array) -> Array:
        before, inner, after = self._shape
        weights = np.ascontiguousarray(weights.T)  # R × inner
        is_wide = after >= min(inner, NARROW * self._pieces)
        if is_wide or before * after > max(inner // self._pieces, NARROW**2):  # partial sums would take too much memory
            kept = np.empty((before, len(weights), after), self.dtype)

            def piece(part: slice) -> None:
                region = (slice(None), slice(None), part) if is_wide else (part, slice(None), slice(None))
                self._blocks.times(weights, region, kept[region])

            self._threads.each(piece, split_evenly(after if is_wide else before, self._pieces))
        else:

            def term(part: slice) -> Array:
                return self._blocks.times(weights[:, part], (slice(None), part, slice(None)))

            kept = total(self._threads.each(term, split_evenly(inner, self._pieces)))
        return np.ascontiguousarray(np.moveaxis(kept, 1, 2)).reshape(before * after, -1)

    def contract_outer(self, weights: Array) -> Array:
        before, inner, after = self._shape
        weights = np.ascontiguousarray(weights.T).reshape(-1, before, after)
        if inner >= min(after, NARROW * self._pieces):
            kept = np.empty((len(weights), inner), self.dtype)

            def piece(part: slice) -> None:
                self._blocks.times_transposed(weights[:, 0], 0, part, slice(None), kept[:, part])
                for block in range(1, before):
                    kept[:, part] += self._blocks.times_transposed(weights[:, block], block, part, slice(None))

            self._threads.each(piece, split_evenly(inner, self._pieces))
        else:

            def term(part: slice) -> Array:
                times = self._blocks.times_transposed
                return total([times(weights[:, block, part], block, slice(None), part) for block in range(before)])

            kept = total(self._threads.each(term, split_evenly(after, self._pieces)))
        return np.ascontiguousarray(kept.T)

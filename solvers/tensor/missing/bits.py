"""Products with the indicator of observed entries, stored in one bit per entry, by tables of sums."""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.gemm.blas import SMALL
from sparse_ncp.solvers.tensor.gemm.blocks import Split, split_by, whole_region
from sparse_ncp.solvers.tensor.gemm.float64_partials import Float64Partials, total
from sparse_ncp.solvers.tensor.gemm.out_of_core import FileEntries, stream_tiles
from sparse_ncp.solvers.tensor.gemm.skinny import FEW_ROWS, SECTIONS
from sparse_ncp.solvers.tensor.missing.masked import Mask, MaskedBlocks
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# Rows and columns packed at a time: a multiple of 8.
PACKED = 256
# Bits covered by a table of sums, and number of rows of bits for which it pays off to compute it again.
WORD, ROWS = 32, 128


class BitGemm(Float64Partials):
    """Products with the tensor that is 1 where an entry is observed and 0 where it is missing.

    The bits are stored twice, along the inner modes and along the modes after them, because each product sums over one
    of these. Together they take 1/32 of the memory of a tensor in double precision.
    """

    unit = 1

    def __init__(self, mask: Mask, split: Split, threads: Threads) -> None:
        from sparse_ncp.solvers.tensor.missing.kernels import sum_where  # numba: see methods/hals.py

        ones = MaskedBlocks(mask, split, counts=True)
        super().__init__(ones.shape, np.dtype(np.float64), threads)
        self._sum_where = sum_where
        before, inner, after = ones.shape
        inner_bits = np.zeros((before, after, 4 * -(-inner // WORD)), np.uint8)
        after_bits = np.zeros((before, inner, 4 * -(-after // WORD)), np.uint8)
        read = stream_tiles(ones.entries, FileEntries.of(ones.entries), whole_region(ones.entries.shape))
        for tile, (blocks, rows, columns) in read:  # also split at multiples of 8
            for b, i, a in product(split_by(blocks, 1), split_by(rows, PACKED), split_by(columns, PACKED)):
                observed = ones.read((b, i, a), tile)[0] > 0
                bits = (
                    np.packbits(observed, axis=0, bitorder="little").T,
                    np.packbits(observed, axis=1, bitorder="little"),
                )
                inner_bits[b.start, a, i.start // 8 : i.start // 8 + bits[0].shape[1]] = bits[0]
                after_bits[b.start, i, a.start // 8 : a.start // 8 + bits[1].shape[1]] = bits[1]
        self._inner_bits, self._after_bits = (
            packed.view("<u4").astype(np.uint32, copy=False) for packed in (inner_bits, after_bits)
        )
        self._summed(np.zeros((1, 1, 1), np.uint32), np.zeros((1, 1, 1)))  # compile now, so that no sweep is delayed

    def contract_inner(self, weights: Array) -> Array:
        before, after, length = self._inner_bits.shape
        return self._summed(self._inner_bits.reshape(1, before * after, length), weights[None])

    def contract_outer(self, weights: Array) -> Array:
        return self._summed(self._after_bits, weights.reshape(len(self._after_bits), -1, weights.shape[1]))

    def _summed(self, bits: NDArray[np.uint32], weights: Array) -> Array:
        """Return Σ weights[b, s] over all b, and all s whose bit is set in row o of block b, for every o."""
        _, rows, length = bits.shape
        weights = np.require(weights, np.float64, ["C", "W"])  # otherwise numba would compile the kernel again
        few = rows < FEW_ROWS and WORD * bits.size > SMALL
        sections = list(split_evenly(length, SECTIONS if few else 1))
        sums = np.zeros((len(sections), rows, weights.shape[2]))

        def piece(item: tuple[int, slice]) -> None:
            section, part = item
            words = sections[section]
            for own, summed in zip(bits, weights, strict=True):
                self._sum_where(own[part, words], summed[WORD * words.start : WORD * words.stop], sums[section, part])

        pieces = 1 if self._threads.count == 1 else min(2 * self._threads.count, -(-rows // ROWS))
        self._threads.each(piece, product(range(len(sections)), list(split_evenly(rows, pieces))))
        return total(sums)

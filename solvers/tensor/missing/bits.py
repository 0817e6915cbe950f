"""Observed or not, in one bit per entry: products with ones and zeros take sums from tables instead of multiplying."""

from itertools import product

import numpy as np
from numpy.typing import NDArray

from solvers.tensor.contraction import Place, Split
from solvers.tensor.missing.masked import Mask, MaskedBlocks
from solvers.tensor.products import Array

# Rows and columns that are packed at a time: a multiple of 8.
PACKED = 256


class BitBlocks(MaskedBlocks):
    """The products of `MaskedBlocks` with every observed entry counted as 1, from its bits.

    These are kept twice, along the inner modes and along those after them, as either product sums over its own. Both
    together take a thirty-second of a tensor in double precision.
    """

    def __init__(self, mask: Mask, split: Split) -> None:
        from solvers.tensor.missing.kernels import sum_where  # numba: see methods/hals.py

        super().__init__(mask, split, counts=True)
        self._sum_where = sum_where
        before, inner, after = self.shape
        self._inner_bits = np.empty((before, after, -(-inner // 8)), np.uint8)
        self._after_bits = np.empty((before, inner, -(-after // 8)), np.uint8)
        for block, i, a in product(range(before), range(0, inner, PACKED), range(0, after, PACKED)):
            seen = self.tile((slice(block, block + 1), slice(i, i + PACKED), slice(a, a + PACKED)))[0] > 0
            bits = np.packbits(seen, axis=0, bitorder="little").T, np.packbits(seen, axis=1, bitorder="little")
            self._inner_bits[block, a : a + PACKED, i // 8 : i // 8 + bits[0].shape[1]] = bits[0]
            self._after_bits[block, i : i + PACKED, a // 8 : a // 8 + bits[1].shape[1]] = bits[1]
        for weights, out in product((np.ones((2, 1)), np.ones((2, 2))[:, :1]), repeat=2):  # compiles, see MaskedBlocks
            self._sum_where(np.zeros((1, 1), np.uint8), 0, weights, out)

    def times(self, weights: Array, place: Place, out: Array | None = None) -> Array:
        before, inner, after = self._resolved(place)
        if out is None:
            out = np.empty((before.stop - before.start, len(weights), after.stop - after.start), self.dtype)
        for block, part in zip(range(before.start, before.stop), out, strict=True):
            self._sum_bits(self._inner_bits[block, after], inner, weights, part)
        return out

    def times_transposed(
        self, weights: Array, block: int, inner: slice, after: slice, out: Array | None = None
    ) -> Array:
        _, inner, after = self._resolved((slice(None), inner, after))
        if out is None:
            out = np.empty((len(weights), inner.stop - inner.start), self.dtype)
        self._sum_bits(self._after_bits[block, inner], after, weights, out)
        return out

    def _sum_bits(self, bits: NDArray[np.uint8], summed: slice, weights: Array, out: Array) -> None:
        """Over the bits of a slice of every row; it need not begin with a byte."""
        first, skipped = divmod(summed.start, 8)
        self._sum_where(bits[:, first : -(-summed.stop // 8)], skipped, weights, out)

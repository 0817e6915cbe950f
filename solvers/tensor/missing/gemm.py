"""The two large products over the observed entries."""

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blas import BlasGemm
from sparse_ncp.solvers.tensor.gemm.blocks import BlockRegion, Blocks, Tile, origin
from sparse_ncp.solvers.tensor.gemm.protocol import Gemm
from sparse_ncp.solvers.tensor.gemm.skinny import SkinnyGemm, gemm_for
from sparse_ncp.solvers.tensor.missing.masked import MaskedBlocks
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.threads import Threads


def gemm_over_observed(blocks: Blocks, threads: Threads) -> Gemm:
    """Choose the products for a tensor with or without missing entries: our own kernel, or BLAS without vectors."""
    from sparse_ncp.solvers.tensor.gemm.codegen import VECTOR_BYTES  # numba: see methods/hals.py

    if not isinstance(blocks, MaskedBlocks):
        return gemm_for(blocks, threads)
    return BlasGemm(blocks, threads) if VECTOR_BYTES is None else ObservedGemm(blocks, threads)


class ObservedGemm(SkinnyGemm):
    """Products over the observed entries: runs of entries are copied on the fly, with zeros for missing ones.

    The sums have the same bits as those of the tensor with zeros in place of the missing entries.
    """

    def __init__(self, blocks: MaskedBlocks, threads: Threads) -> None:
        super().__init__(blocks, threads)
        self._observed, self._places = blocks.observed, blocks.places
        nothing = (slice(0, 0),) * 3
        weights = np.zeros((0, self.unit), self.dtype)
        for entries in [self._entries] + (
            [] if self._file is None else [np.empty((0, 0, 0), self.dtype)]
        ):  # compile now
            self._sum_across(Tile(nothing, entries), nothing, weights, 0, weights, 0)
            self._sum_along(Tile(nothing, entries), nothing, weights, 0, weights)

    def _sum_across(self, tile: Tile, region: BlockRegion, weights: Array, first: int, out: Array, row: int) -> None:
        b, i, a = region
        self._kernel.sum_observed_across(
            tile.entries, origin(tile, region), (b.start, i.start, a.start),
            a.stop - a.start, i.stop - i.start, b.stop - b.start, self._observed, self._places,
            weights, first, self.unit, out, row, self._shape[2],
        )  # fmt: skip

    def _sum_along(self, tile: Tile, region: BlockRegion, weights: Array, row: int, out: Array) -> None:
        b, i, a = region
        self._kernel.sum_observed_along(
            tile.entries, origin(tile, region), (b.start, i.start, a.start),
            i.stop - i.start, a.stop - a.start, b.stop - b.start, self._observed, self._places,
            weights, row, self._shape[2], self._kernel.block_along(weights.shape[1]), self.unit, out,
        )  # fmt: skip

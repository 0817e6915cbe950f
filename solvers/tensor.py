"""The tensor as the solvers see it: it answers every mode's MTTKRP, and touches its entries twice per sweep.

A dimension tree: contract one half of the modes away, derive every MTTKRP of the other half from that partial result,
then the reverse. Each MTTKRP is formed when it is asked for, so it uses the freshest factors: exactly the
Gauss-Seidel order of the paper. No unfolding is ever copied; the entries may be a memory map.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np

from solvers.arrays import Array, Float64, khatri_rao
from solvers.parallel import Threads, slabs

Modes: TypeAlias = tuple[int, ...]

# A product over fewer entries than this runs faster in one piece than the threads take to wake.
SMALL = 1 << 15
# Pieces of a large product: enough to keep any lab machine's cores busy, few enough that each is a good BLAS call.
PIECES = 16
# A product with fewer columns is cut along its rows instead, and the terms summed: thin pieces are poor BLAS calls.
NARROW = 64 * PIECES
# Entries of one tile of the streamed residual: its temporaries stay in the second-level cache.
TILE = 1 << 16


def split_point(lengths: Sequence[int]) -> int:
    """Where to halve the modes: both partial results together should be as small as possible."""
    return min(
        range(1, len(lengths)),
        key=lambda cut: math.prod(lengths[:cut]) + math.prod(lengths[cut:]),
    )


@dataclass(frozen=True)
class Unfolded:
    """XXᵀV of an unfolding X, and the squared norms of the positive and the negative part of each column of XᵀV."""

    product: Float64
    positive: Float64
    negative: Float64

    def plus(self, tile: Float64, right: Float64) -> "Unfolded":
        return Unfolded(
            self.product + tile @ right,
            self.positive + np.square(np.maximum(right, 0)).sum(axis=0),
            self.negative + np.square(np.minimum(right, 0)).sum(axis=0),
        )


class Tensor:
    """A nonnegative tensor in memory order: `entries` is C-contiguous, or Fortran-contiguous and read reversed."""

    def __init__(self, entries: Array, norm: float, threads: Threads) -> None:
        reverse = not entries.flags.c_contiguous
        stored = entries.T if reverse else entries
        modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
        cut = split_point(stored.shape)
        self.shape: tuple[int, ...] = entries.shape
        self.dtype = entries.dtype
        self.norm = norm
        self._threads = threads
        self._stored, self._modes = stored, modes
        self._top, self._bottom = modes[:cut], modes[cut:]
        self._matrix = stored.reshape(math.prod(stored.shape[:cut]), -1)  # top × bottom, a view

    def head(self, factors: Sequence[Array]) -> Array:
        """The first contraction of a sweep. It depends on the second half's factors only."""
        first, second = self._halves()
        return self._contract(second, factors, keep=first)

    def sweep(self, factors: Sequence[Array], head: Array) -> Iterator[tuple[int, Float64]]:
        """Yield (mode, its I_n × R MTTKRP) for every mode in turn; the caller replaces `factors[mode]` in between."""
        first, second = self._halves()
        yield from self._walk(head, first, factors)
        yield from self._walk(self._contract(first, factors, keep=second), second, factors)

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """‖X − ⟦A¹…Aᴺ⟧‖² entry by entry, in tiles: one more product, but no cancellation."""
        left = khatri_rao([factors[mode] for mode in self._top])
        right = khatri_rao([factors[mode] for mode in self._bottom])
        rows, columns = self._matrix.shape
        wide = min(columns, TILE)
        tiles = product(slabs(rows, -(-rows * wide // TILE)), slabs(columns, -(-columns // wide)))

        def squared(tile: tuple[slice, slice]) -> float:
            row, column = tile
            difference = self._matrix[tile] - left[:, row].T @ right[:, column]
            flat = difference.ravel().astype(np.float64, copy=False)
            return float(flat @ flat)

        return math.fsum(self._threads.each(squared, tiles))

    def unfolded(self, mode: int, V: Float64) -> "Unfolded":
        """The mode's unfolding times its transpose times V (I_n × k), and the signs of the transpose times V."""
        axis = self._modes.index(mode)
        before = math.prod(self._stored.shape[:axis])
        view = self._stored.reshape(before, self.shape[mode], -1)
        after = view.shape[2]
        columns = max(1, TILE // self.shape[mode])  # of the unfolding, in one tile
        wide = min(after, columns)
        tiles = list(product(slabs(before, -(-before * wide // columns)), slabs(after, -(-after // wide))))

        def partial(group: slice) -> Unfolded:
            result = Unfolded(np.zeros(V.shape), np.zeros(V.shape[1]), np.zeros(V.shape[1]))
            for rows, depth in tiles[group]:
                tile = np.moveaxis(view[rows, :, depth], 1, 0).reshape(len(V), -1).astype(np.float64)
                result = result.plus(tile, tile.T @ V)
            return result

        parts = self._threads.each(partial, slabs(len(tiles), PIECES))
        return Unfolded(
            product=np.sum([part.product for part in parts], axis=0),
            positive=np.sum([part.positive for part in parts], axis=0),
            negative=np.sum([part.negative for part in parts], axis=0),
        )

    def _halves(self) -> tuple[Modes, Modes]:
        """The half that holds the first mode comes first."""
        return (self._top, self._bottom) if 0 in self._top else (self._bottom, self._top)

    def _contract(self, away: Modes, factors: Sequence[Array], keep: Modes) -> Array:
        """Contract the modes `away`; the result is R × (lengths of the modes kept)."""
        weights = khatri_rao([factors[mode] for mode in away])
        matrix = self._matrix if away == self._top else self._matrix.T
        partial = self._product(weights, matrix)
        return partial.reshape(len(weights), *(self.shape[mode] for mode in keep))

    def _product(self, weights: Array, matrix: Array) -> Array:
        """weights @ matrix, cut along the longer side of the matrix."""
        rows, columns = matrix.shape
        if matrix.size <= SMALL:
            return weights @ matrix
        if columns >= rows or columns >= NARROW:
            product = np.empty((len(weights), columns), self.dtype)

            def piece(kept: slice) -> None:
                np.matmul(weights, matrix[:, kept], out=product[:, kept])

            self._threads.each(piece, slabs(columns, PIECES))
            return product

        def term(summed: slice) -> Array:
            return weights[:, summed] @ matrix[summed]

        terms = self._threads.each(term, slabs(rows, PIECES))
        # In the order of the pieces, whichever thread was first.
        total: Array = np.sum(terms, axis=0, dtype=self.dtype)
        return total

    def _walk(self, partial: Array, modes: Modes, factors: Sequence[Array]) -> Iterator[tuple[int, Float64]]:
        """The MTTKRPs of `modes`, in the order of the modes, from a partial result over just these modes."""
        if len(modes) == 1:
            yield modes[0], np.ascontiguousarray(partial.T, dtype=np.float64)
            return
        cut = split_point([self.shape[mode] for mode in modes])
        halves = modes[:cut], modes[cut:]
        for keep, away in sorted((halves, halves[::-1])):
            weights = khatri_rao([factors[mode] for mode in away])
            rest = self._contract_components(partial, weights, away_first=away == halves[0])
            shape = (len(rest), *(self.shape[mode] for mode in keep))
            yield from self._walk(rest.reshape(shape), keep, factors)

    def _contract_components(self, partial: Array, weights: Array, away_first: bool) -> Array:
        """The same contraction inside a partial result: one matrix-vector product per component."""
        rank, away = weights.shape
        shape = (rank, away, -1) if away_first else (rank, -1, away)
        matrices = partial.reshape(shape)
        kept = matrices.shape[2 if away_first else 1]
        rest = np.empty((rank, kept), self.dtype)

        def piece(components: slice) -> None:
            vectors, matrix = weights[components], matrices[components]
            if away_first:
                np.matmul(vectors[:, None, :], matrix, out=rest[components, None, :])
            else:
                np.matmul(matrix, vectors[:, :, None], out=rest[components, :, None])

        pieces = rank if partial.size > SMALL else 1
        self._threads.each(piece, slabs(rank, pieces))
        return rest

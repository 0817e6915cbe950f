"""The tensor as the solvers see it: it answers every mode's MTTKRP, and touches its entries twice per sweep.

A dimension tree: contract one half of the modes away, derive every MTTKRP of the other half from that partial result,
then the reverse. Each MTTKRP is formed when it is asked for, so it uses the freshest factors: exactly the
Gauss-Seidel order of the paper. No unfolding is ever copied; the entries may be a memory map.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, product
from typing import Any, Protocol, TypeAlias

import numpy as np

from solvers.arrays import Array, Float64, khatri_rao
from solvers.halves import Halves, best_split, split_point
from solvers.parallel import Threads, slabs

Modes: TypeAlias = tuple[int, ...]

# Entries of a partial result that one thread contracts sooner than it wakes another.
WALKED = 1 << 18
# Entries of one tile of the streamed residual: its temporaries stay in the second-level cache.
TILE = 1 << 16
# Groups of tiles, each summed by one thread at a time.
GROUPS = 16


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


@dataclass(frozen=True)
class Partial:
    """The tensor contracted with the factors `used`, down to R × (lengths of `modes`)."""

    modes: Modes
    array: Array
    used: Sequence[Array]

    def is_of(self, modes: Modes, used: Sequence[Array]) -> bool:
        """Whether it is the contraction with these very arrays; factors are replaced, never changed."""
        return self.modes == modes and all(ours is theirs for ours, theirs in zip(self.used, used, strict=True))


class TensorLike(Protocol):
    """What the loop and the judge ask of a tensor."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    norm: float

    def head(self, factors: Sequence[Array]) -> Partial: ...
    def sweep(self, factors: Sequence[Array], head: Partial) -> Iterator[tuple[int, Float64]]: ...
    def squared_residual(self, factors: Sequence[Array]) -> float: ...


class Tensor:
    """A nonnegative tensor in memory order: `entries` is C-contiguous, or Fortran-contiguous and read reversed."""

    def __init__(self, entries: Array, norm: float, threads: Threads) -> None:
        reverse = not entries.flags.c_contiguous
        stored = entries.T if reverse else entries
        modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
        split = best_split(stored.shape)
        self.shape: tuple[int, ...] = entries.shape
        self.dtype: np.dtype[Any] = entries.dtype
        self.norm = norm
        self._threads = threads
        self.stored, self.modes = stored, modes  # the entries in C order, and the modes in that order
        self._halves = Halves(stored, split, threads)
        self._inner = modes[slice(*split)]
        self._outer = modes[: split.start] + modes[split.stop :]
        self._latest: Partial | None = None

    def head(self, factors: Sequence[Array]) -> Partial:
        """The first contraction of a sweep. It does not depend on the modes that it keeps."""
        first = self._inner if 0 in self._inner else self._outer
        return self._contract(first, factors)

    def sweep(self, factors: Sequence[Array], head: Partial) -> Iterator[tuple[int, Float64]]:
        """Yield (mode, its I_n × R MTTKRP) for every mode in turn; the caller replaces `factors[mode]` in between."""
        partial = head
        for _, run in groupby(range(len(self.shape)), lambda mode: mode in self._inner):
            wanted = tuple(run)
            if wanted[0] not in partial.modes:
                partial = self._contract(self._inner if wanted[0] in self._inner else self._outer, factors)
            yield from self._walk(partial.array, partial.modes, factors, wanted)
        if 0 in partial.modes:  # the next sweep begins with the very same contraction, unless its factors change
            self._latest = partial

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """‖X − ⟦A¹…Aᴺ⟧‖² entry by entry, in tiles: one more product, but no cancellation."""
        cut = split_point(self.stored.shape)
        left, right = (khatri_rao([factors[mode] for mode in half]) for half in (self.modes[:cut], self.modes[cut:]))
        rows, columns = left.shape[1], right.shape[1]
        matrix = self.stored.reshape(rows, columns)
        wide = min(columns, TILE)
        tiles = product(slabs(rows, -(-rows * wide // TILE)), slabs(columns, -(-columns // wide)))

        def squared(tile: tuple[slice, slice]) -> float:
            row, column = tile
            difference = matrix[tile] - left[:, row].T @ right[:, column]
            flat = difference.ravel().astype(np.float64, copy=False)
            return float(flat @ flat)

        return math.fsum(self._threads.each(squared, tiles))

    def unfolded(self, mode: int, V: Float64) -> "Unfolded":
        """The mode's unfolding times its transpose times V (I_n × k), and the signs of the transpose times V."""
        axis = self.modes.index(mode)
        before = math.prod(self.stored.shape[:axis])
        view = self.stored.reshape(before, self.shape[mode], -1)
        after = view.shape[2]
        columns = max(1, TILE // self.shape[mode])  # of the unfolding, in one tile
        wide = min(after, columns)
        tiles = list(product(slabs(before, -(-before * wide // columns)), slabs(after, -(-after // wide))))

        def partial(group: slice) -> Unfolded:
            flat = (np.moveaxis(view[rows, :, depth], 1, 0).reshape(len(V), -1) for rows, depth in tiles[group])
            return reduce(Unfolded.plus, (Unfolded.of(tile.astype(np.float64), V) for tile in flat))

        parts = self._threads.each(partial, slabs(len(tiles), GROUPS))
        return reduce(Unfolded.plus, parts)  # in the order of the parts, whichever thread was first

    def _contract(self, keep: Modes, factors: Sequence[Array]) -> Partial:
        """Contract all modes but `keep`. The last result of the sweep before still holds if its factors do."""
        inner = keep == self._inner
        used = [factors[mode] for mode in (self._outer if inner else self._inner)]
        if self._latest is not None and self._latest.is_of(keep, used):
            return self._latest
        weights = khatri_rao(used)
        array = self._halves.without_outer(weights) if inner else self._halves.without_inner(weights)
        return Partial(keep, array.reshape(len(weights), *(self.shape[mode] for mode in keep)), used)

    def _walk(
        self, partial: Array, modes: Modes, factors: Sequence[Array], wanted: Modes
    ) -> Iterator[tuple[int, Float64]]:
        """The MTTKRPs of those `modes` that are wanted, in their order, from a partial result over just `modes`."""
        if len(modes) == 1:
            yield modes[0], np.ascontiguousarray(partial.T, dtype=np.float64)
            return
        cut = split_point([self.shape[mode] for mode in modes])
        halves = modes[:cut], modes[cut:]
        for keep, away in sorted((halves, halves[::-1])):
            if not set(keep).isdisjoint(wanted):
                weights = khatri_rao([factors[mode] for mode in away])
                rest = self._contract_components(partial, weights, away_first=away == halves[0])
                shape = (len(rest), *(self.shape[mode] for mode in keep))
                yield from self._walk(rest.reshape(shape), keep, factors, wanted)

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

        self._threads.each(piece, slabs(rank, partial.size // WALKED))
        return rest

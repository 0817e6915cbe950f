"""The tensor cut into two halves of its modes, and the two large products: contract one half away, keep the other.

In memory order the inner half is one run of modes, with the outer half before and after it:
X is before × inner × after, a view, and `before` is 1 wherever the inner modes come first.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal, NamedTuple

import numpy as np

from solvers.arrays import Array
from solvers.parallel import Threads, slabs

# A product over fewer entries than this runs faster in one piece than the threads take to wake.
SMALL = 1 << 15
# Entries of one piece of a large product: shorter pieces are poor BLAS calls. At most 16 pieces, for the same reason.
PIECE, MOST_PIECES = 1 << 20, 16
# A piece with fewer columns is a poor BLAS call too: the product is then cut along the summed side instead.
NARROW = 64


class Split(NamedTuple):
    """Modes `start` to `stop`, in memory order, are the inner half."""

    start: int
    stop: int


def split_point(lengths: Sequence[int]) -> int:
    """Where to halve the modes: both partial results together should be as small as possible."""
    return min(
        range(1, len(lengths)),
        key=lambda cut: math.prod(lengths[:cut]) + math.prod(lengths[cut:]),
    )


def best_split(lengths: Sequence[int]) -> Split:
    """The first modes against the rest, unless one long run of modes in the middle makes both partial results large.

    A run in the middle costs a third pass over the tensor whenever the last partial result cannot be carried into the
    next sweep, so it must save a lot: the other split's results come near the tensor in size (9 × 4260 × 42).
    """
    first = Split(0, split_point(lengths))
    middles = [Split(a, b) for a, b in combinations(range(1, len(lengths)), 2) if math.prod(lengths[b:]) >= NARROW // 2]
    middle = min(middles, key=lambda split: _kept(lengths, split), default=first)
    heavy = 100 * _kept(lengths, first) > math.prod(lengths)
    return middle if heavy and 4 * _kept(lengths, middle) < _kept(lengths, first) else first


def piece_count(size: int) -> int:
    """Of a product over so many entries: a power of two, so that two, four or eight threads share evenly."""
    return 1 if size <= SMALL else min(MOST_PIECES, 1 << max(1, (size // PIECE).bit_length() - 1))


class Halves:
    """The entries as before × inner × after. Every product is cut by its shape alone, summed in a fixed order."""

    def __init__(self, stored: Array, split: Split, threads: Threads) -> None:
        lengths = stored.shape
        sizes = (math.prod(part) for part in (lengths[: split.start], lengths[slice(*split)], lengths[split.stop :]))
        self._blocks = stored.reshape(tuple(sizes))
        self._threads = threads
        self._pieces = piece_count(stored.size)

    def without_inner(self, weights: Array) -> Array:
        """Σ over the inner modes; weights is R × inner, the result R × (before · after)."""
        before, inner, after = self._blocks.shape
        if after >= min(inner, NARROW * self._pieces):
            return self._side_by_side(weights, 2)
        if before * after > max(inner // self._pieces, NARROW**2):  # one term per piece would take much memory
            return self._side_by_side(weights, 0)

        def term(part: slice) -> Array:
            summed: Array = weights[:, part] @ self._blocks[:, part]
            return summed

        return _components_first(_total(self._threads.each(term, slabs(inner, self._pieces))))

    def without_outer(self, weights: Array) -> Array:
        """Σ over the outer modes; weights is R × (before · after), the result R × inner."""
        before, inner, after = self._blocks.shape
        weights = weights.reshape(-1, before, after)
        if inner >= min(after, NARROW * self._pieces):
            kept = np.empty((len(weights), inner), self._blocks.dtype)

            def piece(part: slice) -> None:
                np.matmul(weights[:, 0], self._blocks[0, part].T, out=kept[:, part])
                for block in range(1, before):
                    kept[:, part] += weights[:, block] @ self._blocks[block, part].T

            self._threads.each(piece, slabs(inner, self._pieces))
            return kept

        def term(part: slice) -> Array:
            return _total(weights[:, block, part] @ self._blocks[block, :, part].T for block in range(before))

        return _total(self._threads.each(term, slabs(after, self._pieces)))

    def _side_by_side(self, weights: Array, axis: Literal[0, 2]) -> Array:
        """The inner modes contracted, with the outer ones cut before (axis 0) or after them (axis 2)."""
        before, _, after = self._blocks.shape
        kept = np.empty((before, len(weights), after), self._blocks.dtype)

        def piece(part: slice) -> None:
            place = (part,) if axis == 0 else (slice(None), slice(None), part)
            np.matmul(weights, self._blocks[place], out=kept[place])

        self._threads.each(piece, slabs(kept.shape[axis], self._pieces))
        return _components_first(kept)


def _kept(lengths: Sequence[int], split: Split) -> int:
    """Entries of both partial results, per component."""
    inner = math.prod(lengths[slice(*split)])
    return inner + math.prod(lengths) // inner


def _components_first(kept: Array) -> Array:
    return np.ascontiguousarray(np.moveaxis(kept, 1, 0)).reshape(kept.shape[1], -1)


def _total(terms: Iterable[Array]) -> Array:
    """In the order of the terms, whichever thread was first."""
    first, *rest = terms
    for term in rest:
        first += term
    return first

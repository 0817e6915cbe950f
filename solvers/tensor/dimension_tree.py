"""Dimension tree: the MTTKRP of every mode from two passes over the entries.

Contract one half of the modes, derive each MTTKRP of the other half from that partial result, then swap the halves.
Each MTTKRP is computed when it is requested and uses the latest factors, in the Gauss-Seidel order of the paper.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blocks import Split, split_point
from sparse_ncp.solvers.tensor.gemm.protocol import Gemm
from sparse_ncp.solvers.tensor.products import Array, Float64, padded
from sparse_ncp.solvers.tensor.protocol import Modes, Partial


class DimensionTree:
    """Dimension tree over entries stored in the order of `modes`; `shape` lists the lengths of modes 0, 1, ...."""

    def __init__(self, shape: tuple[int, ...], modes: Modes, split: Split, products: Gemm) -> None:
        self.shape, self.modes = shape, modes
        self.dtype = products.dtype
        self._products = products
        self._inner = modes[slice(*split)]
        self._outer = modes[: split.start] + modes[split.stop :]
        before = split.start  # number of outer modes before the inner ones
        self._cut = before if 0 < before < len(self._outer) else None
        self._latest: Partial | None = None

    @property
    def cycle(self) -> Modes:
        """The modes in cyclic order, starting where two contractions per sweep suffice.

        If the inner half is in the middle, a sweep that starts outside it would need the outer contraction twice.
        """
        order = tuple(range(len(self.shape)))
        first = min(self._inner)
        return order if self._cut is None else order[first:] + order[:first]

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial:
        """Return the first contraction of a sweep; it does not use the factors of the modes that it keeps."""
        return self._contract(self._inner if (modes or (0,))[0] in self._inner else self._outer, factors)

    def sweep(
        self, factors: Sequence[Array], first: Partial, modes: Modes | None = None
    ) -> Iterator[tuple[int, Float64]]:
        """Yield each mode and its I_n × R MTTKRP; the caller replaces `factors[mode]` in between.

        `modes` restricts the sweep to some modes, in ascending order or in the order of `cycle`; the first contraction
        must have been made for them.
        """
        modes = modes or tuple(range(len(self.shape)))
        partial, rank = first, first.used[0].shape[1]
        for _, run in groupby(modes, lambda mode: mode in self._inner):
            wanted = tuple(run)
            if wanted[0] not in partial.modes:
                partial = self._contract(self._inner if wanted[0] in self._inner else self._outer, factors)
            yield from self._walk(partial.array, partial.modes, factors, wanted, rank)
        if modes[0] in partial.modes:  # the next sweep starts with this contraction, unless its factors change
            self._latest = partial

    def _contract(self, keep: Modes, factors: Sequence[Array]) -> Partial:
        """Contract all modes except `keep`, or reuse the last result if its factors are unchanged."""
        inner = keep == self._inner
        used = [factors[mode] for mode in (self._outer if inner else self._inner)]
        if self._latest is not None and self._latest.is_of(keep, used):
            return self._latest
        weights = self._products.row_products([padded(A, self._products.unit) for A in used])
        array = self._products.contract_outer(weights) if inner else self._products.contract_inner(weights)
        return Partial(keep, array.reshape(*(self.shape[mode] for mode in keep), -1), used)

    def _walk(
        self, partial: Array, modes: Modes, factors: Sequence[Array], wanted: Modes, rank: int
    ) -> Iterator[tuple[int, Float64]]:
        """Yield the MTTKRPs of the wanted modes, in their order, from a partial result over `modes`."""
        if len(modes) == 1:
            yield modes[0], np.ascontiguousarray(partial[:, :rank], dtype=np.float64)
            return
        # Outer modes on both sides of the inner ones are split there, so that either side can come first.
        cut = self._cut if modes == self._outer else None
        cut = cut or split_point([self.shape[mode] for mode in modes])
        halves = modes[:cut], modes[cut:]

        def first_wanted(pair: tuple[Modes, Modes]) -> int:
            return min((wanted.index(mode) for mode in pair[0] if mode in wanted), default=len(wanted))

        for keep, away in sorted((halves, halves[::-1]), key=first_wanted):
            if not set(keep).isdisjoint(wanted):
                others = (padded(factors[mode], self._products.unit) for mode in away)
                weights = self._products.row_products([A.astype(partial.dtype, copy=False) for A in others])
                away_first, columns = away == halves[0], partial.shape[-1]
                matrices = partial.reshape((len(weights), -1, columns) if away_first else (-1, *weights.shape))
                rest = self._products.contract_partial(matrices, weights, away_first)
                shape = (*(self.shape[mode] for mode in keep), columns)
                yield from self._walk(rest.reshape(shape), keep, factors, wanted, rank)

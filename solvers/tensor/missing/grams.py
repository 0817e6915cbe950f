"""Gram matrices over the observed entries of a tensor: one for all rows of a mode, or one for each row.

For row i of mode n, let b_e be the product of the rows of the other modes at an observed entry e of its slice. Its
Gram is Gᵢ = Σ b_e b_eᵀ, which is the MTTKRP of the indicator tensor (1 if observed, else 0) with products of pairs of
columns as factors. It is computed by a dimension tree that is swept together with the tree of the tensor. A mode along
which the mask is constant contributes a factor AᵀA, and the tree is over the other modes. Entries that are missing in
addition are in a list, and their products are subtracted.
"""

from collections.abc import Iterator, Sequence
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.dimension_tree import DimensionTree
from sparse_ncp.solvers.tensor.gemm.blocks import Blocks, best_split
from sparse_ncp.solvers.tensor.gemm.protocol import Gemm
from sparse_ncp.solvers.tensor.gemm.skinny import gemm_for
from sparse_ncp.solvers.tensor.missing.bits import BitGemm
from sparse_ncp.solvers.tensor.missing.masked import Mask
from sparse_ncp.solvers.tensor.missing.pattern import Pattern
from sparse_ncp.solvers.tensor.products import Array, Float64, gram, hadamard
from sparse_ncp.solvers.tensor.protocol import Gram, Modes, Partial
from sparse_ncp.solvers.tensor.scan import split_into_regions
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# A difference smaller than this fraction has lost too many digits: the entries of the row are then summed directly.
CANCELLED = 1e-3
# Up to this fraction of the tensor's entries, the indicator is stored as numbers; above it, as bits.
SMALL_SHARE = 1 / 16
# Rows of a mode processed by a thread at a time.
ROWS = 64


class CompleteGrams:
    """Gram matrices of a tensor without missing entries."""

    def __init__(self, order: int) -> None:
        self.constant: Modes = tuple(range(order))
        self.count: int | None = None
        self.counts: Sequence[NDArray[np.int64]] | None = None
        # The factors of the previous sweep (weak references), and their Grams.
        self._latest: Sequence[tuple[ReferenceType[Array], Float64]] = ()

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial | None:
        return None

    def grams(self, factors: Sequence[Array], first: Partial | None, modes: Modes | None = None) -> Iterator[Gram]:
        modes = modes or self.constant
        grams = dict[int, Float64]()
        for mode, A in enumerate(factors):
            if mode != modes[0]:  # its Gram is not needed before its factor is replaced
                # From the previous sweep if it is of this array; factors are never modified in place.
                known = next((G for before, G in self._latest if before() is A), None)
                grams[mode] = gram(A) if known is None else known
        for mode in modes:
            G = hadamard([grams[other] for other in self.constant if other != mode])
            yield Gram(G, G)
            grams[mode] = gram(factors[mode])
            self._latest = tuple((ref(factors[mode]), G) for mode, G in grams.items())

    def cross_grams(self, others: Sequence[Float64], factors: Sequence[Float64]) -> Iterator[tuple[Float64, Float64]]:
        cross, grams = [F.T @ A for F, A in zip(others, factors, strict=True)], [gram(A) for A in factors]
        for mode in self.constant:
            yield hadamard(cross[:mode] + cross[mode + 1 :]), hadamard(grams[:mode] + grams[mode + 1 :])
            cross[mode], grams[mode] = others[mode].T @ factors[mode], gram(factors[mode])

    def overlap(self, factors: Sequence[Array]) -> Float64:
        return hadamard([gram(A) for A in factors])


class RowGrams:
    """Gram matrices of a tensor with missing entries."""

    def __init__(self, mask: Mask, modes: Modes, pattern: Pattern, threads: Threads) -> None:
        from sparse_ncp.solvers.tensor.missing.kernels import multiply_pairs, unpack_pairs  # numba: see methods/hals.py

        self._multiply_pairs, self._unpack_pairs = multiply_pairs, unpack_pairs
        self.constant = pattern.constant
        self.counts: Sequence[NDArray[np.int64]] | None = pattern.counts
        self.count: int | None = int(pattern.counts[0].sum())
        self.pattern = pattern
        self._order = len(modes)
        self._threads = threads
        self._own = tuple(mode for mode in range(self._order) if mode not in pattern.shared)  # modes of the tree
        self._tree: DimensionTree | None = None  # over the indicator, unless nothing is missing but what is listed
        if pattern.missing is None:  # over bits of all modes
            split = best_split(mask.stored.shape)
            shape = tuple(mask.stored.shape[modes.index(mode)] for mode in range(self._order))
            self._tree = DimensionTree(shape, modes, split, BitGemm(mask, split, threads))
        elif pattern.missing.any():
            observed = np.squeeze(~pattern.missing, axis=pattern.shared)
            split = best_split(observed.shape)
            if SMALL_SHARE * mask.stored.size >= observed.size:
                products: Gemm = gemm_for(Blocks(observed.astype(np.float64), split), threads)
            else:
                products = BitGemm(Mask(observed, observed), split, threads)
            self._tree = DimensionTree(observed.shape, tuple(range(observed.ndim)), split, products)
        self._listed = _Listed(mask, modes, pattern.listed, threads) if len(pattern.listed) else None
        self._pairs: dict[int, tuple[Array, Float64]] = {}
        one = np.ones((1, 1))  # compile now, so that no sweep is delayed
        self._multiply_pairs(one, one)
        self._unpacked(one, one)

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial | None:
        if self._tree is None:
            return None
        pairs = [self._paired(mode, factors[mode]) for mode in self._own]
        return self._tree.first_contraction(pairs, self._swept(modes))

    def grams(self, factors: Sequence[Array], first: Partial | None, modes: Modes | None = None) -> Iterator[Gram]:
        grams, walk = [gram(A) for A in factors], None
        if self._tree is not None:
            pairs, swept = [self._paired(mode, factors[mode]) for mode in self._own], self._swept(modes)
            walk = self._tree.sweep(pairs, first or self._tree.first_contraction(pairs, swept), swept)
            place, V = next(walk)
        for mode in modes or range(self._order):
            others = [other for other in range(self._order) if other != mode]
            common = hadamard([grams[other] for other in others])
            G = common
            if walk is not None:
                if mode in self._own and self._own[place] != mode:
                    place, V = next(walk)
                shared = [grams[other] for other in others if other not in self._own]
                times = hadamard(shared) if shared else np.ones_like(common)
                if mode in self._own:
                    G = self._unpacked(V, times)
                else:  # one Gram for all rows
                    G = self._unpacked(np.einsum("ip,ip->p", pairs[place], V)[None], times)[0]
            if self._listed is not None:
                G = self._listed.subtracted(mode, G, factors)
            yield Gram(G, G if G.ndim == 2 else common)
            grams[mode] = gram(factors[mode])
            if walk is not None and mode in self._own:
                pairs[self._own.index(mode)] = self._paired(mode, factors[mode])

    def cross_grams(self, others: Sequence[Float64], factors: Sequence[Float64]) -> Iterator[tuple[Float64, Float64]]:
        """Yield the Grams from those of both sets of columns side by side."""
        stacked = [np.hstack(columns) for columns in zip(others, factors, strict=True)]
        first = others[0].shape[1]
        for mode, G in enumerate(self.grams(stacked, None)):
            yield G.rows[..., :first, first:], G.rows[..., first:, first:]
            stacked[mode] = np.hstack((others[mode], factors[mode]))

    def overlap(self, factors: Sequence[Array]) -> Float64:
        G, A = next(self.grams(factors, None)).rows, factors[0].astype(np.float64, copy=False)
        return gram(A) * G if G.ndim == 2 else np.einsum("ir,irs,is->rs", A, G, A, optimize=True)

    def _unpacked(self, packed: Float64, times: Float64) -> Float64:
        """Return R × R matrices from sums over pairs of columns, times the Gram of the shared modes."""
        rows = np.empty((len(packed), *times.shape))

        def piece(part: slice) -> None:
            self._unpack_pairs(packed[part], times, rows[part])

        self._threads.each(piece, split_evenly(len(rows), -(-len(rows) // ROWS)))
        return rows

    def _swept(self, modes: Modes | None) -> Modes:
        """Return the positions in the tree of the swept modes, or of any one if all of them are shared."""
        return tuple(place for place, mode in enumerate(self._own) if modes is None or mode in modes) or (0,)

    def _paired(self, mode: int, A: Array) -> Float64:
        """Return A[:, r] ∗ A[:, s] for r ≤ s, cached because the tree compares arrays by identity."""
        known = self._pairs.get(mode)
        if known is not None and known[0] is A:
            return known[1]
        exact = np.ascontiguousarray(A, dtype=np.float64)
        paired = np.empty((len(A), A.shape[1] * (A.shape[1] + 1) // 2))
        self._multiply_pairs(exact, paired)
        self._pairs[mode] = A, paired
        return paired


class _Listed:
    """A list of missing entries, to be subtracted from Grams."""

    def __init__(self, mask: Mask, modes: Modes, places: NDArray[np.int32], threads: Threads) -> None:
        self._mask, self._modes, self._places, self._threads = mask, modes, places, threads
        lengths = [mask.stored.shape[modes.index(mode)] for mode in range(len(modes))]
        self._offsets = np.cumsum([0, *lengths[:-1]])
        self._orders = [np.argsort(places[:, mode], kind="stable").astype(np.int32) for mode in range(len(modes))]
        self._begins = [
            np.concatenate(([0], np.cumsum(np.bincount(places[:, mode], minlength=length))))
            for mode, length in enumerate(lengths)
        ]
        self._summed(0, 0, np.ones((sum(lengths), 1)))  # compile now, so that no sweep is delayed

    def subtracted(self, mode: int, G: Float64, factors: Sequence[Array]) -> Float64:
        """Return Gᵢ − Σ b_e b_eᵀ over the listed entries, for each row."""
        from sparse_ncp.solvers.tensor.missing.kernels import add_products  # numba: see methods/hals.py

        stacked = np.concatenate([A.astype(np.float64, copy=False) for A in factors])
        rank, begins = stacked.shape[1], self._begins[mode]
        rows = np.empty((len(begins) - 1, rank, rank))

        def piece(part: slice) -> None:
            order, cut, H = self._orders[mode], begins[part.start : part.stop + 1], rows[part]
            add_products(self._places, order, cut, mode, stacked, self._offsets, H)
            np.subtract(G if G.ndim == 2 else G[part], H, out=H)
            whole = np.diagonal(G if G.ndim == 2 else G[part], axis1=-2, axis2=-1)
            left = np.diagonal(H, axis1=1, axis2=2)
            for row in np.flatnonzero((left < CANCELLED * whole).any(axis=1)):
                H[row] = self._summed(mode, part.start + row, stacked)

        self._threads.each(piece, split_evenly(len(rows), -(-len(rows) // ROWS)))
        return rows

    def _summed(self, mode: int, index: int, stacked: Float64) -> Float64:
        """Return the Gram of a row, summed directly over its observed entries."""
        from sparse_ncp.solvers.tensor.missing.kernels import add_products

        shape, axis = list(self._mask.stored.shape), self._modes.index(mode)
        shape[axis] = 1
        in_order, total = np.argsort(self._modes), np.zeros((stacked.shape[1],) * 2)
        for region in split_into_regions(shape):
            starts = [index if other == axis else part.start or 0 for other, part in enumerate(region)]
            cut = (*region[:axis], slice(index, index + 1), *region[axis + 1 :])
            places = (np.argwhere(~self._mask.missing(cut)) + starts).astype(np.int32)[:, in_order]
            part = np.empty((1, *total.shape))
            every, ends = np.arange(len(places), dtype=np.int32), np.array([0, len(places)])
            add_products(np.ascontiguousarray(places), every, ends, mode, stacked, self._offsets, part)
            total += part[0]
        return total

"""A tensor without some of its indices, of which no copy is made: for files that are larger than memory.

The indices are masked in the whole tensor. Factors get rows of zeros for them, so that they add nothing to a product,
and their rows of a product are left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.missing.grams import CompleteGrams
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.protocol import Gram, GramProduct, Modes, Observed, Partial, TensorLike
from sparse_ncp.solvers.tensor.scan import OnProgress

Number = TypeVar("Number", bound=np.floating[Any])
# Embedded factors of a mode that are cached: partial results are reused for the same arrays.
REMEMBERED = 4


class Embedding:
    """Add rows of zeros at excluded indices, or leave these rows out; the same array for the same factor."""

    def __init__(self, exclusion: Exclusion) -> None:
        self.exclusion = exclusion
        self._known: dict[int, list[tuple[NDArray[Any], NDArray[Any]]]] = {}

    def factor(self, mode: int, A: NDArray[Number]) -> NDArray[Number]:
        if not self.exclusion.excluded[mode].size:
            return A
        known = self._known.setdefault(mode, [])
        whole = next((whole for own, whole in known if own is A), None)
        if whole is None:
            whole = np.zeros((self.exclusion.shape[mode], A.shape[1]), A.dtype)
            whole[self.exclusion.kept[mode]] = A
            known[:] = [*known[1 - REMEMBERED :], (A, whole)]
        return whole

    def factors(self, factors: Sequence[NDArray[Number]]) -> list[NDArray[Number]]:
        return [self.factor(mode, A) for mode, A in enumerate(factors)]

    def rows(self, mode: int, whole: Float64) -> Float64:
        """Return the rows of kept indices."""
        return whole[self.exclusion.kept[mode]] if self.exclusion.excluded[mode].size else whole


class Subtensor:
    """The kept part of a `whole` tensor, in which excluded indices are masked."""

    def __init__(self, whole: TensorLike, exclusion: Exclusion, embedding: Embedding | None = None) -> None:
        self._whole = whole
        self._embedding = embedding or Embedding(exclusion)
        self.shape = exclusion.kept_shape
        self.dtype = whole.dtype
        self.norm, self.positive = whole.norm, whole.positive
        is_complete = whole.observed.count == np.prod(self.shape)
        self.observed: Observed = (
            CompleteGrams(len(self.shape)) if is_complete else ObservedSubtensor(whole.observed, self._embedding)
        )

    @property
    def cycle(self) -> Modes:
        return self._whole.cycle

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial:
        return self._whole.first_contraction(self._embedding.factors(factors), modes)

    def sweep(
        self, factors: Sequence[Array], first: Partial, modes: Modes | None = None
    ) -> Iterator[tuple[int, Float64]]:
        whole = self._embedding.factors(factors)
        for mode, M in self._whole.sweep(whole, first, modes):
            yield mode, np.ascontiguousarray(self._embedding.rows(mode, M))
            whole[mode] = self._embedding.factor(mode, factors[mode])

    def squared_residual(self, factors: Sequence[Array]) -> float:
        return self._whole.squared_residual(self._embedding.factors(factors))

    @property
    def has_gram_times(self) -> bool:
        return self._whole.has_gram_times

    def gram_times(self, V: Mapping[int, Float64]) -> dict[int, GramProduct]:
        found = self._whole.gram_times({mode: self._embedding.factor(mode, own) for mode, own in V.items()})
        return {
            mode: GramProduct(self._embedding.rows(mode, one.product), one.positive, one.negative)
            for mode, one in found.items()
        }

    def compile_single_precision(self) -> None:
        """Do nothing: there is no copy in single precision."""

    def in_single_precision(self, on_progress: OnProgress) -> TensorLike:
        raise NotImplementedError("a tensor that is not copied has no copy in single precision")

    def compression_bytes(self, rank: int) -> int:
        return self._whole.compression_bytes(rank)

    def compress(self, rank: int, on_progress: OnProgress, always: bool = False) -> TensorLike | None:
        small = self._whole.compress(rank, on_progress, always)
        return None if small is None else Subtensor(small, self._embedding.exclusion, self._embedding)


class ObservedSubtensor:
    """Which entries of the kept part are observed, and the Gram matrices over them."""

    def __init__(self, whole: Observed, embedding: Embedding) -> None:
        self._whole, self._embedding = whole, embedding
        kept = embedding.exclusion.kept
        changed = {mode for mode, out in enumerate(embedding.exclusion.excluded) if out.size}
        self.constant = tuple(mode for mode in whole.constant if mode not in changed)
        self.count = whole.count
        self.counts: Sequence[NDArray[np.int64]] | None = (
            None if whole.counts is None else [counts[own] for counts, own in zip(whole.counts, kept, strict=True)]
        )

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial | None:
        return self._whole.first_contraction(self._embedding.factors(factors), modes)

    def grams(self, factors: Sequence[Array], first: Partial | None, modes: Modes | None = None) -> Iterator[Gram]:
        whole = self._embedding.factors(factors)
        for mode, G in zip(modes or range(len(factors)), self._whole.grams(whole, first, modes), strict=True):
            rows = G.rows if G.rows.ndim == 2 else self._embedding.rows(mode, G.rows)
            yield Gram(rows, G.common)
            whole[mode] = self._embedding.factor(mode, factors[mode])

    def cross_grams(self, others: Sequence[Float64], factors: Sequence[Float64]) -> Iterator[tuple[Float64, Float64]]:
        theirs, ours = self._embedding.factors(others), self._embedding.factors(factors)
        for mode, pair in enumerate(self._whole.cross_grams(theirs, ours)):
            cross, own = (G if G.ndim == 2 else self._embedding.rows(mode, G) for G in pair)
            yield cross, own
            ours[mode] = self._embedding.factor(mode, factors[mode])

    def overlap(self, factors: Sequence[Array]) -> Float64:
        return self._whole.overlap(self._embedding.factors(factors))

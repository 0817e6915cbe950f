"""The operations that the loop needs from a tensor, however its entries are stored."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.scan import OnProgress

Modes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Partial:
    """A tensor contracted with the factors `used`: (lengths of `modes`) × R, padded with zeros.

    It belongs to the tensor that made it; only the fields that are given here are for the loop to read.
    """

    modes: Modes
    array: Array
    used: Sequence[Array]

    def is_of(self, modes: Modes, used: Sequence[Array]) -> bool:
        """Return whether it is the contraction with these very arrays; factors are replaced, never changed."""
        return self.modes == modes and all(ours is theirs for ours, theirs in zip(self.used, used, strict=True))


class Gram(NamedTuple):
    """Gram matrices of a mode.

    `rows` is R × R where one matrix serves all rows, or I_n × R × R. `common` is R × R and an upper bound of each.
    """

    rows: Float64
    common: Float64


class Positive(NamedTuple):
    """Norm and sum of a tensor whose negative entries count as zero, and how many of those it has."""

    norm: float
    sum: float
    negative: int = 0


@dataclass(frozen=True)
class GramProduct:
    """XXᵀV of an unfolding X, and the squared norms of the positive and the negative part of each column of XᵀV."""

    product: Float64
    positive: Float64
    negative: Float64

    @classmethod
    def of(cls, tile: Float64, V: Float64) -> "GramProduct":
        """Return the product for a tile that has all rows of the unfolding."""
        right = tile.T @ V
        return cls(
            tile @ right, np.square(np.maximum(right, 0)).sum(axis=0), np.square(np.minimum(right, 0)).sum(axis=0)
        )

    def add(self, other: "GramProduct") -> "GramProduct":
        """Add the sums of another one in place, and return these."""
        np.add(self.product, other.product, out=self.product)
        np.add(self.positive, other.positive, out=self.positive)
        np.add(self.negative, other.negative, out=self.negative)
        return self


class Observed(Protocol):
    """Which entries of a tensor are observed, and the Gram matrices of factors over those entries.

    Attributes
    ----------
    constant : tuple of int
        The modes along which the same entries are observed; all of them for a complete tensor.
    count : int or None
        How many entries are observed; None for a complete tensor.
    counts : sequence of numpy.ndarray or None
        How many entries are observed at each index of each mode; None for a complete tensor.
    """

    constant: Modes
    count: int | None
    counts: Sequence[NDArray[np.int64]] | None

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial | None:
        """Return what `grams` needs first; None for a complete tensor."""

    def grams(self, factors: Sequence[Array], first: Partial | None, modes: Modes | None = None) -> Iterator[Gram]:
        """Yield the Gram matrices of every mode in turn; the caller replaces `factors[mode]` in between."""

    def cross_grams(self, others: Sequence[Float64], factors: Sequence[Float64]) -> Iterator[tuple[Float64, Float64]]:
        """Yield, mode by mode, the Grams of `others` with `factors`, and those of `factors` among themselves."""

    def overlap(self, factors: Sequence[Array]) -> Float64:
        """Return the R × R inner products of all pairs of components over the observed entries."""


class TensorLike(Protocol):
    """A tensor that the loop can decompose: all that `solvers.bcd` knows of one.

    Implementations are tested by `tests/contracts/test_tensors.py`. Entries that are not observed count as zero in
    every operation. The same factors must give the same bits, for any number of threads.

    Attributes
    ----------
    shape : tuple of int
    dtype : numpy.dtype
        The working precision: float64 or float32. Factors have it, too; products come back in float64.
    norm : float
        The Frobenius norm over the observed entries.
    positive : Positive
        Norm and sum over the observed entries, where negative entries count as zero.
    observed : Observed
        Which entries are observed.
    cycle : tuple of int
        The order of the modes in which a sweep costs least.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    norm: float
    positive: Positive

    @property
    def observed(self) -> Observed: ...

    @property
    def cycle(self) -> Modes: ...

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial:
        """Contract half of the modes, which the first step of a sweep over `modes` needs."""

    def sweep(
        self, factors: Sequence[Array], first: Partial, modes: Modes | None = None
    ) -> Iterator[tuple[int, Float64]]:
        """Yield each mode with its I_n × R MTTKRP; the caller replaces `factors[mode]` in between."""

    def squared_residual(self, factors: Sequence[Array]) -> float:
        """Return ‖X − ⟦A¹…Aᴺ⟧‖² over the observed entries, added up entry by entry, without cancellation.

        A compressed tensor counts no part of the model outside of its bases.
        """

    @property
    def has_gram_times(self) -> bool:
        """Whether `gram_times` is implemented; without it there are no starts from singular vectors."""

    def gram_times(self, V: Mapping[int, Float64]) -> Mapping[int, GramProduct]:
        """Return X₍ₙ₎X₍ₙ₎ᵀV for each mode n in V, with X₍ₙ₎ the unfolding along mode n and V of shape I_n × k."""

    def compile_single_precision(self) -> None:
        """Compile what `in_single_precision` will need, so that no clock counts a compiler."""

    def in_single_precision(self, on_progress: OnProgress) -> "TensorLike":
        """Return a copy in float32 that keeps the `norm` of this tensor."""

    def compression_bytes(self, rank: int) -> int:
        """Return an upper bound of the memory that `compress` takes."""

    def compress(self, rank: int, on_progress: OnProgress, always: bool = False) -> "TensorLike | None":
        """Return a smaller tensor with nearly the same best factors, or None where that would hardly be quicker.

        With `always`, compress whatever is lost; then None means that no mode is long enough.
        """

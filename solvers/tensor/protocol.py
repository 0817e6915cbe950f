"""What the loop asks of any tensor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from sparse_ncp.solvers.tensor.products import Array, Float64

Modes: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Partial:
    """The tensor contracted with the factors `used`, down to (lengths of `modes`) × R, or more that are zero."""

    modes: Modes
    array: Array
    used: Sequence[Array]

    def is_of(self, modes: Modes, used: Sequence[Array]) -> bool:
        """Whether it is the contraction with these very arrays; factors are replaced, never changed."""
        return self.modes == modes and all(ours is theirs for ours, theirs in zip(self.used, used, strict=True))


class Gram(NamedTuple):
    """The Gram matrices of a mode: `rows` is R × R for all rows, or I_n × R × R; `common` is at least each of them."""

    rows: Float64
    common: Float64


class Observed(Protocol):
    """What is observed of a tensor, as far as Gram matrices go."""

    constant: Modes  # along which it is the same
    count: int | None  # of the observed entries; None for all

    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial | None:
        """What the sweep of `grams` begins with."""

    def grams(self, factors: Sequence[Array], first: Partial | None, modes: Modes | None = None) -> Iterator[Gram]:
        """Yield the Gram of every mode in turn; the caller replaces `factors[mode]` in between."""

    def cross_grams(self, others: Sequence[Float64], factors: Sequence[Float64]) -> Iterator[tuple[Float64, Float64]]:
        """The same of `factors` with those of other components, and among themselves."""

    def overlap(self, factors: Sequence[Array]) -> Float64:
        """The inner products of all pairs of components."""


class TensorLike(Protocol):
    """A tensor that the loop can run on, whatever it is stored as."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    norm: float

    @property
    def observed(self) -> Observed: ...
    @property
    def cycle(self) -> Modes: ...
    def first_contraction(self, factors: Sequence[Array], modes: Modes | None = None) -> Partial: ...
    def sweep(
        self, factors: Sequence[Array], first: Partial, modes: Modes | None = None
    ) -> Iterator[tuple[int, Float64]]: ...
    def squared_residual(self, factors: Sequence[Array]) -> float: ...

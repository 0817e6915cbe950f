"""Interface of the two large products with a tensor, used by the dimension tree and the compression."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blocks import BlockRegion
from sparse_ncp.solvers.tensor.products import Array

# The side of the modes to contract or to split. The inner modes can be split if they come first.
Side: TypeAlias = Literal["inner", "outer"]


class Gemm(Protocol):
    """Products with a before × inner × after tensor; weights and results have a column per component."""

    dtype: np.dtype[Any]
    unit: int  # the number of columns must be a multiple of this

    def contract_inner(self, weights: Array) -> Array:
        """Sum over the inner modes: inner × R weights give (before · after) × R."""

    def contract_outer(self, weights: Array) -> Array:
        """Sum over the outer modes: (before · after) × R weights give inner × R."""

    def parts(self, columns: int, side: Side = "outer") -> list[BlockRegion]:
        """Split the outer or the inner modes into parts, if a matrix with a row for each of their entries is large."""

    def contracted_parts(self, weights: Array, side: Side = "outer") -> Iterator[Array]:
        """Contract the other side, and yield the result for one part of this side after another."""

    def contract_parts(self, weights: Iterable[Array], columns: int, side: Side = "outer") -> Array:
        """Sum over this side, taking the weights of one part after another."""

    def contract_partial(self, partial: Array, weights: Array, away_first: bool) -> Array:
        """Sum over the first or the second axis of a partial result, with separate weights for each component."""

    def row_products(self, factors: Sequence[Array]) -> Array:
        """Return the Khatri-Rao product: each row is a product of one row of each factor, last mode fastest."""

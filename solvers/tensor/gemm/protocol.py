"""The two large products with a tensor, as the dimension tree and the compression use them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blocks import BlockRegion
from sparse_ncp.solvers.tensor.products import Array

# The inner modes, or the outer ones. The inner modes can be cut where they come first.
Side: TypeAlias = Literal["inner", "outer"]


class Gemm(Protocol):
    """The products with a tensor that is seen as before × inner × after; columns of weights and results come last."""

    dtype: np.dtype[Any]
    unit: int  # the number of columns must be a multiple of this

    def contract_inner(self, weights: Array) -> Array:
        """Σ over the inner modes; weights is inner × R, the result (before · after) × R."""

    def contract_outer(self, weights: Array) -> Array:
        """Σ over the outer modes; weights is (before · after) × R, the result inner × R."""

    def parts(self, columns: int, side: Side = "outer") -> list[BlockRegion]:
        """Cut the outer or the inner modes, if a matrix with a row for each entry of them would be large."""

    def contracted_parts(self, weights: Array, side: Side = "outer") -> Iterator[Array]:
        """What is left on this side when the other one is contracted, part by part."""

    def contract_parts(self, weights: Iterable[Array], columns: int, side: Side = "outer") -> Array:
        """Σ over this side, with the weights of one part after the other."""

    def contract_partial(self, partial: Array, weights: Array, away_first: bool) -> Array:
        """Σ over the first or the second axis of a partial result; each component has weights of its own."""

    def row_products(self, factors: Sequence[Array]) -> Array:
        """Column-wise Kronecker product: every row is a product of one row of each factor, last mode fastest."""

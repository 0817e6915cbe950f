"""Contractions of partial results, in double precision."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sparse_ncp.solvers.tensor.gemm.blocks import BlockRegion, whole_region
from sparse_ncp.solvers.tensor.gemm.protocol import Side
from sparse_ncp.solvers.tensor.products import Array, aligned_empty
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# With fewer entries, one thread finishes a partial result or a product of rows before another has woken up.
SMALL_PARTIAL = 1 << 18


class Float64Partials(ABC):
    """Base class: contract partial results in double precision."""

    def __init__(self, shape: tuple[int, int, int], dtype: np.dtype[Any], threads: Threads) -> None:
        from sparse_ncp.solvers.tensor.gemm import partial_kernels  # numba: see methods/hals.py

        self._kernels = partial_kernels
        self._shape = shape
        self._threads = threads
        self.dtype = dtype
        partial_kernels.precompile(dtype)

    @abstractmethod
    def contract_inner(self, weights: Array) -> Array: ...

    @abstractmethod
    def contract_outer(self, weights: Array) -> Array: ...

    def parts(self, columns: int, side: Side = "outer") -> list[BlockRegion]:
        """Return a single part, because BLAS rounds differently for every split."""
        return [whole_region(self._shape)]

    def contracted_parts(self, weights: Array, side: Side = "outer") -> Iterator[Array]:
        yield self.contract_inner(weights) if side == "outer" else self.contract_outer(weights)

    def contract_parts(self, weights: Iterable[Array], columns: int, side: Side = "outer") -> Array:
        (whole,) = weights
        return self.contract_outer(whole) if side == "outer" else self.contract_inner(whole)

    def contract_partial(self, partial: Array, weights: Array, away_first: bool) -> Array:
        weights = _for_kernels(weights)
        contract = self._kernels.contract_first if away_first else self._kernels.contract_second
        rest = np.empty((partial.shape[1 if away_first else 0], weights.shape[1]))
        self._threads.each(
            lambda part: contract(partial, weights, part.start, rest[part]),
            split_evenly(len(rest), min(partial.size // SMALL_PARTIAL, 2 * self._threads.count)),
        )
        return rest

    def row_products(self, factors: Sequence[Array]) -> Array:
        product, *others = map(_for_kernels, factors)
        for A in others:
            out = aligned_empty((len(product), *A.shape), product.dtype)

            def multiply(part: slice, left: Array = product, right: Array = A, out: Array = out) -> None:
                self._kernels.multiply_rows(left, right, part.start, out[part])

            parts = min(out.size // SMALL_PARTIAL, 2 * self._threads.count)
            self._threads.each(multiply, split_evenly(len(product), parts))
            product = out.reshape(-1, A.shape[1])
        return product


def _for_kernels(A: Array) -> Array:
    """Return a writable array in C order: for others numba would compile the kernels again."""
    return A if A.flags.c_contiguous and A.flags.writeable else A.copy()


def total(sums: Array | Sequence[Array]) -> Array:
    """Sum in the given order, whichever thread finished first."""
    total: Array = sums[0]
    for section in sums[1:]:
        total += section
    return total

"""Kernels for partial results: components come last, and each has its own weights."""

from typing import Any

import numpy as np

from sparse_ncp.solvers.tensor.jit import jit
from sparse_ncp.solvers.tensor.products import Array, Float64


@jit
def multiply_rows(A: Array, B: Array, first: int, out: Array) -> None:
    """out[a, b] ← A[first + a] ∗ B[b], for as many a as `out` has."""
    for a in range(out.shape[0]):
        for b in range(B.shape[0]):
            for r in range(B.shape[1]):
                out[a, b, r] = A[first + a, r] * B[b, r]


@jit
def contract_second(partial: Array, weights: Array, first: int, out: Float64) -> None:
    """out[a] ← Σ_b partial[first + a, b] ∗ weights[b], for as many a as `out` has rows."""
    for a in range(out.shape[0]):
        total = out[a]
        total[:] = 0.0
        for b in range(weights.shape[0]):
            for r in range(weights.shape[1]):
                total[r] += partial[first + a, b, r] * weights[b, r]


@jit
def contract_first(partial: Array, weights: Array, first: int, out: Float64) -> None:
    """out[b] ← Σ_a partial[a, first + b] ∗ weights[a], for as many b as `out` has rows."""
    out[:] = 0.0
    for a in range(weights.shape[0]):
        for b in range(out.shape[0]):
            for r in range(weights.shape[1]):
                out[b, r] += partial[a, first + b, r] * weights[a, r]


def precompile(dtype: np.dtype[Any]) -> None:
    """Compile the kernels, or load them from the cache, for partial results of this precision and of float64."""
    for kind in {dtype, np.dtype(np.float64)}:
        multiply_rows(np.zeros((0, 1), kind), np.zeros((0, 1), kind), 0, np.zeros((0, 0, 1), kind))
        for contract in (contract_first, contract_second):
            contract(np.zeros((0, 0, 1), kind), np.zeros((0, 1), kind), 0, np.zeros((0, 1)))

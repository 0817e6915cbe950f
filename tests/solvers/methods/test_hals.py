"""Passes of HALS over rows are those of the definition, whatever their number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_ncp.solvers.kernels.hals import hals_rows
from sparse_ncp.solvers.tensor.products import Float64


def by_definition(A: Float64, C: Float64, Q: Float64, passes: int) -> Float64:
    """Compute a_r ← [a_r + (C_r − A Q_r) / Q_rr]₊, one column after another."""
    A = A.copy()
    for _ in range(passes):
        for r in range(A.shape[1]):
            slope = A @ Q[:, r] - C[:, r]
            stays = np.where(slope > 0, 0.0, A[:, r])
            A[:, r] = np.maximum(0, A[:, r] - slope / Q[r, r]) if Q[r, r] > 0 else stays
    return A


def quadratic(rows: int, rank: int, seed: int, dead: int) -> tuple[Float64, Float64, Float64]:
    random = np.random.default_rng(seed)
    A, B = np.maximum(0, random.standard_normal((rows, rank))), random.random((rank + 3, rank))
    B[:, :dead] = 0
    return A, random.standard_normal((rows, rank)) * rank, B.T @ B


@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 3), st.integers(0, 2), st.integers(0, 2**32 - 1))
def test_rows_are_those_of_the_definition(rows: int, rank: int, passes: int, dead: int, seed: int) -> None:
    A, C, Q = quadratic(rows, rank, seed, dead)
    expected, out = by_definition(A, C, Q, passes), np.empty((rows, rank))
    for same in (Q, np.asfortranarray(Q), np.repeat(Q[None], rows, axis=0)):
        hals_rows(A, C, same, out, passes)
        np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-9 * max(1.0, expected.max()))


@pytest.mark.parametrize("rank", [1, 10, 40])
def test_a_row_has_the_same_bits_wherever_it_lies(rank: int) -> None:
    A, C, Q = quadratic(37, rank, 0, 0)
    whole = np.empty_like(A)
    hals_rows(A, C, Q, whole, 2)
    for first in range(37):
        part = np.empty_like(A[first:])
        hals_rows(A[first:], C[first:], Q, part, 2)
        np.testing.assert_array_equal(part, whole[first:])

"""Block principal pivoting with one row per SIMD lane is exact, and no row depends on its neighbours."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_ncp.solvers.kernels.bpp_simd import bpp_rows, exchange
from sparse_ncp.solvers.kernels.nnls import active_set_rows, bpp_one_by_one
from sparse_ncp.solvers.tensor.products import Float64


def unit_diagonal(Q: Float64) -> Float64:
    scale = np.sqrt(np.diagonal(Q, axis1=-2, axis2=-1))
    return Q / scale[..., None, :] / scale[..., :, None]


def problem(seed: int, rank: int, count: int, own: bool) -> tuple[Float64, Float64, Float64]:
    """Draw a start, C and Q, with one Q for all rows or one for each."""
    random = np.random.default_rng(seed)
    B = random.random((count, rank + 3, rank) if own else (rank + 3, rank))
    start = np.maximum(0, random.standard_normal((count, rank)))
    return start, random.standard_normal((count, rank)), unit_diagonal(np.swapaxes(B, -1, -2) @ B)


def active_set(start: Float64, C: Float64, Q: Float64) -> Float64:
    out = np.empty(C.shape)
    active_set_rows(start, C, Q, out)
    return out


@given(seed=st.integers(0, 10_000), rank=st.integers(1, 70), count=st.integers(0, 40), own=st.booleans())
def test_lanes_find_what_the_active_set_method_finds(seed: int, rank: int, count: int, own: bool) -> None:
    start, C, Q = problem(seed, rank, count, own)
    out = np.empty(C.shape)
    assert len(exchange(start, C, Q, out)) == 0
    expected = active_set(start, C, Q)
    np.testing.assert_allclose(out, expected, atol=1e-9 * max(1.0, expected.max(initial=0.0)))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("rank", [1, 7, 8, 20, 33])
def test_a_row_has_the_same_bits_whatever_its_neighbours(rank: int, own: bool) -> None:
    start, C, Q = problem(rank, rank, 50, own)
    together = np.empty(C.shape)
    exchange(start, C, Q, together)
    for rows in ([3], [49, 3], [*range(3, 22)], [*range(49, -1, -1)]):
        out = np.empty((len(rows), rank))
        exchange(start[rows], C[rows], Q[rows] if own else Q, out)
        assert out.tobytes() == together[rows].tobytes()


def test_rows_that_would_take_very_many_rounds_are_solved_too() -> None:
    """Murty's example: exchanging one variable at a time visits nearly all passive sets."""
    rank = 12
    L = np.tril(np.full((rank, rank), 2.0), -1) + np.eye(rank)
    scale = np.sqrt(np.diagonal(L @ L.T))
    start = (np.arange(2**rank)[:, None] >> np.arange(rank) & 1).astype(float)
    Q, C = unit_diagonal(L @ L.T), np.tile(1 / scale, (len(start), 1))
    out = np.empty(C.shape)
    assert 0 < len(exchange(start, C, Q, out)) < len(start)
    bpp_rows(start, C, Q, out)
    np.testing.assert_allclose(out, active_set(start, C, Q), atol=1e-9)


@pytest.mark.parametrize("own", [False, True])
def test_few_passive_of_many_variables_go_one_row_after_the_other(own: bool) -> None:
    """One row at a time is faster here; the choice depends on the rows, not on the threads."""
    start, C, Q = problem(0, 70, 9, own)
    start[:, 3:] = 0
    out, alone = np.empty(C.shape), np.empty(C.shape)
    bpp_rows(start, C, Q, out)
    bpp_one_by_one(start, C, Q, alone)
    assert out.tobytes() == alone.tobytes()

"""Unconstrained least squares with one row per SIMD lane."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparse_ncp.solvers.kernels.cholesky import ldl_factors, solve_rows
from sparse_ncp.solvers.kernels.regularise import regularise
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads


def problem(seed: int, rank: int, count: int) -> tuple[Float64, Float64, Float64]:
    random = np.random.default_rng(seed)
    B = random.random((rank + 3, rank))
    return random.random((count, rank)), B.T @ B, random.standard_normal((count, rank))


@given(seed=st.integers(0, 10_000), rank=st.integers(1, 70), count=st.integers(1, 40))
def test_the_rows_solve_their_equations(seed: int, rank: int, count: int) -> None:
    A, Q, C = problem(seed, rank, count)
    with Threads(1) as pool:
        quadratic = regularise(A, Q, C)
        solution = regularise(A, Q, C).solve(pool) * quadratic.scale
    # Backward stable: what is left of the equations is rounding of their terms.
    terms = abs(quadratic.C) + abs(solution) @ abs(quadratic.Q)
    assert (abs(solution @ quadratic.Q - quadratic.C) <= 1e-13 * rank * terms.max()).all()


@pytest.mark.parametrize("rank", [1, 7, 8, 20, 41])
def test_a_row_has_the_same_bits_whatever_its_neighbours(rank: int) -> None:
    A, Q, C = problem(rank, rank, 50)
    factors, together = ldl_factors(Q), np.empty(C.shape)
    solve_rows(A, C, factors, together)
    for rows in ([3], [49, 3], [*range(3, 22)]):
        out = np.empty((len(rows), rank))
        solve_rows(A[rows], C[rows], factors, out)
        assert out.tobytes() == together[rows].tobytes()

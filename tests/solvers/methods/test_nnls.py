"""The exact methods solve their block exactly, and survive a singular one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from sparse_ncp.solvers import METHODS
from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.threads import Threads

EXACT = [name for name, method in METHODS.items() if method.exact]


def solve_block(method: str, A: Float64, Q: Float64, M: Float64, beta: float = 0.0) -> Float64:
    block = Block(Q, Q, M, beta, single=False, normalise=False, delta_omega=0.0, passes=1, threads=Threads(1))
    return METHODS[method].update(A, block, Memory())[0]


def value(A: Float64, Q: Float64, C: Float64) -> float:
    return 0.5 * np.sum((A @ Q) * A) - np.sum(A * C)


@pytest.mark.parametrize("method", EXACT)
@pytest.mark.parametrize("rank", [1, 2, 7, 8, 9, 30, 33, 70])  # around the lengths of vectors
@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_an_exact_block_is_scipys_nnls(method: str, rank: int, beta: float) -> None:
    random = np.random.default_rng(rank)
    B, target = random.random((3 * rank, rank)), random.standard_normal((25, 3 * rank))
    M = np.abs(target @ B)
    Q = B.T @ B
    A = solve_block(method, np.maximum(0, random.standard_normal((25, rank))), Q, M, beta)
    root = np.linalg.cholesky(Q)
    expected = np.array([nnls(root.T, np.linalg.solve(root, row - beta))[0] for row in M])
    np.testing.assert_allclose(A, expected, atol=1e-9 * max(1.0, expected.max()))


@pytest.mark.parametrize("method", EXACT)
@given(seed=st.integers(0, 10_000), rank=st.integers(1, 12), span=st.integers(1, 12), dead=st.booleans())
def test_a_singular_block_ends_feasible_optimal_and_no_worse(
    method: str, seed: int, rank: int, span: int, dead: bool
) -> None:
    """Minimisers are not unique here, so the objective and the optimality conditions are compared, not the entries."""
    random = np.random.default_rng(seed)
    B = random.random((span, rank))
    if dead:
        B[:, seed % rank] = 0
    Q, M = B.T @ B, random.random((8, span)) @ B
    before = np.maximum(0, random.standard_normal((8, rank)))
    A = solve_block(method, before, Q, M)
    assert (A >= 0).all()
    scale = max(1.0, np.abs(M).max(), A.max())
    assert value(A, Q, M) <= value(before, Q, M) + 1e-12 * scale**2
    assert np.minimum(A, A @ Q - M).min() > -1e-6 * scale
    assert np.abs(np.minimum(A, A @ Q - M)).max() < 1e-6 * scale


@pytest.mark.parametrize("method", EXACT)
def test_a_solution_of_a_singular_block_stays_where_it_is(method: str) -> None:
    """Two equal components may share their sum in any proportion; changing it gains nothing."""
    random = np.random.default_rng(0)
    B = random.random((9, 3))[:, [0, 1, 2, 2]]
    exact = random.random((5, 4)) + 0.1
    A = solve_block(method, exact, B.T @ B, exact @ (B.T @ B))
    np.testing.assert_allclose(A, exact, atol=1e-5)


@pytest.mark.parametrize("method", EXACT)
def test_components_of_very_different_scale_are_solved_alike(method: str) -> None:
    random = np.random.default_rng(0)
    B = random.random((12, 4))
    scale = np.array([1e-7, 1.0, 1e3, 1e8])
    M = random.random((6, 12)) @ B
    plain = solve_block(method, np.zeros((6, 4)), B.T @ B, M)
    scaled = solve_block(method, np.zeros((6, 4)), (B * scale).T @ (B * scale), M * scale)
    np.testing.assert_allclose(scaled * scale, plain, atol=1e-10)

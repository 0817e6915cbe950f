"""A component that vanishes is a valid outcome, not a crash; no result contains NaN."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparse_ncp.solvers import METHODS, Result, Settings, solve, synthetic
from tests.solvers.problems import against_advice, examples, planted, run

pytestmark = against_advice

methods = pytest.mark.parametrize("method", METHODS)


def check(result: Result) -> None:
    assert np.isfinite(result.history.objective).all()
    assert np.isfinite(result.history.relative_error).all()
    for A in result.factors:
        assert np.isfinite(A).all()
        assert (A >= 0).all()


def test_the_papers_hals_does_not_scale_rounding_to_unit_length() -> None:
    """A component that is zero in the last mode is zero: what rounding leaves of its columns is not blown up."""
    X = synthetic.planted((9, 8, 7), 3, seed=2).tensor
    initial = [np.random.default_rng(mode).random((length, 4)) + 0.1 for mode, length in enumerate(X.shape)]
    initial[2][:, 1] = 0.0
    settings = Settings(rank=4, method="hals", stop={"max_iterations": 8, "tolerance": 0.0})
    nearby = X * (1 + 1e-15 * np.random.default_rng(9).standard_normal(X.shape))
    one, other = (solve(tensor, settings, initial=initial) for tensor in (X, nearby))
    assert all((A[:, 1] == 0).all() for A in one.factors)
    for A, B in zip(one.factors, other.factors, strict=True):
        np.testing.assert_allclose(A, B, rtol=0, atol=1e-10)


@methods
@pytest.mark.parametrize("alpha", [0.0, 1e-6])
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (1, 5, 1), (1, 1), (2,) * 8], ids=str)
def test_a_rank_above_every_length(method: str, alpha: float, shape: Any) -> None:
    random = np.random.default_rng(0)
    check(run(random.random(shape) + 0.1, method=method, alpha=alpha, rank=9, iterations=40))


@methods
@pytest.mark.parametrize("alpha", [0.0, 1e-6])
def test_a_constant_tensor(method: str, alpha: float) -> None:
    result = run(np.ones((6, 5, 4)), method=method, alpha=alpha, rank=3, iterations=100)
    check(result)
    assert result.relative_error < 0.5


@methods
def test_rank_one(method: str) -> None:
    result = run(planted(3).tensor, method=method, rank=1, iterations=50)
    check(result)
    assert result.nonzero_components.all_modes == 1


@methods
@pytest.mark.parametrize("alpha", [0.0, 1e-6])
@pytest.mark.parametrize("initial", ["dead", "twins", "zeros"])
def test_a_singular_start(method: str, alpha: float, initial: str) -> None:
    X = planted(3).tensor
    factors = [np.random.default_rng(1).random((length, 3)) for length in X.shape]
    if initial == "dead":
        factors[1][:, 2] = 0
    if initial == "twins":
        for A in factors:
            A[:, 2] = A[:, 1]
    if initial == "zeros":
        factors = [np.zeros_like(A) for A in factors]
    check(run(X, method=method, alpha=alpha, rank=3, initial=factors, iterations=60))


@methods
@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("penalty", ["l1", "l1_squared"])
def test_a_huge_penalty_kills_every_component_and_the_result_says_so(method: str, rescale: bool, penalty: str) -> None:
    X = planted(3).tensor
    result = run(X, method=method, beta=1e6, penalty=penalty, rescale=rescale, iterations=200)
    check(result)
    if penalty == "l1" and not (method == "hals" and not rescale):
        assert result.nonzero_components.all_modes == 0
        assert "every component is zero" in result.warnings[0]
        assert result.relative_error == pytest.approx(1.0, abs=1e-3)


@methods
def test_a_tensor_of_one_entry_that_is_not_zero(method: str) -> None:
    X = np.zeros((5, 4, 3))
    X[2, 1, 0] = 7.0
    result = run(X, method=method, rank=2, iterations=100, init="random_scaled")
    check(result)


@pytest.mark.parametrize("preset", [None, "recommended"])
@pytest.mark.parametrize("shape", [(1, 11), (12, 1), (1, 2, 9), (3, 1, 1)], ids=str)
def test_als_in_single_precision_survives_columns_that_coincide(shape: tuple[int, ...], preset: Any) -> None:
    """Rounding errors of the products must not count as a difference between the columns.

    A matrix of 3 × 3 is no example: with four components als may diverge there in double precision, too.
    """
    for seed in range(20):
        X = np.random.default_rng(seed).random(shape).astype(np.float32)
        stop = {"max_iterations": 40, "tolerance": 0.0}
        result = solve(X, Settings(rank=4, method="als", alpha=0.0, preset=preset, seed=seed, stop=stop), threads=1)
        check(result)
        assert result.relative_error < 0.5


@given(
    shape=st.lists(st.integers(1, 5), min_size=2, max_size=6),
    rank=st.integers(1, 6),
    method=st.sampled_from(sorted(METHODS)),
    alpha=st.sampled_from([0.0, 1e-6, 1.0]),
    beta=st.sampled_from([0.0, 1e-3, 0.5, 100.0]),
    penalty=st.sampled_from([None, "l1", "l1_squared"]),
    init=st.sampled_from(["random", "random_scaled", "nndsvd"]),
    precision=st.sampled_from([None, "float32"]),
    rescale=st.booleans(),
    seed=st.integers(0, 1000),
)
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
def test_what_validates_runs(shape: list[int], seed: int, **fields: Any) -> None:
    X = np.maximum(0, np.random.default_rng(seed).standard_normal(shape))
    X.flat[0] = 1.0
    asked = Settings(seed=seed, stop={"max_iterations": 8, "tolerance": 0.0}, **fields)
    check(solve(X, asked, threads=1))


@pytest.mark.parametrize("beta", [0.0, 1e-6])
def test_components_lost_to_the_start_are_warned_of(beta: float) -> None:
    lost = [0, 0]
    X = synthetic.planted((20, 8, 6), 3).tensor
    for seed in range(4):
        asked = Settings.recommended(8, beta=beta, seed=seed, regrow=False, starts=1, stop={"max_iterations": 5})
        result = solve(X, asked)
        dead = bool((result.weights <= 1e-6 * np.linalg.norm(X)).any())
        lost[dead] += 1
        assert any("was not tried: set regrow" in warning for warning in result.warnings) == dead
    assert all(lost)

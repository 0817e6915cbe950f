"""Rescaling finds the best scales: the model stays, the penalty is the smallest possible."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from sparse_ncp.solvers import METHODS, Settings
from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.bcd.scaling import best_scales, column_sizes, scales_after_sweep
from sparse_ncp.solvers.bcd.scaling import rescaled as rescale_all
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.methods import Penalty
from sparse_ncp.solvers.tensor.products import Array, Float64
from tests.solvers.literal import model
from tests.solvers.problems import planted, problem_of, run, start

weights = st.floats(1e-6, 10) | st.just(0.0)


def problem(alpha: tuple[float, ...], beta: tuple[float, ...], penalty: Penalty = "l1") -> Problem:
    return problem_of(Settings(rank=3, method="anls-bpp", alpha=alpha, beta=beta, penalty=penalty), len(alpha))


def rescaled(asked: Problem, factors: Sequence[Float64]) -> list[Float64]:
    return [A * s for A, s in zip(factors, best_scales(asked, factors), strict=True)]


@given(
    alpha=st.tuples(weights, weights, weights),
    beta=st.tuples(weights, weights, weights),
    penalty=st.sampled_from(["l1", "l1_squared"]),
    spread=st.floats(-6, 6),
)
def test_the_model_stays_and_the_penalty_never_rises(
    alpha: tuple[float, ...], beta: tuple[float, ...], penalty: Penalty, spread: float
) -> None:
    asked = problem(alpha, beta, penalty)
    factors = start((6, 5, 4), 3)
    factors[0] *= 10.0**spread
    after = rescaled(asked, factors)
    np.testing.assert_allclose(model(after), model(factors), rtol=1e-10)
    assert asked.penalty(after) <= asked.penalty(factors) * (1 + 1e-12)


@pytest.mark.parametrize("alpha", [(0.0, 0.0, 0.0), (1e-6, 1e-6, 1e-6), (2.0, 0.1, 0.5)])
@pytest.mark.parametrize("beta", [(0.5, 0.5, 0.5), (0.1, 2.0, 0.3)])
def test_no_other_scales_are_better(alpha: tuple[float, ...], beta: tuple[float, ...]) -> None:
    asked = problem(alpha, beta)
    factors = start((6, 5, 4), 1)

    def penalty(free: Float64) -> float:
        logs = np.append(free, -free.sum())
        return asked.penalty([A * np.exp(s) for A, s in zip(factors, logs, strict=True)])

    best = minimize(penalty, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14}).fun
    assert asked.penalty(rescaled(asked, factors)) == pytest.approx(best, rel=1e-9)


def test_the_squared_penalty_settles_after_a_few_rounds() -> None:
    """Its components share their rows, so one round goes over them in turn; further rounds must gain less and less."""
    asked = problem((0.01,) * 3, (0.5,) * 3, "l1_squared")
    factors = start((6, 5, 4), 3)
    values = [asked.penalty(factors)]
    for _ in range(30):
        factors = rescaled(asked, factors)
        values.append(asked.penalty(factors))
    assert (np.diff(values) <= 1e-12).all()
    assert abs(values[-1] - values[-2]) < 1e-9 * values[-1]


def test_what_a_method_remembers_is_scaled_along() -> None:
    asked = problem((0.1,) * 3, (0.5,) * 3)
    factors = start((6, 5, 4), 3)
    kept = [Memory(previous=A + 1.0) for A in factors]
    scaled, memory = rescale_all(factors, kept, best_scales(asked, factors))
    for A, after, before, old in zip(scaled, memory, factors, kept, strict=True):
        assert after.previous is not None
        assert old.previous is not None
        np.testing.assert_allclose(after.previous / old.previous, np.broadcast_to((A / before)[:1], A.shape))


@pytest.mark.parametrize("method", METHODS)
def test_a_rescaled_run_ends_balanced(method: str) -> None:
    """α s² ‖a‖² + β s ‖a‖₁ is the same in every mode for every component that is alive."""
    X = planted(3).tensor
    result = run(X, method=method, penalty="l1", rescale=True, alpha=0.05, beta=0.05, iterations=30)
    shares = np.array([0.05 * np.square(A).sum(axis=0) + 0.05 * A.sum(axis=0) for A in result.factors])
    alive = result.weights > 1e-9
    assert alive.any()
    assert np.ptp(shares[:, alive], axis=0).max() < 1e-8 * shares.max()


def test_a_vanished_component_and_a_free_mode_are_left_alone() -> None:
    factors = start((6, 5, 4), 3)
    factors[1][:, 2] = 0
    scales = best_scales(problem((0.1,) * 3, (0.5,) * 3), factors)
    assert (scales[:, 2] == 1).all()
    assert (best_scales(problem((0.0,) * 3, (0.5, 0.0, 0.5)), factors) == 1).all()


def test_without_a_penalty_a_scale_that_drifted_is_brought_back_and_a_faint_component_ends() -> None:
    asked = problem((0.0,) * 3, (0.0,) * 3)
    factors = start((6, 5, 4), 3)
    assert scales_after_sweep(asked, factors, [column_sizes(A) for A in factors]) is None
    factors[0] *= [1e50, 1e-30, 1.0]
    factors[2][:, 0] *= 1e-50
    scales = scales_after_sweep(asked, factors, [column_sizes(A) for A in factors])
    assert scales is not None
    np.testing.assert_allclose(scales.prod(axis=0), [1.0, 0.0, 1.0])
    norms = [np.linalg.norm(A * s, axis=0) for A, s in zip(factors, scales, strict=True)]
    np.testing.assert_allclose(norms[0], norms[2])


@given(length=st.integers(1, 500), single=st.booleans(), seed=st.integers(0, 99))
def test_the_size_of_a_column_bounds_its_norm_and_shows_what_is_not_a_number(
    length: int, single: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    A: Array = (random.random((length, 3)) * [1e-3, 1.0, 1e3]).astype(np.float32 if single else np.float64)
    expected = A.max(axis=0).astype(np.float64) * np.sqrt(length)
    assert np.array_equal(column_sizes(A), expected)
    assert (column_sizes(A) >= np.linalg.norm(A, axis=0)).all()
    A[random.integers(length), 1] = np.nan
    assert np.array_equal(np.isnan(column_sizes(A)), [False, True, False])

"""Objective and relative error are right down to a perfect fit, and cost no reconstruction."""

import numpy as np
import pytest

from sparse_ncp.solvers import synthetic
from sparse_ncp.solvers.tensor.products import Array, Float64
from tests.solvers.literal import relative_error
from tests.solvers.problems import run, start


def noisy(level: float, dtype: type = np.float64, shape: tuple[int, ...] = (40, 30, 20)) -> tuple[Array, list[Float64]]:
    """A rank-3 tensor whose exact factors have the relative error `level`, and those factors."""
    random = np.random.default_rng(0)
    made = synthetic.planted(shape, 3, snr_db=300)
    noise = random.standard_normal(shape)
    X = made.tensor + noise * (level * np.linalg.norm(made.tensor) / np.linalg.norm(noise))
    return np.maximum(X, 0).astype(dtype), made.factors


@pytest.mark.parametrize("level", [1e-1, 1e-2, 3e-3, 1e-3])
def test_the_relative_error_is_right_to_nine_digits(level: float) -> None:
    X, factors = noisy(level)
    result = run(X, rank=3, method="anls-bpp", iterations=5, initial=factors, alpha=0.0)
    assert result.relative_error == pytest.approx(relative_error(X, result.factors), rel=1e-9)


@pytest.mark.parametrize("level", [1e-4, 1e-6, 1e-9, 1e-12])
def test_near_a_perfect_fit_the_streamed_residual_takes_over(level: float) -> None:
    X, factors = noisy(level)
    result = run(X, rank=3, method="anls-bpp", iterations=5, initial=factors, alpha=0.0)
    # At 1e-12 the model itself is only known to rounding, about 1e-16 per entry.
    assert result.relative_error == pytest.approx(relative_error(X, result.factors), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("level", [1e-1, 1e-2, 1e-3, 1e-5])
def test_single_precision_is_measured_in_double(level: float) -> None:
    X, factors = noisy(level, np.float32)
    result = run(X, rank=3, method="anls-bpp", iterations=5, initial=factors, alpha=0.0)
    exact = relative_error(X.astype(np.float64), [A.astype(np.float64) for A in result.factors])
    # MTTKRPs carry 6e-8; the accelerated formula divides that by the squared relative error, at worst (1e-2)².
    assert result.relative_error == pytest.approx(exact, rel=2e-3, abs=1e-7)


def test_an_exact_tensor_is_fitted_to_rounding() -> None:
    random = np.random.default_rng(1)
    A, B, C = (random.random((length, 2)) for length in (6, 5, 4))
    X = np.einsum("ir,jr,kr->ijk", A, B, C)
    result = run(X, rank=2, method="anls-bpp", iterations=300, alpha=0.0, initial=start(X.shape, 2))
    assert 0 <= result.relative_error < 1e-6
    assert np.isfinite(result.history.objective).all()

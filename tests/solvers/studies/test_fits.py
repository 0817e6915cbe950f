"""Fits without a penalty: to the observed entries alone, whatever values the missing ones have."""

import numpy as np
import pytest

from sparse_ncp.solvers import Settings, metrics, solve
from sparse_ncp.solvers.studies.fitting import fits
from sparse_ncp.solvers.studies.fitting.noise import Clipped, Counts
from tests.solvers.studies.planted import factors, made, signal


@pytest.mark.parametrize("shape", [(20, 16), (20, 16, 12), (9, 8, 7, 6), (5, 4, 6, 3, 4), (20, 16, 1), (9, 1, 8, 1)])
def test_the_error_is_that_of_the_model_and_falls(shape: tuple[int, ...]) -> None:
    X, start = fits.model(factors(3, shape)), tuple(factors(4, shape, seed=1))
    data, before = fits.Data(X), np.inf
    for sweeps in (1, 4, 12):
        found = fits.descend(data, start, sweeps, 0.0)
        assert found.error == pytest.approx(float(np.square(X - fits.model(found.factors)).sum()), rel=1e-6)
        assert found.error < before
        assert min(A.min() for A in found.factors) >= 0
        before = found.error


def test_a_fit_around_holes_has_the_fixed_points_of_a_fit_to_the_observed_entries() -> None:
    tensor, true = made("holes")
    observed = ~np.isnan(tensor)
    data = fits.Data(np.where(observed, tensor, 0.0), observed)
    found = fits.descend(data, tuple(A + 0.1 for A in true), 500, 1e-12).factors
    solved = solve(tensor, Settings.recommended(rank=3, missing="nan", negative="keep"), initial=true).factors
    exact = tuple(A.astype(np.float64) for A in solved)
    errors = [float(np.square((tensor - fits.model(model))[observed]).sum()) for model in (found, exact)]
    assert errors[0] == pytest.approx(errors[1], rel=1e-4)
    assert metrics.factor_match_score(found, exact) > 0.999


def test_clipped_readings_are_fitted_as_if_they_had_not_been_clipped() -> None:
    """Fitted as zeros, they pull the model down where the signal is faint."""
    exact = signal(factors(3)) * 0.5
    noisy = exact + 0.3 * np.random.default_rng(0).standard_normal(exact.shape)
    start = tuple(factors(3))
    free, censored, plain = (
        fits.model(fits.descend(data, start, 200, 1e-9).factors)
        for data in (fits.Data(noisy), fits.Data(noisy.clip(0), deviation=0.3), fits.Data(noisy.clip(0)))
    )
    errors = [float(np.linalg.norm(found - exact)) for found in (free, censored, plain)]
    assert errors[0] < errors[1] < 1.5 * errors[0]
    assert errors[1] < 0.75 * errors[2]


def test_clipped_readings_are_completed_below_zero() -> None:
    exact = signal(factors(3))
    X = np.maximum(0.0, exact + 0.2 * np.random.default_rng(0).standard_normal(exact.shape))
    filled = fits.Data(X, deviation=0.2).completed(exact)
    assert (filled[X == 0] < 0).all()
    assert np.array_equal(filled[X > 0], X[X > 0])
    assert abs(float((filled - exact).mean())) < 0.005  # so that clipping makes no background


@pytest.mark.parametrize("noise", ["counts", "count holes"])
def test_the_deviance_of_counts_falls_below_that_of_least_squares(noise: str) -> None:
    tensor, _ = made(noise)
    observed = ~np.isnan(tensor)
    X = np.where(observed, tensor, 0.0) / np.sqrt(np.nanmean(np.square(tensor)))
    data = fits.Data(X, None if observed.all() else observed)
    kind = Counts.estimate(data.entries, data.entries, 0)
    squares = fits.descend(data, tuple(factors(3, X.shape, seed=1)), 60, 0.0).factors
    likeliest = fits.descend_deviance(data, squares, 100, kind)
    lower, higher = (kind.loss(data.entries, data.select(fits.model(A)), data.entries) for A in (likeliest, squares))
    assert lower < higher


def test_samples_are_taken_with_what_is_missing_in_them() -> None:
    tensor = made("holes")[0]
    observed = ~np.isnan(tensor)
    data = fits.Data(np.where(observed, tensor, 0.0), observed, deviation=0.1)
    taken = data.take(np.array([3, 3, 5]))
    assert taken.observed is not None
    assert np.array_equal(taken.observed, observed[[3, 3, 5]])
    assert np.array_equal(taken.X, data.X[[3, 3, 5]])
    out = observed & (np.random.default_rng(0).random(observed.shape) < 0.1)
    rest = data.without(out)
    assert rest.entries.size == data.entries.size - out.sum()
    assert not rest.X[out].any()


def test_the_level_of_clipped_noise_is_found_again() -> None:
    exact = signal(factors(3, (40, 30, 20)))
    X = np.maximum(0.0, exact + 0.2 * np.random.default_rng(0).standard_normal(exact.shape))
    assert Clipped.estimate(X.ravel(), exact.ravel(), 0).deviation == pytest.approx(0.2, rel=0.05)

"""Fits without a penalty: the same whatever a tensor's size makes of the products."""

import numpy as np
import pytest

from sparse_ncp.solvers.studies.fitting import fits
from sparse_ncp.solvers.studies.fitting.noise import Clipped, Counts
from sparse_ncp.solvers.tensor.threads import Threads
from tests.solvers.studies.planted import factors, made


@pytest.mark.parametrize("shape", [(20, 16), (20, 16, 12), (9, 8, 7, 6)])
def test_small_tensors_are_fitted_as_large_ones_are(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    X, start = fits.model(factors(3, shape)), tuple(factors(4, shape, seed=1))
    with Threads(2) as pool:
        small = fits.descend(fits.Data.of(X, "clipped", pool), start, 12, 0.0, Clipped(0.1))
        monkeypatch.setattr(fits, "SMALL", 0)
        large = fits.descend(fits.Data.of(X, "clipped", pool), start, 12, 0.0, Clipped(0.1))
    assert small.error == pytest.approx(large.error, rel=1e-6)
    assert fits.model(small.factors) == pytest.approx(fits.model(large.factors), rel=1e-6, abs=1e-9)
    assert small.error == pytest.approx(float(np.square(X - fits.model(small.factors)).sum()), rel=1e-6)


def test_the_deviance_of_counts_falls_below_that_of_least_squares() -> None:
    X, _ = made("counts")
    X = X / np.sqrt(np.square(X).mean())
    with Threads(1) as pool:
        data = fits.Data.of(X, "counts", pool)
        noise = Counts.estimate(X, X, 0)
        squares = fits.descend(data, tuple(factors(3, X.shape, seed=1)), 60, 0.0)
        likeliest = fits.descend_deviance(data, squares.factors, 100, noise)
    lower, higher = (noise.loss(X, fits.model(found), X) for found in (likeliest, squares.factors))
    assert lower < higher

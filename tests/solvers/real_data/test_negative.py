"""Negative readings, kept: every method but mu fits them as they are, and every promise holds."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.optimize import nnls

from sparse_ncp.solvers import METHODS, InvalidInput, Settings, metrics, solve, synthetic
from sparse_ncp.solvers.bcd.penalties import beta_for, weights_for
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.problems import against_advice, kkt_residual
from tests.solvers.real_data.patterns import holed, missing_in, model

SIGNED = [name for name, method in METHODS.items() if method.signed]
PLANTED = synthetic.planted((20, 15, 12), 3, snr_db=np.inf, seed=2)
# Noise of mean zero, as instruments have it: a third of the entries of this sparse tensor are negative.
X = PLANTED.tensor + 0.02 * PLANTED.tensor.std() * np.random.default_rng(0).standard_normal(PLANTED.tensor.shape)


def kept(iterations: int = 100, **fields: Any) -> Settings:
    stop = {"max_iterations": iterations, "tolerance": 0.0}
    return Settings(**{"rank": 3, "negative": "keep", "stop": stop, "init": "random_scaled", **fields})


def test_only_mu_cannot_keep_them_and_the_error_is_at_the_method() -> None:
    assert {*METHODS} - {*SIGNED} == {"mu"}
    with pytest.raises(ValidationError) as refusal:
        kept(method="mu")
    assert refusal.value.errors()[0]["loc"] == ("method",)
    with pytest.raises(InvalidInput, match=r"are negative.*negative='keep'.*sparse_ncp\.clip"):
        solve(X, kept(method="hals", negative="refuse"))


def test_a_tensor_without_a_positive_entry_has_nothing_to_decompose() -> None:
    with pytest.raises(InvalidInput, match="all entries are negative or zero"):
        solve(-np.abs(X), kept(method="hals"))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("negative", "said"), [(0, None), (400, None), (800, "40 %"), (1996, "99.8 %")])
def test_many_negative_entries_are_noted_in_the_result(negative: int, said: str | None, dtype: Any) -> None:
    random = np.random.default_rng(0)
    signed = np.arange(1.0, 2001.0) / 1000
    signed[:negative] *= -1e-3
    tensor = random.permutation(np.append(signed, np.full(400, np.nan))).reshape(24, 10, 10)
    settings = kept(method="hals", rank=1, iterations=2, missing="nan")
    result = solve(tensor.astype(dtype), settings)
    noted = [warning for warning in result.warnings if "of the entries are negative" in warning]
    assert len(noted) == (said is not None)
    assert all(warning.startswith(f"{said} of the entries") for warning in noted)


@against_advice
@pytest.mark.parametrize("fields", [{}, {"beta": 0.3}, {"beta": 0.3, "rescale": True}, {"init": "nndsvd"}])
@pytest.mark.parametrize("method", SIGNED)
@pytest.mark.parametrize("gaps", [False, True])
def test_the_objective_is_that_of_the_readings_and_never_rises(method: str, fields: Any, gaps: bool) -> None:
    missing = missing_in("uneven", X.shape) if gaps else np.zeros(X.shape, bool)
    result = solve(holed(X, missing), kept(method=method, missing="nan", **fields), threads=1)
    residual = np.linalg.norm((X - model(result.factors))[~missing])
    np.testing.assert_allclose(result.relative_error, residual / np.linalg.norm(X[~missing]), rtol=1e-9)
    noise = 1e-14 * np.square(X).sum()
    if METHODS[method].monotone:
        assert all(after <= before + noise for before, after in pairwise(result.history.objective[1:]))
    assert all((A >= 0).all() for A in result.factors)


@pytest.mark.parametrize("fields", [{}, {"sparsity": 0.02}, {"sparsity": "auto"}, {"accelerate": "compress"}])
def test_the_recommended_setting_finds_the_components(fields: dict[str, Any]) -> None:
    result = solve(X, Settings.recommended(3, negative="keep", **fields), threads=1)
    assert metrics.factor_match_score(result.factors, PLANTED.factors) > 0.99


def test_lost_components_are_put_back() -> None:
    result = solve(X, Settings.recommended(6, negative="keep", beta=0.05), threads=1)
    assert result.nonzero_components.all_modes >= 3
    assert result.relative_error < 0.1


def test_an_end_at_zero_says_below_which_beta_it_is_not() -> None:
    result = solve(X, Settings.recommended(3, negative="keep", beta=1e4), threads=1)
    assert not result.weights.any()
    assert any(
        "every component is zero" in warning and "one lowers the objective below" in warning
        for warning in result.warnings
    )


def test_a_sparsity_takes_negative_entries_as_zero() -> None:
    positive = np.maximum(X, 0)
    with Threads(1) as pool:
        weights = weights_for(kept(method="hals"), prepare_tensor(X, None, pool, negative="keep"), 0.02)
    norm = float(np.linalg.norm(positive))
    assert weights.beta == pytest.approx((beta_for(0.02 * norm, positive.sum() / norm, 3),) * 3)
    assert weights.alpha == pytest.approx((1e-6 * norm ** (4 / 3),) * 3)


def test_keeping_them_is_unbiased_where_clipping_is_not() -> None:
    """A component that is zero in half of its rows, under noise around zero: clipped noise has a positive mean."""
    random = np.random.default_rng(4)
    A, B = np.repeat([[1.0], [0.0]], 40, axis=0), np.ones((50, 1))
    noisy = A @ B.T + 0.5 * random.standard_normal((80, 50))
    fits = [
        solve(tensor, kept(rank=1, method="anls-bpp", penalty="l1"), threads=1)
        for tensor in (noisy, np.maximum(noisy, 0))
    ]
    rows = [model(fit.factors)[40:].mean() for fit in fits]
    assert rows[0] < 0.1 < rows[1]


def test_a_block_with_a_negative_mttkrp_is_solved_exactly() -> None:
    random = np.random.default_rng(5)
    B = random.random((30, 3))
    tensor = random.standard_normal((10, 30))
    result = solve(tensor, kept(method="anls-bpp", alpha=0.0), fixed={2: B}, threads=1)
    expected = np.array([nnls(B, row)[0] for row in tensor])
    np.testing.assert_allclose(result.factors[0], expected, atol=1e-8)


@pytest.mark.parametrize("method", [name for name in SIGNED if METHODS[name].exact])
def test_a_run_ends_at_a_stationary_point(method: str) -> None:
    wanted = kept(3000, method=method, penalty="l1", beta=0.1, rescale=True)
    assert kkt_residual(X, solve(X, wanted, threads=1).factors, wanted) < 1e-6

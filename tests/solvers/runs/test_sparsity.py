"""A sparsity without units: the same components whatever the tensor is measured in."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from sparse_ncp.solvers import Settings, metrics, solve, synthetic
from tests.solvers.problems import against_advice

MADE = synthetic.planted((24, 20, 18), rank=4, snr_db=30.0)
X = MADE.tensor


@pytest.mark.parametrize("accelerate", ["none", "compress"])
def test_a_tensor_in_other_units_has_the_same_components(accelerate: str) -> None:
    results = [
        solve(X * unit, Settings.recommended(8, sparsity=0.03, accelerate=accelerate)) for unit in (1e-6, 1.0, 1e6)
    ]
    assert {result.nonzero_components.all_modes for result in results} == {4}
    small, one, large = results
    for other, unit in ((small, 1e-6), (large, 1e6)):
        assert other.relative_error == pytest.approx(one.relative_error, rel=1e-5)
        assert other.objective == pytest.approx(one.objective * unit**2, rel=1e-5)
        assert other.weights / unit == pytest.approx(one.weights, rel=1e-2, abs=1e-4 * one.weights.max())
        assert metrics.factor_match_score(other.factors, one.factors) > 0.49  # of 8 columns, 4 are zero


@pytest.mark.parametrize("order", [2, 3, 4])
def test_components_below_that_share_go(order: int) -> None:
    """Orthogonal components of known weights: those clearly above the share stay, those clearly below go."""
    shares, length = np.array([0.5, 0.2, 0.02, 0.005]), 40
    factors = [np.kron(np.eye(4), np.ones((length // 4, 1))) / np.sqrt(length / 4) for _ in range(order)]
    letters = "ijkl"[:order]
    product = ",".join(f"{letter}r" for letter in letters) + f",r->{letters}"
    tensor = np.einsum(product, *factors, shares / np.linalg.norm(shares))
    result = solve(tensor, Settings.recommended(4, sparsity=0.06))
    assert result.nonzero_components.all_modes == 2
    everything = solve(tensor, Settings.recommended(4, sparsity=0.001))
    assert everything.nonzero_components.all_modes == 4


def test_the_result_has_the_resolved_weights() -> None:
    result = solve(X, Settings.recommended(4, sparsity=0.02))
    again = solve(X, Settings.recommended(4, alpha=result.resolved.alpha, beta=result.resolved.beta))
    assert result.resolved.penalty == "l1"
    assert result.resolved.init == "random_scaled"
    assert again.history.objective == result.history.objective
    assert result.resolved.alpha == pytest.approx((1e-6 * np.linalg.norm(X) ** (4 / 3),) * 3)


def test_auto_leaves_the_planted_components_and_drops_the_noise() -> None:
    for snr_db in (10.0, 30.0):
        tensor = synthetic.planted((24, 20, 18), rank=4, snr_db=snr_db).tensor
        result = solve(tensor, Settings.recommended(8, sparsity="auto"))
        assert result.resolved.beta[0] > 0
        assert 3 <= result.nonzero_components.all_modes <= 4


def test_auto_is_more_for_more_noise() -> None:
    betas = [
        solve(synthetic.planted((24, 20, 18), 4, snr_db=snr_db).tensor, Settings.recommended(8, sparsity="auto"))
        for snr_db in (0.0, 40.0)
    ]
    assert betas[0].resolved.beta[0] > betas[1].resolved.beta[0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sparsity": 0.02, "beta": 0.1}, "cannot be combined with beta"),
        ({"sparsity": 0.02, "beta": (0.0, 0.1, 0.0)}, "cannot be combined with beta"),
        ({"sparsity": 0.02, "penalty": "l1_squared"}, "needs the plain penalty"),
        ({"sparsity": 0.0}, "greater than 0"),
        ({"sparsity": 1.0}, "less than 1"),
        ({"sparsity": "much"}, "auto"),
        ({"sparsity": True}, "must be a number"),
    ],
)
def test_what_does_not_go_with_a_sparsity_is_refused_at_its_field(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words) as refusal:
        Settings.recommended(4, **fields)
    assert refusal.value.errors()[0]["loc"][0] == "sparsity"


def test_the_methods_own_squared_penalty_is_refused_too() -> None:
    with pytest.raises(ValidationError, match="needs the plain penalty"):
        Settings(rank=4, method="anls-bpp", sparsity=0.02)


@against_advice
@pytest.mark.parametrize("method", ["mu", "hals", "apg"])
def test_a_sparsity_goes_with_every_method_of_the_plain_penalty(method: str) -> None:
    result = solve(X, Settings(rank=4, method=method, sparsity=0.02, stop={"max_iterations": 20}))
    assert np.isfinite(result.objective)
    assert result.resolved.beta[0] > 0

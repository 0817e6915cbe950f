"""Kinds of noise: recognised, estimated, simulated, and distinguished by their residuals."""

from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import pytest

from sparse_ncp.solvers.studies.fitting import noise
from sparse_ncp.solvers.studies.rule import Residuals
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.studies.planted import factors, made, signal

EXACT = signal(factors(3, (40, 30, 20)))
KINDS: list[noise.Noise] = [
    noise.Gaussian((0.5, 1.5), (0.01, 0.04, 0.09)),
    noise.Clipped(0.2),
    noise.Counts(0.05),
]


def drawn(kind: noise.Noise, seed: int = 0) -> Float64:
    return kind.simulate(EXACT, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_residuals_of_the_right_noise_are_standard_normal(kind: noise.Noise) -> None:
    found = Residuals.of(drawn(kind), EXACT, kind, np.random.default_rng(1))
    assert found.misfit() is None
    assert max(map(abs, found.correlations)) < 0.03
    assert abs(found.kurtosis) < 0.15
    assert 0.9 < found.lowest_variance <= found.highest_variance < 1.1


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.kind)
def test_residuals_of_another_noise_are_not(kind: noise.Noise) -> None:
    wrong = noise.Clipped(0.1) if kind.kind == "counts" else noise.Counts(0.2)
    assert Residuals.of(drawn(kind), EXACT, wrong, np.random.default_rng(1)).misfit() is not None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_level_is_found_again(kind: noise.Noise) -> None:
    found = noise.estimate(kind.kind, drawn(kind), EXACT, parameters=0)
    assert np.allclose(found.variance(EXACT).mean(), kind.variance(EXACT).mean(), rtol=0.05)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_true_model_has_a_lower_loss_than_any_other_of_its_size(kind: noise.Noise) -> None:
    X, variance = drawn(kind), kind.variance(EXACT)
    for factor in (0.9, 1.1):
        assert kind.loss(X, EXACT, variance) < kind.loss(X, factor * EXACT, variance)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_noise_is_saved_and_restored(kind: noise.Noise) -> None:
    assert noise.from_fields(asdict(kind)) == kind


def test_clipped_readings_are_completed_below_zero() -> None:
    X, kind = drawn(KINDS[1]), noise.Clipped(0.2)
    filled = kind.completed(X, EXACT)
    assert (filled[X == 0] < 0).all()
    assert np.array_equal(filled[X > 0], X[X > 0])
    assert abs(float((filled - EXACT).mean())) < 0.005  # so that clipping makes no background


@pytest.mark.parametrize(
    ("convert", "kind"),
    [
        (lambda X: X, "counts"),
        (lambda X: 3.7e-6 * X, "counts"),
        (lambda X: (1.1 * X).astype(np.float32).astype(np.float64), "counts"),
        (lambda X: X + 0.1 * np.random.default_rng(0).random(X.shape), "gaussian"),
        (lambda X: np.where(X > 0, X + np.random.default_rng(0).random(X.shape), 0), "clipped"),
        (np.ones_like, "gaussian"),
    ],
)
def test_entries_reveal_their_kind(convert: Callable[[Float64], Float64], kind: str) -> None:
    X = made("counts")[0]
    assert (X == 0).mean() > noise.CLIPPED_SHARE
    assert noise.likely_kind(convert(X)) == kind


def test_an_overfit_is_not_taken_for_less_noise_than_there_is() -> None:
    X = drawn(KINDS[0])
    whole, half = (noise.Gaussian.estimate(X, EXACT, parameters) for parameters in (0, X.size // 2))
    assert half.variances == pytest.approx([2 * variance for variance in whole.variances])

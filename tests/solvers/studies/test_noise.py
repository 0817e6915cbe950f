"""Kinds of noise: recognised, estimated, and distinguished by their residuals."""

from collections.abc import Callable

import numpy as np
import pytest

from sparse_ncp.solvers.studies.evidence.residuals import Residuals
from sparse_ncp.solvers.studies.fitting import noise
from sparse_ncp.solvers.studies.fitting.candidates import Judge
from sparse_ncp.solvers.studies.fitting.fits import Data, model
from sparse_ncp.solvers.studies.fitting.levels import first_overfit, separable_variance
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.studies.planted import factors, made, signal

TRUE = tuple(
    A / np.sqrt(np.square(model(factors(3, (40, 30, 20)))).mean()) ** (1 / 3) for A in factors(3, (40, 30, 20))
)
EXACT = signal(factors(3, (40, 30, 20)))
KINDS: list[noise.Noise] = [
    noise.Gaussian((0.5, 1.5), (0.01, 0.04, 0.09)),
    noise.Clipped(0.2),
    noise.Counts(0.05),
]


def drawn(kind: noise.Noise, seed: int = 0) -> Float64:
    random = np.random.default_rng(seed)
    if isinstance(kind, noise.Counts):
        return np.asarray(kind.unit * random.poisson(EXACT / kind.unit), np.float64)
    noisy = EXACT + np.sqrt(kind.variance(EXACT)) * random.standard_normal(EXACT.shape)
    return np.maximum(0.0, noisy) if isinstance(kind, noise.Clipped) else noisy


def residuals(kind: noise.Noise, X: Float64, observed: np.ndarray | None = None) -> Residuals:
    data = Data(X, observed)
    return Residuals.of(Judge(data, kind, kind.variance(data.select(EXACT))), TRUE, np.random.default_rng(1))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_residuals_of_the_right_noise_are_standard_normal(kind: noise.Noise, share: float) -> None:
    observed = np.random.default_rng(2).random(EXACT.shape) >= share
    found = residuals(kind, np.where(observed, drawn(kind), 0.0), observed)
    assert found.misfit() is None
    assert max(map(abs, found.correlations)) < 0.03
    assert abs(found.kurtosis) < 0.25  # of 12,000 readings, whose variance differs from 1 by two percent


def test_correlated_residuals_are_found_around_holes_too() -> None:
    """With half of the entries missing a quarter of the pairs are left, which count as they are."""
    slow = np.repeat(np.random.default_rng(0).standard_normal((20, 30, 20)), 2, axis=0)
    observed = np.random.default_rng(2).random(EXACT.shape) >= 0.5
    found = residuals(noise.Gaussian((), (0.01,)), np.where(observed, EXACT + 0.1 * slow, 0.0), observed)
    assert found.correlations[0] == pytest.approx(0.5, abs=0.1)
    assert "along mode 1 correlate" in str(found.misfit())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_level_is_found_again(kind: noise.Noise) -> None:
    found = noise.estimate(kind.kind, drawn(kind), EXACT, parameters=0)
    assert np.allclose(found.variance(EXACT).mean(), kind.variance(EXACT).mean(), rtol=0.05)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_true_model_has_a_lower_loss_than_any_other_of_its_size(kind: noise.Noise) -> None:
    X, variance = drawn(kind), kind.variance(EXACT)
    for factor in (0.9, 1.1):
        assert kind.loss(X, EXACT, variance) < kind.loss(X, factor * EXACT, variance)


def test_faint_entries_do_not_weigh_without_bound() -> None:
    """Multiplicative noise has no variance where the model is zero."""
    X = EXACT * np.random.default_rng(0).gamma(25, 1 / 25, EXACT.shape)
    variances = noise.Gaussian.estimate(X.ravel(), EXACT.ravel(), 0).variances
    assert 0.045 < min(variances) / np.mean(variances) < 0.055


@pytest.mark.parametrize(
    ("convert", "kind"),
    [
        (lambda X: X, "counts"),
        (lambda X: 3.7e-6 * X, "counts"),
        (lambda X: (1.1 * X).astype(np.float32).astype(np.float64), "counts"),
        (lambda X: X + 0.1 * np.random.default_rng(0).random(X.shape), "gaussian"),
        (lambda X: X - 1, "gaussian"),
        (lambda X: np.where(X > 0, X + np.random.default_rng(0).random(X.shape), 0), "clipped"),
        (lambda X: np.where(X > 0, X + np.random.default_rng(0).random(X.shape), 0) - 1e-9, "gaussian"),
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


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_levels_of_every_mode_are_found_again(share: float) -> None:
    random = np.random.default_rng(0)
    levels = [np.exp(random.normal(0, 0.7, length)) for length in (30, 20, 16)]
    levels = [level / np.exp(np.log(level).mean()) for level in levels]
    squares = model([level[:, None] for level in levels]) * np.square(random.standard_normal((30, 20, 16)))
    observed = random.random(squares.shape) >= share
    found = separable_variance(squares, observed)
    for level, estimated in zip(levels, found, strict=True):
        assert np.abs(np.log(estimated / level)).max() < 0.35


@pytest.mark.parametrize("is_clipped", [False, True])
def test_a_scaled_tensor_has_noise_of_one_level_and_the_same_components(is_clipped: bool) -> None:
    random = np.random.default_rng(0)
    levels = np.geomspace(0.05, 0.5, 30)[random.permutation(30)]
    X = EXACT + levels[:, None] * random.standard_normal(EXACT.shape)
    X = np.maximum(0.0, X) if is_clipped else X
    scaling, data, fit = first_overfit(Data(X), 6, is_clipped, True, random)
    relative = scaling.deviations[1] / levels
    assert relative.max() / relative.min() < 1.6
    assert np.square(data.X).mean() == pytest.approx(1)
    restored = model(scaling.restore(fit.factors))
    assert np.linalg.norm(restored - EXACT) < 0.35 * np.linalg.norm(EXACT)
    assert model(scaling.restore(scaling.divide(fit.factors))) == pytest.approx(model(fit.factors))

"""Planted components are recovered from the observed entries."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from sparse_ncp.solvers import METHODS, Settings, metrics, solve, synthetic
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.scan import Booleans
from tests.solvers.problems import is_squared
from tests.solvers.real_data.patterns import PATTERNS, fibres, holed, missing_in, model, mttkrp, row_grams, scattered

PLANTED = synthetic.planted((50, 40, 30), 5, snr_db=30, seed=3)


@pytest.mark.parametrize(
    ("pattern", "share"), [(scattered(0.5), 0.5), (scattered(0.9), 0.9), (fibres, 0.3)], ids=["half", "most", "fibres"]
)
def test_planted_components_are_found_again(pattern: Any, share: float) -> None:
    missing = pattern(PLANTED.tensor.shape, np.random.default_rng(1))
    assert missing.mean() == pytest.approx(share, abs=0.05)
    result = solve(holed(PLANTED.tensor, missing), Settings.recommended(5, missing="nan"), threads=1)
    assert metrics.factor_match_score(result.factors, PLANTED.factors) > 0.99


def fluorescence() -> tuple[Float64, Booleans]:
    """Samples × emission × excitation of three compounds, and where first-order scatter lies: a band of all samples."""
    random = np.random.default_rng(2)
    emission, excitation = np.arange(250.0, 450.0, 2), np.arange(240.0, 301.0)
    peaks = [(300, 22, 285, 12), (350, 30, 278, 12), (284, 14, 268, 10)]
    spectra = np.array([np.exp(-(((emission - centre) / width) ** 2)) for centre, width, *_ in peaks]).T
    absorbed = np.array([np.exp(-(((excitation - centre) / width) ** 2)) for *_, centre, width in peaks]).T
    tensor = model([random.random((8, 3)) + 0.1, spectra, absorbed])
    return tensor, np.abs(emission[:, None] - excitation) <= 10


def test_a_band_of_scatter_that_is_masked_leaves_the_spectra_as_they_are() -> None:
    """The scatter is ten times the signal: left in, it is all that is fitted; as zeros, it bends the spectra."""
    tensor, band = fluorescence()
    noisy = np.maximum(tensor + 0.005 * np.random.default_rng(3).standard_normal(tensor.shape), 0)
    complete = solve(noisy, Settings.recommended(3), threads=1).factors
    scattered_light = np.where(band, 10 * tensor.max(), noisy)
    masked = solve(scattered_light, Settings.recommended(3), mask=~band[None], threads=1).factors
    zeroed = solve(np.where(band, 0.0, noisy), Settings.recommended(3), threads=1).factors
    assert metrics.factor_match_score(masked, complete) > 0.999
    assert metrics.factor_match_score(zeroed, complete) < 0.99


def value_and_gradient(
    x: Float64, X: Array, missing: Booleans, wanted: Settings, shapes: list[tuple[int, ...]]
) -> tuple[float, Float64]:
    """The masked objective of the definition, and its gradient, as functions of all factors one after the other."""
    ends = np.cumsum([np.prod(shape) for shape in shapes])
    factors = [part.reshape(shape) for part, shape in zip(np.split(x, ends[:-1]), shapes, strict=True)]
    alpha, beta, squared = float(wanted.alpha), float(wanted.beta), is_squared(wanted)  # type: ignore[arg-type]
    residual = np.where(missing, 0.0, X - model(factors))
    value, gradients = 0.5 * float(np.square(residual).sum()), []
    for mode, A in enumerate(factors):
        rows = A.sum(axis=1)
        value += alpha / 2 * np.square(A).sum() + beta * (np.square(rows).sum() / 2 if squared else rows.sum())
        G = row_grams(~missing, factors, mode)
        slope = np.einsum("ir,irs->is", A, G) - mttkrp(np.where(missing, 0.0, X), factors, mode)
        gradients.append(slope + alpha * A + beta * (rows[:, None] if squared else 1.0))
    return value, np.concatenate([gradient.ravel() for gradient in gradients])


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.exact])
@pytest.mark.parametrize("penalty", ["l1", "l1_squared"])
@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "uneven"])
def test_no_general_method_finds_a_lower_objective_from_the_end(method: str, penalty: Any, pattern: str) -> None:
    X = synthetic.planted((12, 10, 8), 3, snr_db=20, seed=5).tensor
    missing = missing_in(pattern, X.shape)
    stop = {"criterion": "relative_objective", "tolerance": 1e-13, "patience": 5, "max_iterations": 5000}
    wanted = Settings(rank=3, method=method, missing="nan", penalty=penalty, beta=0.1, rescale=True, stop=stop)
    result = solve(holed(X, missing), wanted, threads=1)
    x = np.concatenate([A.ravel() for A in result.factors])
    shapes = [A.shape for A in result.factors]
    arguments = X, missing, wanted, shapes
    assert value_and_gradient(x, *arguments)[0] == pytest.approx(result.objective, rel=1e-10)
    better = minimize(value_and_gradient, x, arguments, "L-BFGS-B", jac=True, bounds=[(0, None)] * len(x))
    assert better.fun > result.objective * (1 - 1e-7)


def test_missing_entries_cost_no_more_sweeps() -> None:
    """Imputation would need more: its steps get shorter as more entries are missing."""
    stop = {"criterion": "relative_objective", "tolerance": 1e-6, "patience": 5}
    wanted = Settings(
        rank=5, method="anls-bpp", penalty="l1", rescale=True, init="random_scaled", missing="nan", stop=stop
    )
    missing = scattered(0.5)(PLANTED.tensor.shape, np.random.default_rng(0))
    counts = [
        sum(solve(X, wanted.model_copy(update={"seed": seed}), threads=1).iterations for seed in range(6))
        for X in (PLANTED.tensor, holed(PLANTED.tensor, missing))
    ]
    assert counts[1] < 1.3 * counts[0]

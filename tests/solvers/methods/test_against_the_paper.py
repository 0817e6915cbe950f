"""Sweep by sweep, every method does what the paper's algorithm says."""

import itertools
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import METHODS, Settings, solve, sweeps
from sparse_ncp.solvers.methods import anls_hybrid
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.literal import Literal, objective, relative_error
from tests.solvers.problems import SHAPES, against_advice, is_squared, per_mode, planted, start

pytestmark = against_advice
SWEEPS = 12
# Rounding grows from sweep to sweep where a Gram is ill-conditioned; over twelve sweeps never beyond this.
TOLERANCE = 1e-8
# Where MU keeps the entries that the paper lets fall to zero.
FLOOR = 1e-29

PENALTIES: dict[str, dict[str, Any]] = {
    "unpenalised": {"alpha": 1e-6, "beta": 0.0},
    "sparse": {"alpha": 1e-6, "beta": 0.3},
    "per mode": {"alpha": (0.2, 1e-3, 0.5, 0.1, 0.3), "beta": (0.3, 0.1, 0.2, 0.05, 0.4)},
    "large alpha": {"alpha": 2.0, "beta": 0.1},
}


def compare(X: Float64, fields: dict[str, Any]) -> None:
    settings = Settings(rank=4, stop={"max_iterations": SWEEPS, "tolerance": 0.0}, **fields)
    initial = start(X.shape, 4)
    alpha, beta = per_mode(settings.alpha, X.ndim), per_mode(settings.beta, X.ndim)
    plain = Literal(
        X,
        [A.copy() for A in initial],
        alpha,
        beta,
        is_squared(settings),
        normalise=settings.normalise is not False,
        delta_omega=settings.delta_omega or 0.9999,
        inner_passes=settings.inner_passes,
    )
    expected = itertools.islice(plain.sweeps(settings.method), SWEEPS)
    for state, factors in zip(sweeps(X, settings, initial=initial), expected, strict=True):
        for ours, literal in zip(state.factors, factors, strict=True):
            np.testing.assert_allclose(ours, literal, rtol=0, atol=TOLERANCE * np.abs(literal).max() + FLOOR)
        assert state.history.objective[-1] == pytest.approx(
            objective(X, factors, alpha, beta, is_squared(settings)), rel=1e-8
        )
        assert state.history.relative_error[-1] == pytest.approx(relative_error(X, factors), rel=1e-8)


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("order", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_a_method_follows_the_papers_algorithm(method: str, order: int, penalty: str) -> None:
    fields = {name: value[:order] if isinstance(value, tuple) else value for name, value in PENALTIES[penalty].items()}
    compare(planted(order).tensor, {"method": method, **fields})


@pytest.mark.parametrize("method", METHODS)
def test_the_other_penalty_follows_the_definition_too(method: str) -> None:
    other = "l1" if METHODS[method].penalty == "l1_squared" else "l1_squared"
    compare(planted(3).tensor, {"method": method, "penalty": other, "beta": 0.3})


@pytest.mark.parametrize("penalty", ["l1", "l1_squared"])
def test_the_hybrid_makes_passes_of_hals_in_long_modes_and_exact_steps_in_the_others(
    penalty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anls_hybrid, "LONG", 7)  # two of three modes
    monkeypatch.setattr(Literal, "sweeps", lambda self, _: self.hybrid(long=7, passes=3))
    compare(planted(3).tensor, {"method": "anls-hybrid", "penalty": penalty, "beta": 0.3})


def test_hals_without_normalisation_keeps_the_norms() -> None:
    compare(planted(3).tensor, {"method": "hals", "normalise": False, "beta": 0.3})


@pytest.mark.parametrize("fields", [{"method": "mu"}, {"method": "hals"}, {"method": "hals", "normalise": False}])
def test_inner_passes_repeat_the_update_on_the_same_block(fields: dict[str, Any]) -> None:
    compare(planted(3).tensor, {"beta": 0.3, "inner_passes": 3, **fields})


def test_apg_with_more_passes_solves_its_block_further() -> None:
    """Many passes converge to the exact minimiser, as in ANLS with plain l1."""
    X = planted(3).tensor
    stop = {"max_iterations": 3, "tolerance": 0.0}
    exact = solve(X, Settings(rank=3, method="anls-bpp", penalty="l1", alpha=0.1, beta=0.3, stop=stop))
    distances = []
    for passes in (1, 30, 1000):
        many = solve(X, Settings(rank=3, method="apg", alpha=0.1, beta=0.3, inner_passes=passes, stop=stop))
        distances.append(max(np.abs(A - B).max() for A, B in zip(many.factors, exact.factors, strict=True)))
    assert distances[0] > distances[1] > distances[2]
    assert distances[2] < 1e-2 * distances[0]


def test_apg_bounds_its_extrapolation_by_delta_omega() -> None:
    compare(planted(3).tensor, {"method": "apg", "delta_omega": 0.3})


def test_apg_restarts_when_the_objective_rises() -> None:
    """In 300 sweeps momentum overshoots now and then; the literal algorithm counts how often it had to restart."""
    X = planted(3, snr_db=60).tensor
    plain = Literal(X, start(X.shape, 4), (1e-6,) * 3, (0.0,) * 3)
    for _ in itertools.islice(plain.sweeps("apg"), 300):
        pass
    assert plain.restarts > 0
    settings = Settings(rank=4, method="apg", stop={"max_iterations": 300, "tolerance": 0.0})
    *_, last = sweeps(X, settings, initial=start(X.shape, 4))
    assert np.diff(last.history.objective).max() <= 1e-14 * np.sum(X**2)

"""Every method keeps the promises of the registry, with every option that changes its path."""

from typing import Literal

import numpy as np
import pytest

from sparse_ncp.solvers import METHODS, Settings, State, sweeps
from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.methods import Method
from sparse_ncp.solvers.tensor.threads import Threads
from tests.solvers.literal import objective, relative_error
from tests.solvers.problems import (
    VARIANTS,
    Variant,
    against_advice,
    gradients,
    is_squared,
    kkt_residual,
    name_of,
    per_mode,
    planted,
    run,
    start,
)

pytestmark = against_advice
variants = pytest.mark.parametrize("variant", VARIANTS, ids=name_of)
X = planted(3).tensor


@variants
def test_factors_are_nonnegative_and_everything_is_finite(variant: Variant) -> None:
    result = run(X, **variant)
    for A, length in zip(result.factors, X.shape, strict=True):
        assert A.shape == (length, 4)
        assert np.isfinite(A).all()
        assert (A >= 0).all()
    assert np.isfinite([*result.history.objective, *result.history.relative_error, *result.weights]).all()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_method_changes_no_array_that_it_was_given(method: Method, rows: int, order: Literal["C", "F"]) -> None:
    random = np.random.default_rng(rows)
    B = random.random((9, 4))
    A, M, Q, previous = (
        np.asarray(given, order=order)
        for given in (random.random((rows, 4)), random.random((rows, 4)) + 1, B.T @ B, random.random((rows, 4)))
    )
    given = [array.copy() for array in (A, M, Q, previous)]
    memory = Memory(previous, {"t": 2.0, "L": 1.0})
    for normalise in (False, True):
        for update in filter(None, (method.update, method.fallback)):
            block = Block(Q, Q, M, 0.1, False, normalise, 0.9, passes=2, threads=Threads(1))
            update(A, block, memory)
    assert all(np.array_equal(now, before) for now, before in zip((A, M, Q, previous), given, strict=True))


@variants
def test_the_objective_never_rises_where_promised(variant: Variant) -> None:
    history = np.array(run(X, iterations=200, **variant).history.objective)
    if METHODS[variant["method"]].monotone:
        # Each value is right to a few units of rounding of ‖X‖², so a fall below that may look like a rise.
        assert np.diff(history).max() <= 1e-14 * np.sum(X**2)


@variants
def test_the_reported_numbers_are_those_of_the_factors(variant: Variant) -> None:
    result = run(X, **variant)
    settings = result.settings
    alpha, beta = per_mode(settings.alpha, 3), per_mode(settings.beta, 3)
    assert result.objective == pytest.approx(objective(X, result.factors, alpha, beta, is_squared(settings)), rel=1e-9)
    assert result.relative_error == pytest.approx(relative_error(X, result.factors), rel=1e-9)
    assert result.fit == 1 - result.relative_error
    assert result.weights == pytest.approx(np.prod([np.linalg.norm(A, axis=0) for A in result.factors], axis=0))


@variants
def test_the_same_seed_gives_the_same_bits_for_any_number_of_threads(variant: Variant) -> None:
    """Return a tensor large enough for every product to be split into pieces."""
    tensor = np.random.default_rng(3).random((90, 40, 30))
    runs = [run(tensor, iterations=3, threads=threads, seed=5, **variant) for threads in (1, 2, 5)]
    for other in runs[1:]:
        assert other.history.objective == runs[0].history.objective
        for ours, theirs in zip(runs[0].factors, other.factors, strict=True):
            assert ours.tobytes() == theirs.tobytes()


@variants
def test_a_resumed_run_is_the_uninterrupted_run(variant: Variant) -> None:
    settings = Settings(rank=4, stop={"max_iterations": 12, "tolerance": 0.0}, **variant)
    states = list(sweeps(X, settings))
    for interrupted in (states[0], states[6]):
        *_, last = sweeps(X, settings, resume=State.from_bytes(interrupted.to_bytes()))
        assert last.history.objective == states[-1].history.objective
        assert last.history.relative_error == states[-1].history.relative_error
        for ours, theirs in zip(last.factors, states[-1].factors, strict=True):
            assert ours.tobytes() == theirs.tobytes()


# Sweeps to convergence on this problem, and the residual reached there; MU is slow, the others are at rounding.
CONVERGENT = [v for v in VARIANTS if v["method"] not in {"als", "mu", "hals"} or "rescale" in v or "normalise" in v]


@pytest.mark.parametrize("variant", [v for v in CONVERGENT if v["method"] not in {"als", "mu"}], ids=name_of)
def test_a_converged_run_satisfies_the_optimality_conditions(variant: Variant) -> None:
    result = run(X, iterations=2500, alpha=1e-2, initial=start(X.shape, 4), **variant)
    assert kkt_residual(X, result.factors, result.settings) < 1e-6


@pytest.mark.parametrize("passes", [1, 5])
def test_mu_comes_near_the_optimality_conditions_slowly(passes: int) -> None:
    result = run(X, method="mu", iterations=3000, alpha=1e-2, beta=0.05, inner_passes=passes, initial=start(X.shape, 4))
    assert kkt_residual(X, result.factors, result.settings) < 1e-4


@pytest.mark.parametrize("beta", [0.0, 0.05])
def test_the_papers_hals_ends_at_the_optimum_over_unit_columns(beta: float) -> None:
    """For n < N the gradient may point along the column itself, which the unit sphere forbids; mode N is free."""
    result = run(X, method="hals", iterations=3000, alpha=1e-2, beta=beta, initial=start(X.shape, 4))
    scale = np.linalg.norm(X) ** 2
    *sphere, last = zip(result.factors, gradients(X, result.factors, result.settings), strict=True)
    for A, gradient in sphere:
        norms = np.linalg.norm(A, axis=0)
        alive = norms > 0
        assert norms[alive] == pytest.approx(1.0, rel=1e-12)
        along = (gradient * A).sum(axis=0)
        assert np.abs(np.minimum(A, (gradient - along * A) / scale)[:, alive]).max() < 1e-6
    A, gradient = last
    assert np.abs(np.minimum(A, gradient / scale)).max() < 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_a_run_from_given_factors_leaves_them_and_the_tensor_alone(method: str) -> None:
    tensor, initial = X.copy(), start(X.shape, 4)
    kept = [A.copy() for A in initial]
    run(tensor, method=method, initial=initial, beta=0.05, rescale=True)
    assert (tensor == X).all()
    for A, before in zip(initial, kept, strict=True):
        assert (A == before).all()


def test_the_registry_names_the_six_methods_of_the_paper_and_ours() -> None:
    assert set(METHODS) == {"mu", "als", "hals", "apg", "anls-as", "anls-bpp", "anls-hybrid"}
    assert {name for name, method in METHODS.items() if not method.monotone} == {"als"}
    assert {name for name, method in METHODS.items() if method.exact} == {"anls-as", "anls-bpp"}


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.monotone])
def test_in_single_precision_the_objective_rises_by_no_more_than_rounding(method: str) -> None:
    """Products and factors are rounded to float32, by 6e-8 of the terms of O, which are of the size of ‖X‖².

    So a sweep may raise O by a few such errors, 2e-7 ‖X‖²; the rises that were measured are below 1e-8 ‖X‖².
    """
    narrow = X.astype(np.float32)
    exact, rises = narrow.astype(np.float64), list[float]()
    settings = Settings(rank=4, method=method, beta=0.01, stop={"max_iterations": 120, "tolerance": 0.0})
    weights = per_mode(settings.alpha, 3), per_mode(settings.beta, 3)
    before = np.inf
    for state in sweeps(narrow, settings):
        after = objective(exact, [A.astype(np.float64) for A in state.factors], *weights, is_squared(settings))
        rises.append(after - before)
        before = after
    assert max(rises[1:]) <= 2e-7 * float(np.vdot(exact, exact))

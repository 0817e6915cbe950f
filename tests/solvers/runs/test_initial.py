"""Starting factors: drawn from the seed alone, without zero columns, and fitted in size on request."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import InvalidInput, Settings, estimate_memory, metrics, solve, synthetic
from sparse_ncp.solvers.bcd.starts.initial import starting_factors
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.threads import Threads
from sparse_ncp.solvers.tensor.validation import prepare_tensor
from tests.solvers.literal import model, relative_error, unfold
from tests.solvers.problems import planted, problem_of, run, start


def drawn(X: Float64, initial: list[Float64] | None = None, **fields: Any) -> list[Array]:
    with Threads(1) as threads:
        asked = problem_of(Settings(**{"rank": 4, "method": "hals", **fields}), X.ndim)
        return starting_factors(prepare_tensor(X, None, threads), asked, initial)


X = planted(3).tensor


def test_random_is_the_papers_half_normal() -> None:
    random = np.random.default_rng(7)
    shape = (30, 20, 10)
    for A, length in zip(drawn(np.ones(shape), seed=7), shape, strict=True):
        assert (A == np.maximum(0, random.standard_normal((length, 4)))).all()


def test_no_component_is_dead_from_the_start() -> None:
    for seed in range(20):
        assert all(A.any(axis=0).all() for A in drawn(np.ones((2, 1, 3)), seed=seed))


@pytest.mark.parametrize("init", ["random_scaled", "nndsvd"])
def test_a_scaled_start_has_the_best_size(init: str) -> None:
    factors = drawn(X, init=init)
    guess = model(factors)
    assert np.vdot(X, guess) / np.vdot(guess, guess) == pytest.approx(1.0, rel=1e-9)
    assert relative_error(X, factors) < 1


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_nndsvd_follows_the_singular_vectors(mode: int) -> None:
    """The first vector of a nonnegative unfolding is nonnegative, so its column is that vector."""
    A = drawn(X, init="nndsvd")[mode]
    first = np.linalg.svd(unfold(X, mode))[0][:, 0]
    cosine = A[:, 0] @ np.abs(first) / np.linalg.norm(A[:, 0])
    assert cosine == pytest.approx(1.0, abs=1e-6)


def test_nndsvd_of_a_long_mode_uses_a_few_passes_and_comes_close() -> None:
    made = synthetic.planted((300, 12, 10), 5, snr_db=40)
    A = drawn(made.tensor, rank=5, init="nndsvd")[0]
    U, _, _ = np.linalg.svd(unfold(made.tensor, 0), full_matrices=False)
    cosine = A[:, 0] @ np.abs(U[:, 0]) / np.linalg.norm(A[:, 0])
    assert cosine == pytest.approx(1.0, abs=1e-6)
    assert (A.max(axis=0) > 0).all()


def test_a_nndsvd_start_is_better_than_a_random_one() -> None:
    made = synthetic.planted((60, 12, 10), 5, snr_db=40)
    assert relative_error(made.tensor, drawn(made.tensor, rank=5, init="nndsvd")) < relative_error(
        made.tensor, drawn(made.tensor, rank=5, init="random_scaled")
    )


def test_mu_never_starts_at_zero() -> None:
    assert all((A >= 1e-6).all() for A in drawn(X, method="mu"))


def test_mu_lifts_the_zeros_of_given_factors_and_leaves_the_rest() -> None:
    given = start(X.shape, 4)
    given[0][0, 0] = 0.0
    started = drawn(X, method="mu", initial=given)
    assert started[0][0, 0] == 1e-6
    assert (started[0][1:] == given[0][1:]).all()


def test_a_long_mode_needs_no_square_matrix() -> None:
    """A square matrix of the first mode would take 3 GB here."""
    made = synthetic.planted((20_000, 5, 4), 3)
    asked = Settings(rank=3, method="hals", init="nndsvd", stop={"max_iterations": 1})
    run(made.tensor[:50], rank=3, method="hals", init="nndsvd", iterations=1)
    tracemalloc.start()
    solve(made.tensor, asked, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < estimate_memory(made.tensor, asked).total


@pytest.mark.parametrize("norm", [1e-9, 1e9])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nndsvd_starts_at_the_right_size_whatever_the_scale_and_order(norm: float, dtype: str) -> None:
    entries = np.random.default_rng(0).random((6, 5, 4, 5, 4, 3))
    entries = (entries * (norm / np.linalg.norm(entries))).astype(dtype)
    result = run(entries, rank=3, method="hals", alpha=0.0, init="nndsvd", iterations=5)
    assert result.relative_error < 0.6


def test_of_given_factors_with_more_components_the_strongest_are_kept() -> None:
    given = start(X.shape, 6)
    for A in given:
        A[:, [1, 4]] *= 0.1
    result = run(X, method="apg", initial=given, iterations=1)
    expected = run(X, method="apg", initial=[A[:, [0, 2, 3, 5]] for A in given], iterations=1)
    assert result.objective == expected.objective
    assert (
        "the rank of the initial factors is 6: of their components, only the strongest were kept" in result.warnings[0]
    )
    assert not any("initial" in warning for warning in expected.warnings)


def test_to_given_factors_with_fewer_components_weak_ones_are_added() -> None:
    given = start(X.shape, 2)
    started = drawn(X, initial=given, seed=3)
    assert all((A[:, :2] == B).all() for A, B in zip(started, given, strict=True))
    size = metrics.weights(started)
    assert size[2:] == pytest.approx(0.1 * size[:2].mean())
    assert any((A != B).any() for A, B in zip(started, drawn(X, initial=given, seed=4), strict=True))
    result = run(X, method="apg", initial=given)
    assert "the rank of the initial factors is 2: random components were added" in result.warnings[0]
    assert all((A > 0).any() for A in drawn(X, initial=[np.zeros_like(A) for A in given]))


def test_given_factors_of_different_ranks_are_refused() -> None:
    given = start(X.shape, 5)
    with pytest.raises(InvalidInput, match=r"A2: has shape \(7, 4\); give \(7, 5\)"):
        drawn(X, initial=[given[0], given[1][:, :4], given[2]])

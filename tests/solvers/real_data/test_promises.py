"""The promises of a run hold where entries are missing."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_ncp.solvers import METHODS, Result, Settings, State, estimate_memory, solve, sweeps, synthetic
from sparse_ncp.solvers.tensor.products import Array
from tests.solvers.problems import SHAPES, Layout, against_advice, examples, planted
from tests.solvers.real_data.patterns import PATTERNS, holed, missing_in, model

# Small tensors have rows with few observed entries; the advice on them has its own test.
pytestmark = pytest.mark.filterwarnings("ignore:index .* fewer than:sparse_ncp.AdviceWarning")

MONOTONE = [name for name, method in METHODS.items() if method.monotone]
NAN: dict[str, Any] = {"missing": "nan"}
# Trial starts, put-back, extrapolation and, for lack of size, no compression.
RECOMMENDED = Settings.recommended(5, missing="nan", beta=0.05, starts=3, accelerate="none")


def swept(iterations: int = 12, **fields: Any) -> Settings:
    return Settings(**{"rank": 4, **NAN, "stop": {"max_iterations": iterations, "tolerance": 0.0}, **fields})


def bits(result: Result | State) -> list[bytes]:
    return [A.tobytes() for A in result.factors] + [np.array(result.history.objective).tobytes()]


def gappy(name: str = "band and few", order: int = 3, dtype: Any = np.float64) -> Array:
    X = planted(order).tensor.astype(dtype)
    return holed(X, missing_in(name, X.shape))


@against_advice
@settings(deadline=None, max_examples=examples(60))
@given(
    method=st.sampled_from(MONOTONE),
    beta=st.sampled_from([0.0, 0.5]),
    penalty=st.sampled_from(["l1", "l1_squared"]),
    rescale=st.booleans(),
    pattern=st.sampled_from([*PATTERNS, "uneven", "uneven"]),
    extrapolate=st.booleans(),
    order=st.integers(2, 4),
    seed=st.integers(0, 50),
)
def test_the_objective_never_rises(
    method: str, beta: float, penalty: str, rescale: bool, pattern: str, extrapolate: bool, order: int, seed: int
) -> None:
    X = planted(order, seed=seed).tensor
    Y = holed(X, missing_in(pattern, X.shape, seed))
    fields: dict[str, Any] = {"method": method, "beta": beta, "penalty": penalty, "rescale": rescale, "seed": seed}
    fields["extrapolate"] = extrapolate and METHODS[method].extrapolable and (method != "hals" or rescale)
    objective = solve(Y, swept(25, **fields), threads=1).history.objective
    noise = 1e-14 * np.nansum(np.square(Y))
    first = 1 if method == "hals" and not rescale else 0  # unit columns are reached in the first sweep
    assert all(after <= before + noise for before, after in pairwise(objective[first:]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_measures_are_over_the_observed_entries(method: str, pattern: str) -> None:
    X = planted(3).tensor
    missing = missing_in(pattern, X.shape)
    result = solve(holed(X, missing), swept(30, method=method), threads=1)
    residual = np.linalg.norm((X - model(result.factors))[~missing])
    np.testing.assert_allclose(result.relative_error, residual / np.linalg.norm(X[~missing]), rtol=1e-9)
    assert result.missing == missing.sum()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("method", METHODS)
def test_any_number_of_threads_gives_the_same_bits(method: str, pattern: str, dtype: Any) -> None:
    X = synthetic.planted((40, 41, 42), 3).tensor.astype(dtype)
    Y = holed(X, missing_in(pattern, X.shape))
    one, two, three = (solve(Y, swept(3, method=method), threads=count) for count in (1, 2, 3))
    assert bits(one) == bits(two) == bits(three)
    assert one.factors[0].dtype == dtype


@pytest.mark.parametrize("pattern", ["band and few", "scattered"])
def test_a_run_resumed_after_any_sweep_ends_with_the_same_bits(pattern: str) -> None:
    Y = gappy(pattern)
    states = list(sweeps(Y, RECOMMENDED, threads=1))
    assert {state.search.stage for state in states if state.search} >= {"coarse", "fine", "final"}
    for state in states[:-1:5]:
        *_, last = sweeps(Y, RECOMMENDED, resume=State.from_bytes(state.to_bytes()), threads=2)
        assert bits(last) == bits(states[-1])
        assert last.missing == np.isnan(Y).sum()


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_a_memory_map_and_a_mask_give_the_bits_of_nan_in_memory(layout: Layout, tmp_path: Path) -> None:
    X = layout(planted(3).tensor)
    missing = missing_in("band", X.shape)
    Y = holed(X, missing)
    np.save(tmp_path / "x.npy", Y)
    expected = bits(solve(Y, RECOMMENDED, threads=1))
    assert bits(solve(np.load(tmp_path / "x.npy", mmap_mode="r"), RECOMMENDED, threads=1)) == expected
    refusing = RECOMMENDED.model_copy(update={"missing": "refuse"})
    for mask in (~missing, ~missing[:1]):
        assert bits(solve(X, refusing, mask=mask, threads=1)) == expected
    assert bits(solve(np.ma.masked_array(X, missing), refusing, threads=1)) == expected


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64])
def test_values_under_the_mask_do_not_matter(dtype: Any) -> None:
    X = (planted(3).tensor * 10).astype(dtype)
    missing = missing_in("scattered", X.shape)
    other = X.copy()
    other[missing] = -7
    if dtype != np.int64:
        other[missing] = np.where(np.arange(missing.sum()) % 2, np.inf, -np.inf)
    plain = swept(5, method="anls-bpp", missing="refuse")
    one, another = (solve(np.ma.masked_array(entries, missing), plain, threads=1) for entries in (X, other))
    assert bits(one) == bits(another)
    assert one.missing == missing.sum()


def test_without_gaps_a_mask_changes_no_bit() -> None:
    X = planted(3).tensor
    expected = bits(solve(X, swept(method="hals", missing="refuse"), threads=1))
    assert bits(solve(X, swept(method="hals"), threads=1)) == expected
    assert bits(solve(X, swept(method="hals"), mask=np.ones((1, 7, 1), bool), threads=1)) == expected
    assert bits(solve(np.ma.masked_array(X, False), swept(method="hals"), threads=1)) == expected


def test_a_mask_and_nan_and_a_masked_array_add_up() -> None:
    X = planted(3).tensor
    missing = np.zeros((3, *X.shape), bool)
    missing[0, 1, 2, 3] = missing[1, 4, 5, 1] = missing[2, 0, 0, 0] = True
    masked = np.ma.masked_array(holed(X, missing[0]), missing[1])
    result = solve(masked, swept(method="apg"), mask=~missing[2], threads=1)
    assert result.missing == 3
    np.testing.assert_allclose(
        result.objective,
        solve(holed(X, np.logical_or.reduce(missing)), swept(method="apg"), threads=1).objective,
        rtol=1e-12,
    )


def test_a_gap_where_the_model_is_zero_anyway_changes_nothing() -> None:
    """Zeros in a block where every component is zero: observed or not, the same optimum."""
    A, B, C = (np.random.default_rng(3).random((length, 2)) + 0.1 for length in (8, 7, 6))
    A[:3], B[:3] = 0.0, 0.0
    A[0, 0] = B[2, 1] = 1.0
    X = model([A, B, C])
    missing = np.zeros(X.shape, bool)
    missing[1:3, :2] = True
    fields: dict[str, Any] = {"rank": 2, "method": "anls-bpp", "alpha": 0.0}
    full = solve(X, swept(2, **fields), initial=[A, B, C], threads=1)
    gaps = solve(holed(X, missing), swept(2, **fields), initial=[A, B, C], threads=1)
    assert full.objective < 1e-24
    assert gaps.objective < 1e-24


@pytest.mark.parametrize("pattern", ["scattered", "band", "few", "band and few"])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_a_tensor_with_gaps_is_never_copied_and_the_estimate_holds(layout: Layout, pattern: str) -> None:
    X = layout(np.random.default_rng(4).random((120, 110, 100)))
    Y = holed(X, missing_in(pattern, X.shape))
    wanted = swept(3, rank=5, method="anls-bpp", penalty="l1")
    estimate = estimate_memory(Y, wanted)
    assert estimate.copy == 0
    assert estimate_memory(Y, wanted, missing=0).total < estimate.total
    solve(gappy(pattern), wanted)  # what numba and BLAS load once is not this run's
    tracemalloc.start()
    solve(Y, wanted, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < estimate.total
    assert peak < Y.nbytes


def test_the_estimate_holds_for_a_mask_and_for_trial_starts() -> None:
    X = synthetic.planted((3000, 8, 7), 3, snr_db=20).tensor
    mask = np.random.default_rng(0).random((1, 8, 7)) < 0.8
    scattered = np.random.default_rng(0).random(X.shape) < 0.8
    wanted = Settings.recommended(6, beta=0.3, starts=3, accelerate="none", stop={"tolerance": 1e-2})
    for given_mask in (mask, scattered):
        solve(X[:50], wanted, mask=given_mask[:50])
        tracemalloc.start()
        solve(X, wanted, mask=given_mask, threads=1)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < estimate_memory(X, wanted, mask=given_mask).total


def test_compression_along_the_modes_of_a_band_leads_to_the_same() -> None:
    X = synthetic.planted((200, 30, 20), 3, snr_db=40).tensor
    Y = holed(X, missing_in("band", X.shape))
    stop = {"criterion": "relative_objective", "tolerance": 1e-9, "patience": 3}
    plain, compressed = (
        solve(Y, Settings.recommended(3, **NAN, beta=0.01, accelerate=how, stop=stop), threads=1)
        for how in ("none", "compress")
    )
    assert compressed.compressed_iterations > 0
    np.testing.assert_allclose(compressed.objective, plain.objective, rtol=1e-6)
    *states, last = sweeps(Y, Settings.recommended(3, **NAN, beta=0.01, accelerate="compress", starts=2), threads=2)
    for state in states[::7]:
        *_, resumed = sweeps(Y, state.settings, resume=State.from_bytes(state.to_bytes()), threads=1)
        assert bits(resumed) == bits(last)


@pytest.mark.parametrize("order", SHAPES)
def test_every_order_runs_with_the_recommended_setting(order: int) -> None:
    Y = gappy("scattered", order)
    result = solve(Y, Settings.recommended(3, missing="nan", sparsity=0.01), threads=1)
    assert result.stop_reason == "tolerance"
    assert result.relative_error < 0.1

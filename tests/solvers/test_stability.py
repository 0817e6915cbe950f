"""Stability says which components are found again in other samples, whatever the kind of tensor and of settings."""

import tracemalloc
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import (
    InvalidInput,
    Result,
    Settings,
    Stability,
    assess_stability,
    estimate_memory,
    solve,
    sweeps,
)
from sparse_ncp.solvers.diagnostics.stability import half_weights, resample_weights
from sparse_ncp.solvers.metrics import congruences
from sparse_ncp.solvers.tensor.gemm import out_of_core
from sparse_ncp.solvers.tensor.products import Float64
from sparse_ncp.solvers.tensor.scaled import ScaledSlices, SliceSums
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import prepare_tensor

RANK = 3


def noisy(shape: Sequence[int], rank: int = RANK, noise: float = 0.05, seed: int = 3) -> Float64:
    """Samples with some of every component, loadings of which a quarter is zero, and noise that may be negative."""
    random = np.random.default_rng(seed)
    factors = [random.random((length, rank)) - 0.25 * (mode > 0) for mode, length in enumerate(shape)]
    factors = [np.maximum(A, 0.05 * (mode == 0)) for mode, A in enumerate(factors)]
    letters = "abcdefgh"[: len(shape)]
    X = np.einsum(",".join(f"{letter}r" for letter in letters) + "->" + letters, *factors)
    return np.asarray(X + noise * X.std() * random.standard_normal(shape))


X = noisy((16, 14, 12))
KEPT = Settings.recommended(RANK, negative="keep", stability=True, resamples=8)


def found(result: Result) -> Stability:
    assert result.stability is not None
    return result.stability


def numbers(values: Sequence[float | None] | None) -> Float64:
    assert values is not None
    return np.array(values, np.float64)


def test_planted_components_are_replicated_and_one_too_many_is_not() -> None:
    right = found(solve(X, KEPT))
    assert numbers(right.replicability).min() > 0.98
    assert numbers(right.split_half).min() > 0.97
    many = solve(X, KEPT.model_copy(update={"rank": RANK + 1}))
    share = np.sort(numbers(found(many).replicability))
    assert share[0] < 0.85
    assert share[1] > 0.95
    weakest = int(many.weights.argmin())
    assert numbers(found(many).replicability).argmin() == weakest
    assert numbers(found(many).split_half)[weakest] < 0.85


def test_bands_hold_the_loadings_in_their_scale_and_widen_with_the_noise() -> None:
    widths = []
    for noise in (0.05, 0.5):
        result = solve(noisy((16, 14, 12), noise=noise), KEPT)
        bands = found(result).bands
        assert bands[0] is None
        shares = []
        for A, band in zip(result.factors[1:], bands[1:], strict=True):
            assert band is not None
            assert band.lower.shape == band.upper.shape == A.shape
            assert (0 <= band.lower).all()
            assert (band.lower <= band.upper).all()
            size = np.linalg.norm(A, axis=0)
            shares.append(float(((band.upper - band.lower) / size).mean()))
            margin = 0.02 * size
            assert ((band.lower - margin <= A) & (band.upper + margin >= A)).mean() > 0.9
        widths.append(max(shares))
    assert widths[1] > 3 * widths[0]


def test_a_sample_that_counts_twice_is_one_that_is_there_twice() -> None:
    counts = np.array([2, 0, 1, 3, 1, 1, 0, 2, 1, 1, 1, 0, 1, 1, 1, 0], np.float64)
    settings = Settings(rank=RANK, method="anls-bpp", negative="keep", beta=0.0, stop={"max_iterations": 20})
    random = np.random.default_rng(5)
    initial = [random.random((length, RANK)) for length in X.shape]
    copied = np.repeat(np.arange(16), counts.astype(int))
    *_, theirs = sweeps(X[copied], settings, initial=[initial[0][copied], *initial[1:]])
    with Threads(1) as pool, single_threaded_blas():
        tensor = prepare_tensor(X, None, pool, negative="keep")
        scaled = ScaledSlices(tensor, 0, np.sqrt(counts), SliceSums(tensor, 0))
    *_, ours = sweeps(scaled, settings, initial=[initial[0] * np.sqrt(counts)[:, None], *initial[1:]])
    assert ours.objective == pytest.approx(theirs.objective, rel=1e-9)
    for A, B in zip(ours.factors[1:], theirs.factors[1:], strict=True):
        np.testing.assert_allclose(A, B, rtol=1e-7, atol=1e-9)


def with_gaps(tensor: Float64) -> Float64:
    return np.where(np.random.default_rng(1).random(tensor.shape) < 0.7, tensor, np.nan)


@pytest.mark.parametrize("shape", [(14, 12), (9, 8, 7, 6), (7, 6, 5, 4, 4), (6, 4, 3, 3, 3, 2, 2, 3)])
def test_every_order_has_a_stability(shape: tuple[int, ...]) -> None:
    result = solve(noisy(shape, 2), KEPT.model_copy(update={"rank": 2}))
    stability = found(result)
    assert [band and band.lower.shape for band in stability.bands] == [None, *((length, 2) for length in shape[1:])]
    assert numbers(stability.replicability).min() > 0.9


def with_zeros(tensor: Float64) -> Float64:
    tensor = np.maximum(tensor, 1e-3)
    tensor[:, 2:6, 3:5] = 0
    return tensor


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "zeros that look missing": (with_zeros(X), {"negative": "refuse", "zeros": "missing"}),
    "clipped": (np.maximum(X, 0), {"negative": "refuse"}),
    "float32": (X.astype(np.float32), {}),
    "Fortran order": (np.asfortranarray(X), {}),
    "NaN": (with_gaps(X), {"missing": "nan"}),
    "masked array": (np.ma.masked_invalid(with_gaps(X)), {}),
    "penalty": (X, {"beta": 0.05}),
    "sparsity": (X, {"sparsity": 0.02}),
    "automatic sparsity": (X, {"sparsity": "auto"}),
    "compressed": (X, {"accelerate": "compress"}),
    "counts": (np.random.default_rng(2).poisson(50 * np.maximum(X, 0)), {}),
    "the paper's hals": (
        X,
        {"preset": None, "method": "hals", "rescale": False, "extrapolate": False, "regrow": False},
    ),
    "mu": (np.maximum(X, 0), {"preset": None, "method": "mu", "negative": "refuse"}),
    "the squared penalty": (X, {"method": "anls-as", "penalty": "l1_squared", "beta": 0.02, "regrow": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_tensor_and_of_settings_has_a_stability(case: str) -> None:
    tensor, fields = CASES[case]
    result = solve(tensor, Settings.model_validate({**KEPT.model_dump(exclude={"preset"}), **fields}))
    assert (result.missing > 0) == (case in ("NaN", "masked array", "zeros that look missing"))
    assert numbers(found(result).replicability).min() > 0.9
    assert numbers(found(result).split_half).min() > 0.9


def test_a_mask_and_fixed_factors_are_kept() -> None:
    observed = np.random.default_rng(4).random(X.shape) < 0.8
    known = solve(X, KEPT).factors
    plain = KEPT.model_copy(update={"regrow": False, "starts": 1})
    result = solve(np.where(observed, X, 99.0), plain, mask=observed, fixed={2: known[1]})
    stability = found(result)
    band = stability.bands[1]
    assert band is not None
    np.testing.assert_allclose(band.lower, known[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(band.upper, known[1], rtol=1e-9, atol=1e-12)
    assert numbers(stability.replicability).min() > 0.98
    free = stability.bands[2]
    assert free is not None
    assert (free.upper > free.lower).any()


def test_samples_may_be_in_any_mode() -> None:
    first, moved = found(solve(X, KEPT)), KEPT.model_copy(update={"samples_mode": 3})
    last = found(solve(np.moveaxis(X, 0, -1), moved))
    assert (last.samples_mode, last.bands[2]) == (3, None)
    assert numbers(last.replicability).min() > 0.98
    ours, theirs = first.bands[1], last.bands[0]
    assert ours is not None
    assert theirs is not None
    # The same samples are drawn, and the fits find the same components in some order.
    assert congruences([ours.upper], [theirs.upper]).min() > 0.999


def test_excluded_indices_do_not_count_and_have_no_band() -> None:
    dirty = X.copy()
    dirty[[2, 9]] += 50 * np.random.default_rng(4).random((2, *X.shape[1:]))
    excluded = found(solve(dirty, KEPT.model_copy(update={"exclude": {1: (2, 9), 2: (5,)}})))
    deleted = found(solve(np.delete(np.delete(X, [2, 9], axis=0), 5, axis=1), KEPT))
    assert excluded.replicability == deleted.replicability
    assert excluded.split_half == deleted.split_half
    ours, theirs = excluded.bands[1], deleted.bands[1]
    assert ours is not None
    assert theirs is not None
    assert np.isnan(ours.upper[5]).all()
    assert np.array_equal(np.delete(ours.upper, 5, axis=0), theirs.upper)


def test_stability_is_refused_where_a_file_is_fitted_without_some_indices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out_of_core, "LEAST_BYTES", 0)
    monkeypatch.setattr(out_of_core, "memory_bytes", lambda: X.nbytes)
    np.save(tmp_path / "large.npy", X)
    settings = KEPT.model_copy(update={"exclude": {1: (2,), 2: (5,)}})
    with pytest.raises(InvalidInput, match="stability: cannot be assessed where indices are left out of a file"):
        solve(np.load(tmp_path / "large.npy", mmap_mode="r"), settings)


def test_a_component_of_one_sample_cannot_be_replicated() -> None:
    random = np.random.default_rng(8)
    A, B, C = (random.random((length, 3)) for length in (15, 12, 10))
    A[:, 2] = 0
    A[6, 2] = 4.0
    B[:, 2], C[:, 2] = np.eye(12)[3] + np.eye(12)[4], np.eye(10)[7]
    tensor = np.einsum("ir,jr,kr->ijk", A, B, C)
    tensor += 0.01 * random.standard_normal(tensor.shape)
    result = solve(tensor, KEPT)
    alone = int((result.factors[0].max(axis=0) / result.factors[0].sum(axis=0)).argmax())
    stability = found(result)
    assert numbers(stability.replicability)[alone] < 0.6
    assert numbers(stability.replicability)[np.arange(3) != alone].min() > 0.98
    band = stability.bands[1]
    assert band is not None
    assert np.isfinite(band.lower[:, alone]).all()  # from the resamples that have the sample


def test_an_index_with_readings_in_one_sample_alone_does_not_count_where_that_sample_is_not_drawn() -> None:
    tensor = X.copy()
    tensor[1:, 5] = np.nan
    stability = found(solve(tensor, KEPT.model_copy(update={"missing": "nan"})))
    assert numbers(stability.replicability).min() > 0.97
    assert numbers(stability.split_half).min() > 0.95
    band = stability.bands[1]
    assert band is not None
    assert np.isfinite(band.lower).all()


def test_a_lost_component_has_no_replicability() -> None:
    settings = Settings(rank=6, method="anls-bpp", beta=2.0, rescale=True, negative="keep", stability=True, resamples=5)
    result = solve(X, settings)
    dead = result.weights == 0
    assert 0 < dead.sum() < 6
    assert [value is None for value in found(result).replicability] == dead.tolist()


def test_the_bits_depend_on_the_seed_alone() -> None:
    result = solve(X, KEPT)
    one, two, other = (
        assess_stability(X, result.factors, KEPT.model_copy(update={"seed": seed}), threads=threads)
        for seed, threads in ((0, 1), (0, 2), (1, 2))
    )
    assert one is not None
    assert two is not None
    assert other is not None
    ours, theirs = one.to_arrays(), two.to_arrays()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert one.replicability != other.replicability
    again = Stability.from_arrays(ours)
    assert again.replicability == one.replicability
    assert again.split_half == one.split_half
    assert all(np.array_equal(again.to_arrays()[name], ours[name]) for name in ours)


def test_it_can_be_watched_and_cancelled_between_sweeps() -> None:
    factors = solve(X, KEPT.model_copy(update={"stability": False})).factors
    shares: list[float] = []
    assert assess_stability(X, factors, KEPT, on_progress=shares.append) is not None
    assert shares == sorted(shares)
    assert (len(shares), shares[-1]) == (8 + 6, 1.0)
    left = iter(range(3))
    assert assess_stability(X, factors, KEPT, cancelled=lambda: next(left, None) is None) is None


def test_no_sample_is_copied(tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", noisy((100, 120, 100)))
    tensor = np.load(tmp_path / "X.npy", mmap_mode="r")
    settings = KEPT.model_copy(update={"resamples": 5})
    factors = solve(tensor, settings.model_copy(update={"stability": False})).factors
    tracemalloc.start()
    assess_stability(tensor, factors, settings, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < tensor.nbytes / 2
    assert peak < estimate_memory(tensor, settings).total


def test_every_resample_has_half_of_the_samples_and_halves_weigh_as_much_as_all() -> None:
    drawn = resample_weights(5, 200, seed=0)
    assert (drawn.sum(axis=1) == 5).all()
    assert ((drawn > 0).sum(axis=1) >= 3).all()
    halves = half_weights(5, seed=0)
    assert halves.shape == (6, 5)
    assert halves.sum(axis=1) == pytest.approx(5.0)
    assert ((halves[::2] > 0) ^ (halves[1::2] > 0)).all()
    assert half_weights(3, seed=0).shape == (0, 3)


@pytest.mark.parametrize(
    ("fields", "fixed", "field", "remedy"),
    [
        ({"samples_mode": 4}, {}, "samples_mode", "give a mode from 1 to 3"),
        ({"samples_mode": 2}, {}, "stability", "for a mode of 3 or more"),
        ({}, {2: np.ones((2, RANK)), 3: np.ones((12, RANK))}, "stability", "samples_mode for another mode"),
    ],
)
def test_what_cannot_be_assessed_is_refused_before_the_first_sweep(
    fields: dict[str, Any], fixed: dict[int, Float64], field: str, remedy: str
) -> None:
    settings = KEPT.model_copy(update={**fields, "regrow": False})
    with warnings.catch_warnings(), pytest.raises(InvalidInput, match=remedy) as refused:
        next(sweeps(noisy((16, 2, 12)), settings, fixed=fixed))
    assert refused.value.field == field


def test_automatic_sparsity_needs_the_weights_of_the_fit() -> None:
    settings = KEPT.model_copy(update={"sparsity": "auto", "stability": False})
    with pytest.raises(InvalidInput, match=r"give resolved=result\.resolved"):
        assess_stability(X, [np.ones((length, RANK)) for length in X.shape], settings)

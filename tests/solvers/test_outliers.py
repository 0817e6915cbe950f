"""Outlying samples are found, others are not, and the warning can be pasted into `exclude`."""

import json
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.solvers import Diagnostics, Result, Settings, diagnose, solve
from sparse_ncp.solvers.diagnostics.outliers import OUTLYING, SampleDiagnostics
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.problems import start
from tests.solvers.real_data.patterns import model

SHAPE = (20, 25, 18)


def profiles(random: np.random.Generator, length: int, rank: int) -> Float64:
    """Peaks at distances that differ."""
    places, centres = np.arange(length)[:, None], length * (np.arange(rank) + random.random(rank)) / rank
    return np.asarray(np.exp(-0.5 * ((places - centres) / (0.1 * length)) ** 2))


def truth(seed: int, shape: tuple[int, ...] = SHAPE, rank: int = 3) -> list[Float64]:
    """Mixtures of components with smooth profiles."""
    random = np.random.default_rng(seed)
    return [random.random((shape[0], rank)) + 0.1, *(profiles(random, length, rank) for length in shape[1:])]


def planted(seed: int, shape: tuple[int, ...] = SHAPE, rank: int = 3) -> NDArray[Any]:
    """Their tensor with 5 % noise."""
    exact = model(truth(seed, shape, rank))
    noise = np.random.default_rng(seed).standard_normal(shape)
    return np.maximum(0, exact + 0.05 * np.linalg.norm(exact) / np.linalg.norm(noise) * noise)


def with_bent_samples(seed: int, samples: tuple[int, ...] = (4, 13)) -> NDArray[Any]:
    """Return samples with shifted profiles, which bend components without having one of their own."""
    X = planted(seed).copy()
    for sample in samples:
        X[sample] = 1.5 * np.roll(X[sample], (5, 3), axis=(0, 1))
    return X


def fit(X: NDArray[Any], rank: int = 3, **fields: Any) -> Result:
    return solve(X, Settings.recommended(rank, seed=1, **fields))


def samples_of(result: Result) -> SampleDiagnostics:
    assert result.diagnostics is not None
    assert result.diagnostics.samples is not None
    return result.diagnostics.samples


def diagnosed(X: NDArray[Any], factors: Any, **fields: Any) -> Diagnostics:
    found = diagnose(X, factors, **fields)
    assert found is not None
    return found


def pasted(warning: str) -> Any:
    """The exclusion that a warning proposes."""
    found = re.search(r"exclude=(\{.*?\})", warning)
    assert found is not None
    return json.loads(found[1])


def test_planted_outliers_are_found_and_clean_tensors_are_left_alone() -> None:
    """The rule finds nine of ten planted samples; it flags clean samples in at most one tensor of five."""
    hits, flagged = 0, 0
    for seed in range(10):
        found = {outlier.index for outlier in samples_of(fit(with_bent_samples(seed))).outliers}
        hits += len(found & {4, 13})
        flagged += bool(samples_of(fit(planted(seed))).outliers)
    assert hits >= 18
    assert flagged <= 2


def test_the_worst_comes_first_and_following_the_warning_removes_it() -> None:
    X = with_bent_samples(1)
    X[7] *= np.random.default_rng(0).random(SHAPE[1:]) * 4
    result = fit(X)
    found = samples_of(result)
    assert {4, 7, 13} <= {outlier.index for outlier in found.outliers}
    assert found.outliers[0].ratio == max(ratio for ratio in found.left_out if ratio is not None)
    [warning] = [warning for warning in result.warnings if "do not follow" in warning]
    again = fit(X, exclude=pasted(warning))
    assert again.relative_error < result.relative_error / 2
    assert not samples_of(again).outliers
    assert not [warning for warning in again.warnings if "follow" in warning]


def test_a_warning_keeps_what_is_excluded_already() -> None:
    result = fit(with_bent_samples(2), exclude={1: [13], 2: [0]})
    [warning] = [warning for warning in result.warnings if "follow" in warning]
    assert pasted(warning) == {"1": [13, 4], "2": [0]}
    found = samples_of(result)
    assert found.left_out[13] is None
    assert [outlier.index for outlier in found.outliers] == [4]


def test_a_component_of_one_sample_is_named_by_its_number() -> None:
    X = planted(3).copy()
    random = np.random.default_rng(0)
    X[11] += 3 * np.linalg.norm(X[11]) * np.outer(random.random(25) ** 8, random.random(18) ** 8) / 3
    result = fit(X, 4)
    [single] = samples_of(result).single
    A = result.factors[0][:, single.component - 1]
    assert single.index == 11 == A.argmax()
    assert single.share == pytest.approx(A[11] ** 2 / (A @ A))
    assert single.share > 0.9
    [warning] = [warning for warning in result.warnings if "alone" in warning]
    assert f"component {single.component} in 11" in warning
    assert pasted(warning) == {"1": [11]}


def test_components_keep_their_numbers_beside_ones_that_vanished() -> None:
    X = planted(3)
    factors = [A.copy() for A in fit(X).factors]
    factors[0][:, 1] = 0
    factors[0][:, 2] = 0
    factors[0][6, 2] = 1
    samples = diagnosed(X, factors).samples
    assert samples is not None
    assert [(single.component, single.index) for single in samples.single] == [(3, 6)]


@pytest.mark.parametrize("mode", [2, 3])
def test_samples_may_be_in_any_mode(mode: int) -> None:
    X = with_bent_samples(5)
    first = samples_of(fit(X))
    turned = np.ascontiguousarray(np.moveaxis(X, 0, mode - 1))
    factors = fit(X).factors
    order = {2: (1, 0, 2), 3: (1, 2, 0)}[mode]
    found = diagnosed(turned, [factors[n] for n in order], samples_mode=mode).samples
    assert found is not None
    assert (found.mode, [o.index for o in found.outliers]) == (mode, [o.index for o in first.outliers])
    with pytest.raises(ValueError, match="samples_mode: is 4 for a tensor of 3 modes"):
        fit(X, samples_mode=4)


@pytest.mark.parametrize("pattern", ["band", "scattered"])
def test_missing_entries_do_not_hide_them(pattern: str) -> None:
    random = np.random.default_rng(0)
    missing = random.random(SHAPE if pattern == "scattered" else (1, *SHAPE[1:])) < 0.2
    X = np.where(missing, np.nan, with_bent_samples(6))
    found = samples_of(fit(X, missing="nan"))
    assert {outlier.index for outlier in found.outliers} == {4, 13}
    result = fit(np.nan_to_num(X), missing="refuse")
    masked = diagnosed(np.nan_to_num(X), fit(X, missing="nan").factors, mask=np.broadcast_to(~missing, SHAPE)).samples
    assert masked is not None
    assert [outlier.index for outlier in masked.outliers] == [outlier.index for outlier in found.outliers]
    assert result.missing == 0


def test_the_error_of_a_sample_is_that_of_a_fit_without_it() -> None:
    """The first refits start at the model, so those that converge give what a fit without the sample gives."""
    X = planted(8)
    result = fit(X, stop={"tolerance": 1e-12})
    ratios = np.array(samples_of(result).left_out, float)
    errors = []
    for sample in range(len(X)):
        settings = Settings.recommended(3, exclude={1: [sample]}, stop={"tolerance": 1e-12})
        rest = solve(X, settings, initial=result.factors)
        assert rest.diagnostics is not None
        errors.append(rest.diagnostics.modes[0].residual[sample])
    np.testing.assert_allclose(ratios, np.array(errors) / np.median(errors), rtol=0.1)


@pytest.mark.parametrize("threads", [2, 3])
def test_any_number_of_threads_gives_the_same_bits(threads: int) -> None:
    X = np.random.default_rng(0).random((70, 30, 20))
    factors = start(X.shape, 3)
    assert diagnosed(X, factors, threads=threads) == diagnosed(X, factors, threads=1)


def test_an_exact_fit_has_no_outliers() -> None:
    factors = truth(4)
    found = diagnosed(model(factors), factors).samples
    assert found is not None
    assert not found.outliers


def test_few_samples_have_no_median() -> None:
    X = planted(1)[:3]
    found = samples_of(fit(X, 2))
    assert found.left_out == (None,) * 3
    assert found.reason == "mode 1 has 3 samples: fewer than 4 have no median"


def test_many_samples_are_looked_at_where_they_are_suspect() -> None:
    """A part of 3,000 samples and 6 million entries is enough to find the outlying one."""
    X = planted(9, (3000, 50, 40)).astype(np.float32)
    X[1234] = 1.5 * np.roll(X[1234], (20, 15), axis=(0, 1))
    result = fit(X)
    found = samples_of(result)
    assert found.outliers[0].index == 1234
    assert found.outliers[0].ratio > OUTLYING
    assert sum(ratio is not None for ratio in found.left_out) == 64


def test_diagnosing_can_be_cancelled_between_refits() -> None:
    X, asked = np.random.default_rng(0).random((70, 60, 50)), 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked == last

    last = 0
    assert diagnose(X, start(X.shape, 3), threads=1, cancelled=cancelled) is not None
    last, asked = asked, 0
    assert last > 2  # the last call is between refits, after both passes
    assert diagnose(X, start(X.shape, 3), threads=1, cancelled=cancelled) is None

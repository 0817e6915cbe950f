"""Sparsity, components, PSNR and the factor match score, on factors small enough to count by hand."""

import math

import numpy as np
import pytest

from sparse_ncp.solvers import metrics


def test_sparsity_counts_entries_below_the_threshold_as_they_are_and_relative_to_their_column() -> None:
    A = np.array([[1e-4, 100.0], [5e-4, 0.05]])
    found = metrics.sparsity([A, A.T], threshold=1e-3)
    assert found.per_mode == (0.5, 0.5)
    assert found.relative_per_mode == (0.25, 0.25)
    assert metrics.sparsity([A * 1e6]).relative_per_mode == found.relative_per_mode[:1]


def test_a_component_is_nonzero_where_its_column_reaches_the_threshold() -> None:
    A, B = np.array([[1.0, 1e-5, 1.0]]), np.array([[1.0, 1.0, 1e-3], [0.0, 0.0, 0.0]])
    found = metrics.nonzero_components([A, B])
    assert found.per_mode == (2, 3)
    assert found.all_modes == 2
    assert metrics.nonzero_components([np.zeros((3, 2))], threshold=0.0).all_modes == 0


def test_psnr_of_a_known_error() -> None:
    true = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.5], [0.0, 0.0]])
    estimated = np.array([[2.0, 0.0], [0.0, 0.0], [0.2, 0.0], [0.0, 0.0]])
    assert metrics.psnr(estimated, true) == pytest.approx(10 * math.log10(4 / 0.01))
    assert metrics.psnr(true * 3, true) == math.inf
    assert metrics.psnr(np.zeros((4, 2)), true) == -math.inf


def test_psnr_lets_several_estimates_share_one_signal() -> None:
    true = np.random.default_rng(0).random((20, 3))
    once, twice = true[:, [0]] + 0.01, true[:, [0, 0]] + 0.01
    assert metrics.psnr(twice, true) == pytest.approx(metrics.psnr(once, true))


def test_the_match_score_ignores_order_and_scale() -> None:
    random = np.random.default_rng(1)
    true = [random.random((length, 3)) for length in (6, 5, 4)]
    shuffled = [A[:, [2, 0, 1]] * scale for A, scale in zip(true, (2.0, 0.5, 3.0), strict=True)]
    assert metrics.factor_match_score(shuffled, true) == pytest.approx(1.0)
    assert metrics.factor_match_score(shuffled, true, with_weights=True) == pytest.approx(1 / 3)


def test_the_divisor_decides_what_is_charged_for() -> None:
    true = [np.eye(4)[:, :2], np.eye(4)[:, :2]]
    more = [np.eye(4)[:, :3], np.eye(4)[:, :3]]
    fewer = [np.eye(4)[:, :1], np.eye(4)[:, :1]]
    assert metrics.factor_match_score(more, true) == pytest.approx(1.0)
    assert metrics.factor_match_score(more, true, divisor="larger") == pytest.approx(2 / 3)
    assert metrics.factor_match_score(fewer, true) == pytest.approx(0.5)
    assert metrics.factor_match_score(fewer, true, divisor="smaller") == pytest.approx(1.0)


def test_a_vanished_component_matches_nothing() -> None:
    true = [np.eye(3), np.eye(3)]
    dead = [np.eye(3) * [1, 1, 0], np.eye(3)]
    assert metrics.factor_match_score(dead, true) == pytest.approx(2 / 3)


def test_a_threshold_beyond_the_factors_precision_is_only_large() -> None:
    A = np.ones((3, 2), np.float32)
    assert metrics.nonzero_components([A, A], 1e300).all_modes == 0
    assert metrics.sparsity([A, A], 1e300).per_mode == (1.0, 1.0)


def test_components_are_matched_whatever_their_order_and_scale_and_the_rest_is_named() -> None:
    random = np.random.default_rng(4)
    factors = [random.random((length, 3)) for length in (9, 8, 7)]
    other = [A[:, [2, 0]] for A in factors]
    other[0] = 5 * other[0]
    found = metrics.match_components(factors, other)
    weights = metrics.weights(factors)
    assert [pair.component for pair in found] == (np.argsort(-weights) + 1).tolist()
    assert {pair.component: pair.other for pair in found} == {1: 2, 2: None, 3: 1}
    assert [pair.congruence for pair in found if pair.other] == pytest.approx([1.0, 1.0])
    assert all(pair.other_weight == pytest.approx(5 * (pair.weight or 0)) for pair in found if pair.other)
    more = metrics.match_components(other, factors)
    assert (more[-1].component, more[-1].other) == (None, 2)
    zero = [np.c_[A, np.zeros(len(A))] for A in other]
    assert metrics.match_components(zero, zero)[-1].component in (1, 2)

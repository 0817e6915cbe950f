"""Validation: halves that agree, entries that are predicted."""

import json
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import InvalidInput, Settings, solve
from sparse_ncp.solvers.studies import ComparisonSettings, ComparisonState, Holdout, SplitHalf, Validation, compare
from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.studies.validation import check_validation, holdout_error, left_out, pairs_of_halves, split_half
from sparse_ncp.solvers.tensor.exclusion import without_indices
from tests.solvers.studies.planted import made

TENSOR, TRUE = made("clipped")


@pytest.mark.parametrize(("parts", "pairs"), [(2, 1), (4, 3), (6, 10)])
def test_every_way_to_make_halves_is_tried_once(parts: int, pairs: int) -> None:
    assert pairs_of_halves(parts) == pairs


def test_halves_agree_up_to_the_planted_number_and_not_beyond() -> None:
    agree = {
        rank: min(
            split_half(TENSOR, Settings.recommended(rank=rank), SplitHalf(mode=2), pair, threads=1) for pair in range(3)
        )
        for rank in (3, 5)
    }
    assert agree[3] > 0.95 > agree[5]


def test_a_half_that_is_zero_agrees_with_nothing() -> None:
    tensor = TENSOR.copy()
    tensor[::2] = 0
    assert split_half(tensor, Settings.recommended(rank=3), SplitHalf(mode=1, parts=2), 0, threads=1) == 0


def test_the_held_out_error_is_lowest_near_the_planted_number() -> None:
    validation = {"holdout": {"fraction": 0.2}}
    asked = ComparisonSettings.model_validate(
        {"ranks": [1, 3, 8], "methods": ["hals"], "repeats": 1, "validate": validation, "stop": {"max_iterations": 5}}
    )
    *_, last = compare(TENSOR, asked, threads=1)
    errors = {outcome.components: np.mean(outcome.relative_error) for outcome in last.validated.holdout}
    assert [len(outcome.relative_error) for outcome in last.validated.holdout] == [2, 2, 2]
    assert errors[3] < errors[1]
    assert errors[3] < errors[8]


def test_the_held_out_error_is_that_of_entries_the_fit_has_not_seen() -> None:
    settings, asked = Settings.recommended(rank=3), Holdout(fraction=0.3, block=(1, 4, 3))
    out = left_out(TENSOR.shape, asked, 1, settings.seed)
    changed = np.where(out, TENSOR[::-1], TENSOR)
    result = solve(changed, settings, mask=~out, threads=1)
    predicted = model([A.astype(np.float64) for A in result.factors])[out]
    expected = np.linalg.norm(TENSOR[out] - predicted) / np.linalg.norm(TENSOR[out])
    assert holdout_error(TENSOR, settings, asked, 1, threads=1) == pytest.approx(expected)


@pytest.mark.parametrize("block", [None, (1, 1, 1), (4, 4, 12), (20, 1, 3)])
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_about_the_fraction_is_left_out_and_every_row_keeps_something(
    block: tuple[int, ...] | None, fraction: float
) -> None:
    asked = Holdout(fraction=fraction, block=block)
    folds = [left_out(TENSOR.shape, asked, fold, seed=0) for fold in range(8)]
    assert all(out.any() for out in folds)
    assert np.mean([out.mean() for out in folds]) == pytest.approx(fraction, rel=0.5, abs=0.05)
    for out in folds:
        assert not any(out.all(axis=others).any() for others in ((1, 2), (0, 2), (0, 1)))
    assert any((folds[0] != out).any() for out in folds[1:])


def test_blocks_are_left_out_whole() -> None:
    out = left_out((12, 8, 6), Holdout(fraction=0.3, block=(3, 4, 2)), 0, seed=1)
    blocks = out.reshape(4, 3, 2, 4, 3, 2).transpose(0, 2, 4, 1, 3, 5).reshape(24, -1)
    assert set(blocks.mean(axis=1)) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"holdout": {"block": [1, 2]}}, "validate.holdout.block"),
        ({"holdout": {"block": [20, 16, 12]}}, "validate.holdout.block"),
        ({"holdout": {"block": [1, 16, 12]}}, "validate.holdout.block"),
        ({"split_half": {"mode": 9}}, "validate.split_half.mode"),
    ],
)
def test_a_validation_that_the_tensor_cannot_have_is_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_validation(Validation.model_validate(fields), (20, 16, 12))
    assert refusal.value.field == field


QUICK: dict[str, Any] = {"ranks": [3], "methods": ["hals"], "repeats": 1, "stop": {"max_iterations": 5}}
BOTH = {"split_half": {"mode": 1, "parts": 2}, "holdout": {"folds": 1}}


def last_of(tensor: np.ndarray, mask: np.ndarray | None = None, **fields: Any) -> ComparisonState:
    asked = ComparisonSettings.model_validate({**QUICK, "validate": BOTH, **fields})
    *_, last = compare(tensor, asked, mask=mask, threads=1)
    return last


def test_a_comparison_validates_around_missing_and_negative_entries() -> None:
    holes = np.random.default_rng(1).random(TENSOR.shape) < 0.1
    negative = TENSOR - 0.01
    as_nan = last_of(np.where(holes, np.nan, negative), missing="nan", negative="keep")
    by_mask = last_of(negative, ~holes, negative="keep")
    assert as_nan.checked == by_mask.checked
    assert as_nan.checked[0] > 0.95
    assert [run.error for run in as_nan.runs] == [None]


def test_a_comparison_validates_without_excluded_indices() -> None:
    tensor = TENSOR.copy()
    tensor[[2, 5]] = TENSOR.max() * np.random.default_rng(0).random((2, *TENSOR.shape[1:]))
    left_out = {1: [2, 5]}
    assert last_of(tensor, exclude=left_out).checked == last_of(without_indices(tensor, left_out)).checked


def test_a_comparison_validates_without_zeros_that_look_missing() -> None:
    tensor = TENSOR + 1.0
    tensor[:, 3:7, 2:6] = 0
    mask = np.ones((1, *TENSOR.shape[1:]), bool)
    mask[:, 3:7, 2:6] = False
    as_missing = last_of(tensor, zeros="missing")
    assert as_missing.checked == last_of(tensor, mask).checked
    assert as_missing.checked[1] < 0.8 * last_of(tensor).checked[1]


UNREAD = TENSOR.copy()  # index 4 of mode 2 is read in one half of the samples only
UNREAD[::2, 4] = np.nan


@pytest.mark.parametrize(
    ("tensor", "fields", "field", "remedies"),
    [
        (np.where(TENSOR > TENSOR.max() / 2, np.nan, TENSOR), {}, "tensor", [{"missing": "nan"}]),
        (TENSOR - 0.01, {}, "tensor", [{"negative": "keep"}]),
        (
            UNREAD,
            {"missing": "nan"},
            "validate.split_half",
            [{"validate": {"split_half": {"mode": 2, "parts": 2}}}, {"validate": {}}, {"exclude": {"2": [4]}}],
        ),
        (
            UNREAD,
            {"missing": "nan", "exclude": {"2": [1]}},
            "validate.split_half",
            [{"exclude": {"2": [1, 4]}}],
        ),
    ],
)  # fmt: skip
def test_a_comparison_refuses_what_it_cannot_validate_before_any_run_and_every_remedy_works(
    tensor: np.ndarray, fields: dict[str, Any], field: str, remedies: list[dict[str, Any]]
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        next(compare(tensor, ComparisonSettings.model_validate({**QUICK, "validate": BOTH, **fields}), threads=1))
    assert refusal.value.field == field
    for remedy in remedies:
        for name, value in remedy.items():
            words = value if isinstance(value, str) else json.dumps(value.get("split_half", value) if value else "")
            assert words.strip('"') in refusal.value.remedy, name
        assert last_of(tensor, **{**fields, **remedy}).runs[0].error is None

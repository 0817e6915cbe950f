"""Missing entries that make a fit impossible are refused with field and remedy; doubtful ones give advice."""

from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import AdviceWarning, InvalidInput, Settings, clip, solve
from tests.solvers.problems import planted
from tests.solvers.real_data.patterns import holed, missing_in

X = planted(3).tensor
PLAIN: dict[str, Any] = {"rank": 2, "method": "anls-bpp", "missing": "nan", "stop": {"max_iterations": 2}}


def refusal(tensor: Any, mask: Any = None, **fields: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        solve(tensor, Settings(**{**PLAIN, **fields}), mask=mask, threads=1)
    return caught.value


def spoiled(index: Any, entry: float = np.nan) -> Any:
    tensor = X.copy()
    tensor[index] = entry
    return tensor


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
def test_all_indices_without_an_observed_entry_are_named(layout: Any) -> None:
    error = refusal(layout(spoiled((slice(None), 4))))
    assert (error.field, error.problem) == ("tensor", "index 4 of mode 2 has no observed entry")
    assert error.remedy == 'leave these indices out: exclude={"2": [4]}'
    tensor = spoiled(([2, 5],))
    tensor[:, 1] = np.nan
    several = refusal(layout(tensor))
    assert several.problem == "indices 2, 5 of mode 1 and index 1 of mode 2 have no observed entry"
    assert several.remedy.endswith('exclude={"1": [2, 5], "2": [1]}')
    solve(tensor, Settings(**PLAIN, exclude={"1": [2, 5], "2": [1]}))  # the remedy works
    rest = refusal(tensor, exclude={"1": [2]})
    assert rest.problem.startswith("index 5 of mode 1 and")
    assert rest.remedy.endswith('exclude={"1": [2, 5], "2": [1]}')


@pytest.mark.parametrize("mask", [None, np.zeros((1, 1, 1), bool), np.zeros(X.shape, bool)])
def test_a_tensor_without_any_observed_entry_is_refused(mask: Any) -> None:
    tensor = np.full(X.shape, np.nan) if mask is None else X
    assert refusal(tensor, mask).problem == "all entries are missing"


def test_nan_is_refused_unless_it_is_said_to_mean_missing() -> None:
    error = refusal(spoiled((2, 3, 1)), missing="refuse")
    assert (error.field, error.problem) == ("tensor", "1 entry is NaN, the first at (2, 3, 1)")
    assert "missing='nan'" in error.remedy


def test_an_infinity_is_no_gap_but_is_ignored_under_a_mask() -> None:
    assert "infinite" in refusal(spoiled((2, 3, 1), np.inf)).problem
    mask = np.ones(X.shape, bool)
    mask[2, 3, 1] = False
    for entry in (np.inf, np.nan, -1.0):
        assert solve(spoiled((2, 3, 1), entry), Settings(**{**PLAIN, "missing": "refuse"}), mask=mask).missing == 1


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (np.ones(X.shape), "has dtype float64"),
        (np.ones((9, 7), bool), r"has shape \(9, 7\) for a tensor of \(9, 7, 5\)"),
        (np.ones((9, 3, 1), bool), r"has shape \(9, 3, 1\)"),
        ([[True], [True, False]], "is not an array"),
    ],
)
def test_a_mask_that_does_not_fit_is_refused(mask: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=f"mask: {words}"):
        solve(X, Settings(**PLAIN), mask=mask)


def test_a_row_with_fewer_observed_entries_than_components_gives_advice() -> None:
    Y = X.copy()
    Y[3].reshape(-1)[2:] = np.nan
    with pytest.warns(AdviceWarning, match="index 3 of mode 1 has 2 observed entries, fewer than the 4") as caught:
        result = solve(Y, Settings(**{**PLAIN, "rank": 4}), threads=1)
    assert caught[0].filename == __file__
    assert any("index 3 of mode 1" in warning for warning in result.warnings)


def test_compression_needs_a_mode_along_which_the_gaps_are_the_same() -> None:
    error = refusal(holed(X, missing_in("scattered", X.shape)), accelerate="compress")
    assert error.field == "accelerate"
    assert "'auto' or 'none'" in error.remedy
    band = holed(X, missing_in("band", X.shape))
    assert solve(band, Settings(**{**PLAIN, "accelerate": "compress"}), threads=1).stop_reason == "max_iterations"


def test_clip_leaves_gaps_alone() -> None:
    clipped = clip(spoiled(([0, 1], 2, 3), [np.nan, -1.0]))  # type: ignore[arg-type]
    assert np.isnan(clipped[0, 2, 3])
    assert clipped[1, 2, 3] == 0
    masked = clip(np.ma.masked_array([[-1.0, 2.0]], [[True, False]]))
    assert isinstance(masked, np.ma.MaskedArray)
    assert np.ma.getmaskarray(masked).tolist() == [[True, False]]

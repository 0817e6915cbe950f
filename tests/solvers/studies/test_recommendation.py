"""A comparison recommends what its table and its checks support, and says what was not tried."""

import math
from typing import Any

import pytest

from sparse_ncp.solvers.studies import ComparisonSettings, RankEvidence, Recommendation, Row, compare, recommend
from sparse_ncp.solvers.studies.tables import COLUMNS, Spread
from sparse_ncp.solvers.studies.validation import HoldoutOutcome, SplitHalfOutcome
from tests.solvers.studies.planted import made

ERRORS = {2: 0.2, 3: 0.05, 4: 0.048}


def row(rank: int, error: float, beta: float | None = 0.0, method: str = "hals", **measures: Any) -> Row:
    """A row of three repeats that agree."""
    known = {"objective": 1.0, "seconds": 1.0, "components": rank, "sparsity": 0.2, "factor_match": 0.99, **measures}
    spreads = dict.fromkeys((column.measure for column in COLUMNS), None) | {
        name: None if value is None else Spread(value, 0.0) for name, value in known.items()
    }
    requested = 0.05 if beta is None else None
    return Row(
        rank=rank, method=method, beta=beta, requested_sparsity=requested, runs=3, failures=0, best=f"{method} {rank}",
        **{**spreads, "relative_error": Spread(error, 0.0)},
    )  # fmt: skip


def of_rank(
    rank: int, halves: float | None = None, core: float | None = None, held: tuple[float, ...] | None = None
) -> RankEvidence:
    split_half = None if halves is None else SplitHalfOutcome(rank, (0.999, halves))
    return RankEvidence(rank, core, split_half, None if held is None else HoldoutOutcome(rank, held))


ROWS = [row(rank, error) for rank, error in ERRORS.items()]
HALVES_AGREE_UP_TO_3 = [of_rank(2, 0.99, 99.0), of_rank(3, 0.98, 95.0), of_rank(4, 0.4, 12.0)]


def recommended(rows: list[Row], evidence: list[RankEvidence]) -> Recommendation:
    found = recommend(rows, evidence)
    assert found is not None
    return found


def test_the_largest_rank_that_passes_every_check_is_recommended() -> None:
    found = recommended(ROWS, HALVES_AGREE_UP_TO_3)
    assert (found.title, found.rank, found.confirmed) == ("Rank 3 – all checks agree", 3, True)
    assert (found.method, found.beta, found.best) == ("hals", 0.0, "hals 3")
    assert found.sentences == (
        "Rank 3: split halves of the data give the same components (lowest congruence 0.98); the core consistency is "
        "95 %; repeated runs find the same components (factor match 0.99).",
        "Rank 4: split halves of the data give different components (lowest congruence 0.4); the core consistency is "
        "low (12 %).",
        "Relative error: 0.2 with rank 2, 0.05 with rank 3, 0.048 with rank 4.",
    )


def test_no_more_components_are_recommended_than_predict_held_out_entries() -> None:
    held = {2: (0.3, 0.31), 3: (0.1, 0.11), 4: (0.099, 0.111)}
    found = recommended(ROWS, [of_rank(rank, held=errors) for rank, errors in held.items()])
    assert (found.title, found.confirmed) == ("Rank 3 – all checks agree", True)
    assert "it predicts held-out entries as well as any rank" in found.sentences[0]
    assert "Relative error on held-out entries: 0.305 with rank 2, 0.105 with rank 3, 0.105 with rank 4." in (
        found.sentences
    )


def test_a_rank_that_misses_structure_is_not_confirmed() -> None:
    held = [of_rank(2, 0.99, held=(0.3, 0.3)), of_rank(3, 0.5, held=(0.1, 0.1)), of_rank(4, 0.4, held=(0.2, 0.2))]
    found = recommended(ROWS, held)
    assert (found.rank, found.confirmed) == (2, False)
    assert "Rank 3 predicts them better: rank 2 misses some structure." in found.sentences


def test_the_largest_rank_tried_is_not_confirmed_without_validation() -> None:
    found = recommended(ROWS, [])
    assert found.title == "Rank 4 – not sure"
    assert found.sentences[-2:] == (
        "Higher ranks were not tried.",
        "Neither split halves nor held-out entries were checked: request a validation to confirm the rank.",
    )


def test_where_no_rank_passes_the_one_before_the_smallest_gain_is_named() -> None:
    found = recommended([row(rank, error, factor_match=0.5) for rank, error in ERRORS.items()], [])
    assert found.title == "Rank 3 – not sure"
    assert found.sentences[0] == (
        "No rank passes every check. Rank 3: repeated runs find different components (factor match 0.5)."
    )
    unchecked = recommended([row(rank, error, factor_match=None) for rank, error in ERRORS.items()], [])
    assert unchecked.sentences[0] == "No rank passes every check. Rank 3: beyond it the relative error falls least."


def test_where_no_rank_passes_the_one_that_predicts_is_named() -> None:
    held = [of_rank(2, 0.5, held=(0.3, 0.3)), of_rank(3, 0.5, held=(0.1, 0.1)), of_rank(4, 0.4, held=(0.2, 0.2))]
    found = recommended(ROWS, held)
    assert (found.rank, found.confirmed) == (3, False)
    assert found.sentences[0].startswith("No rank passes every check. Rank 3: ")


def test_a_single_rank_says_nothing_about_the_number_of_components() -> None:
    found = recommended([row(3, 0.05, factor_match=None)], [])
    assert (found.title, found.confirmed) == ("Rank 3 – not sure", False)
    assert found.sentences == (
        "Only rank 3 was tried: nothing was checked. Compare several ranks to find the number of components.",
    )


def test_the_largest_weight_without_a_cost_is_recommended() -> None:
    weights = [row(3, 0.0503, 0.1, sparsity=0.6), row(3, 0.08, 1.0), row(3, 0.0501, 9.0, components=1)]
    found = recommended([*ROWS, *weights], HALVES_AGREE_UP_TO_3)
    assert (found.title, found.beta) == ("Rank 3, β 0.1 – all checks agree", 0.1)
    assert found.sentences[-2:] == (
        "β 0.1 is the largest weight without a cost: relative error 0.0503, 3 components, 60 % zeros in mode 1; with "
        "β 0, relative error 0.05, 3 components, 20 % zeros in mode 1.",
        "With β 1 the fit or the components suffer: relative error 0.08, 3 components, 20 % zeros in mode 1.",
    )


def test_the_smallest_weight_is_named_where_every_other_costs() -> None:
    found = recommended([*ROWS, row(3, 0.08, 1.0)], HALVES_AGREE_UP_TO_3)
    assert found.beta == 0
    assert found.sentences[-2].startswith("β 0 is the smallest weight tried: ")


def test_larger_weights_that_were_not_tried_are_mentioned() -> None:
    found = recommended([*ROWS, row(3, 0.05, 0.1)], HALVES_AGREE_UP_TO_3)
    assert (found.beta, found.sentences[-1]) == (0.1, "Larger weights were not tried.")


def test_a_requested_sparsity_is_named_in_place_of_a_weight() -> None:
    rows = [row(2, 0.2, None), row(3, 0.05, None), row(3, 0.05, None).model_copy(update={"requested_sparsity": 0.1})]
    found = recommended(rows, [])
    assert (found.beta, found.sparsity, found.title) == (None, 0.1, "Rank 3, sparsity 0.1 – not sure")
    assert found.sentences[-2].startswith("Sparsity 0.1 is the largest weight without a cost: ")


def test_the_fastest_method_to_the_lowest_objective_is_recommended() -> None:
    rows = [row(2, 0.2), row(4, 0.04), row(3, 0.05, method="mu", seconds=9.0), row(3, 0.05, seconds=2.0),
            row(3, 0.06, method="als", seconds=0.1, objective=1.1)]  # fmt: skip
    found = recommended(rows, HALVES_AGREE_UP_TO_3)
    assert (found.method, found.best) == ("hals", "hals 3")
    assert found.sentences[-1] == (
        "Fastest method to the lowest objective (time, objective): hals 2 s, 1; mu 9 s, 1; als 0.1 s, 1.1."
    )


@pytest.mark.parametrize("error", [None, Spread(math.nan, math.nan)])
def test_nothing_is_recommended_before_a_run_has_succeeded(error: Spread | None) -> None:
    assert recommend([row(3, 0.05).model_copy(update={"relative_error": error})]) is None


def test_a_comparison_in_python_ends_with_its_recommendation() -> None:
    grid = {"ranks": [2, 3], "methods": ["hals"], "repeats": 2, "stop": {"max_iterations": 30},
            "validate": {"split_half": {"mode": 1, "parts": 2}}}  # fmt: skip
    *earlier, last = compare(made("clipped")[0], ComparisonSettings.model_validate(grid), threads=1)
    assert [state.recommendation for state in earlier] == [None] * len(earlier)
    assert last.recommendation is not None
    assert last.recommendation.rank in (2, 3)
    assert "split halves of the data" in last.recommendation.sentences[0]

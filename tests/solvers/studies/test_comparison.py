"""A fair comparison: every cell once, every method from the same starts, and a table of exactly these runs."""

import math
import statistics
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from sparse_ncp.solvers import InvalidInput, Settings, metrics, solve
from sparse_ncp.solvers.studies import ComparisonSettings, ComparisonState, compare, plots, table
from sparse_ncp.solvers.studies.archive import pack, unpack
from sparse_ncp.solvers.studies.tables import check_reference, table_notes
from tests.solvers.problems import against_advice
from tests.solvers.studies.planted import made

TENSOR, TRUE = made("clipped")
GRID: dict[str, Any] = {
    "ranks": [2, 4],
    "methods": ["hals", "anls-bpp"],
    "betas": [0.0, 0.1],
    "repeats": 2,
    "seed": 7,
    "stop": {"max_iterations": 15},
}


def settings(**fields: Any) -> ComparisonSettings:
    return ComparisonSettings.model_validate({**GRID, **fields})


@pytest.fixture(scope="module")
def compared() -> ComparisonState:
    *_, last = compare(TENSOR, settings(), threads=1)
    return last


def test_every_cell_is_run_as_often_as_asked(compared: ComparisonState) -> None:
    assert compared.done == compared.total == len(compared.runs) == 16
    assert len({(run.cell, run.repeat) for run in compared.runs}) == 16
    assert [row.runs for row in table(compared.runs)] == [2] * 8
    assert [row.cell for row in table(compared.runs)] == settings().cells


@against_advice
def test_a_run_is_what_solve_gives_and_repeats_share_their_start(compared: ComparisonState) -> None:
    for run in compared.runs:
        asked = Settings(rank=run.cell.rank, method=run.cell.method, beta=run.cell.beta or 0.0, seed=7 + run.repeat,
                         penalty="l1", stop={"max_iterations": 15})  # fmt: skip
        alone = solve(TENSOR, asked, threads=1)
        assert (run.objective, run.iterations) == (alone.objective, alone.iterations)
        assert all(np.array_equal(A, B) for A, B in zip(run.factors, alone.factors, strict=True))


@pytest.mark.parametrize("mode", [1, 3])
def test_a_row_is_the_mean_and_deviation_of_its_runs(compared: ComparisonState, mode: int) -> None:
    reference = TRUE[mode - 1]
    for row in table(compared.runs, mode, reference):
        runs = [run for run in compared.runs if run.cell == row.cell]
        objective, error = [run.objective for run in runs], [run.relative_error for run in runs]
        assert row.failures == 0
        assert row.objective is not None
        assert row.objective.mean == pytest.approx(statistics.fmean(objective))
        assert row.objective.deviation == pytest.approx(statistics.stdev(objective))
        assert row.relative_error is not None
        assert row.relative_error.mean == pytest.approx(statistics.fmean(error))
        assert row.sparsity is not None
        assert row.sparsity.mean == statistics.fmean(run.sparsity[mode - 1] for run in runs)
        assert row.components is not None
        weights = [metrics.weights(run.factors) for run in runs]
        assert row.components.mean == statistics.fmean((w > 1e-6 * w.max()).sum() for w in weights)
        assert row.mode_components is not None
        assert row.mode_components.mean == statistics.fmean(run.mode_components[mode - 1] for run in runs)
        assert row.psnr is not None
        assert row.psnr.mean == pytest.approx(
            statistics.fmean(metrics.psnr(run.factors[mode - 1], reference) for run in runs)
        )
        assert row.factor_match is not None
        one, other = ([A[:, metrics.weights(run.factors) > 0] for A in run.factors] for run in runs)
        assert row.factor_match.mean == pytest.approx(metrics.factor_match_score(one, other, divisor="larger"))
        assert row.best == min(runs, key=lambda run: run.objective).repeat


def test_a_single_run_has_no_spread_and_nothing_to_match() -> None:
    *_, last = compare(TENSOR, settings(repeats=1, ranks=[2], methods=["hals"], betas=[0.0]), threads=1)
    (row,) = table(last.runs)
    assert row.objective is not None
    assert row.objective.deviation == 0
    assert row.factor_match is None
    assert row.psnr is None


def test_sparsities_and_a_preset_take_the_place_of_betas() -> None:
    asked = settings(
        betas=None, sparsities=[0.02, 0.05], ranks=[6], methods=["anls-bpp"], preset="recommended", repeats=1
    )
    *_, last = compare(TENSOR, asked, threads=1)
    assert [run.cell.sparsity for run in last.runs] == [0.02, 0.05]
    assert all(run.cell.beta is None for run in last.runs)
    assert asked.settings(asked.cells[0], 0).rescale
    assert asked.settings(asked.cells[0], 0).stop.max_iterations == 15


def test_a_run_that_fails_is_counted_and_the_others_go_on() -> None:
    """Weights so far apart drive the scale of als out of single precision; unit columns keep that of hals."""
    asked = ComparisonSettings.model_validate(
        {"ranks": [1], "methods": ["als", "hals"], "repeats": 2, "precision": "float32", "stop": {"max_iterations": 4},
         "alpha": (0.0, 0.0, 0.0, 6.8e15, 1.1e11)}
    )  # fmt: skip
    *_, last = compare(np.full((1, 1, 1, 1, 1), 10), asked, threads=1)
    als, hals = table(last.runs)
    assert (als.failures, als.objective, als.best) == (2, None, None)
    assert (hals.failures, hals.best) == (0, 0)
    assert "alpha: the penalties drive the factors out of the range" in str(last.runs[0].error)
    assert ComparisonState.from_bytes(last.to_bytes()).runs[0].error == last.runs[0].error


def test_a_comparison_resumed_anywhere_ends_the_same() -> None:
    asked = settings(ranks=[2, 3], methods=["hals"], betas=[0.0], validate={"split_half": {"mode": 1, "parts": 2}})
    states = list(compare(TENSOR, asked, threads=1))
    assert [state.done for state in states] == list(range(1, states[0].total + 1))
    for state in states:
        *_, last = [state, *compare(TENSOR, asked, resume=ComparisonState.from_bytes(state.to_bytes()), threads=1)]
        assert [(run.descent.objective, run.sparsity) for run in last.runs] == [
            (run.descent.objective, run.sparsity) for run in states[-1].runs
        ]
        assert last.validated == states[-1].validated
    assert [outcome.components for outcome in states[-1].validated.split_half] == [2, 3]
    assert states[-1].validated.split_half[1].passed


def test_another_study_is_not_resumed(compared: ComparisonState) -> None:
    with pytest.raises(InvalidInput, match="another study"):
        next(compare(TENSOR, settings(repeats=3), resume=compared))
    with pytest.raises(InvalidInput, match="another study"):
        next(compare(TENSOR[:5], settings(), resume=compared))
    with pytest.raises(InvalidInput, match="damaged"):
        ComparisonState.from_bytes(b"no archive")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"ranks": []}, "ranks", "at least 1 item"),
        ({"methods": []}, "methods", "at least 1 item"),
        ({"betas": []}, "betas", "at least 1 item"),
        ({"methods": ["hals", "svd"]}, "methods", "unknown method 'svd'"),
        ({"ranks": [2, 0]}, "ranks", "greater than or equal to 1"),
        ({"ranks": [2, 2]}, "ranks", "twice"),
        ({"sparsities": [0.1]}, "sparsities", "together with betas"),
        ({"betas": None, "sparsities": [0.1], "penalty": None}, "sparsity", "plain penalty"),
        ({"repeats": 0}, "repeats", "greater than or equal to 1"),
        ({"beta": 0.1}, "beta", "Extra inputs"),
        ({"rank": 3}, "rank", "Extra inputs"),
        ({"init": "zeros"}, "init", "'random', 'random_scaled' or 'nndsvd'"),
        ({"inner_passes": 3}, "inner_passes", "does not belong to anls-bpp"),
    ],
)
def test_a_grid_that_cannot_be_run_is_refused_at_its_field(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        settings(**fields)
    problem = refusal.value.errors()[0]
    assert problem["loc"][0] == field
    assert words in problem["msg"]


def test_what_a_cell_decides_cannot_hold_for_all_runs() -> None:
    with pytest.raises(ValidationError, match="does not hold for all runs"):
        ComparisonSettings.model_validate({"ranks": [2], "methods": ["hals"], "common": {"seed": 3}})


def test_a_reference_of_another_mode_is_refused() -> None:
    check_reference(TRUE[1], TENSOR.shape, 2)
    with pytest.raises(InvalidInput, match="has shape"):
        check_reference(TRUE[1], TENSOR.shape, 1)
    with pytest.raises(InvalidInput, match="count the modes"):
        check_reference(TRUE[1], TENSOR.shape, 4)


def test_repeats_are_matched_by_the_components_that_are_left() -> None:
    asked = settings(ranks=[8], methods=["anls-bpp"], betas=None, sparsities=[0.08], preset="recommended", stop={})
    *_, last = compare(TENSOR, asked, threads=1)
    (row,) = table(last.runs)
    assert row.components is not None
    assert row.components.mean == 3
    assert row.factor_match is not None
    assert row.factor_match.mean > 0.99


def test_a_run_without_components_has_no_psnr() -> None:
    *_, last = compare(TENSOR, settings(ranks=[2], methods=["mu"], betas=[1e6], repeats=2), threads=1)
    (row,) = table(last.runs, 1, TRUE[0])
    assert row.psnr is not None
    assert row.psnr.mean == -math.inf
    assert row.factor_match is not None
    assert row.factor_match.mean == pytest.approx(1)


@pytest.mark.parametrize(
    ("asked", "penalties"),
    [
        ({}, {"l1"}),
        ({"penalty": "l1_squared"}, {"l1_squared"}),
        ({"penalty": None}, {"l1", "l1_squared"}),
        ({"penalty": None, "betas": [0.0]}, set()),
        ({"preset": "recommended"}, {"l1"}),
        ({"betas": None, "sparsities": [0.1]}, {"l1"}),
    ],
)
def test_all_methods_of_a_comparison_have_one_penalty_unless_each_is_to_have_its_own(
    asked: dict[str, Any], penalties: set[str]
) -> None:
    grid = settings(**asked)
    assert {cell.penalty for cell in grid.cells} - {None} == penalties
    for cell in grid.cells:
        run = grid.settings(cell, 0)
        if cell.penalty is not None:
            assert run.penalises_squared == (cell.penalty == "l1_squared")


def test_a_grid_that_was_stored_without_a_penalty_keeps_that_of_each_method() -> None:
    stored = settings(penalty=None).model_dump(mode="json")
    del stored["common"]["penalty"]  # as 0.1.0 stored it
    assert {cell.penalty for cell in ComparisonSettings.model_validate(stored).cells} == {None, "l1", "l1_squared"}


def test_two_penalties_are_neither_drawn_nor_recommended_against_each_other() -> None:
    *_, last = compare(TENSOR, settings(penalty=None, ranks=[4], betas=[0.1], repeats=1), threads=1)
    assert len(plots.objective(last.runs).axes) == 2
    assert last.recommendation is not None
    [left_out] = {"hals", "anls-bpp"} - {last.recommendation.method}
    assert f"since their penalty is another one: {left_out}." in " ".join(last.recommendation.sentences)
    [note] = [note for note in table_notes(table(last.runs)) if "penalty" in note]
    assert "different functions" in note


def test_the_warnings_of_runs_reach_their_row() -> None:
    *_, last = compare(TENSOR, settings(ranks=[30], betas=[0.0], repeats=2, methods=["hals"]), threads=1)
    [row] = table(last.runs)
    assert row.warned == 2
    assert row.warnings
    assert set(row.warnings) == {text for run in last.runs for text in run.warnings}
    assert any("2 of 2 runs" in note for note in table_notes([row]))


def test_a_saved_comparison_of_the_first_release_can_be_read(compared: ComparisonState) -> None:
    header, arrays = unpack(compared.to_bytes(), "compare", 1)
    for run in header["runs"]:
        run["components"] = run.pop("mode_components")
        del run["warnings"], run["cell"]["penalty"]
    read = ComparisonState.from_bytes(pack(header, arrays))
    assert [(run.cell, run.components) for run in read.runs] == [(run.cell, run.components) for run in compared.runs]
    assert read.recommendation == compared.recommendation

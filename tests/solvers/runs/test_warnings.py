"""Warnings of a result: what a reader of its factors should know, each with a suitable remedy."""

import numpy as np
import pytest

from sparse_ncp.solvers import AdviceWarning, Settings, solve, synthetic
from tests.solvers.problems import start

X = synthetic.planted((24, 20, 18), rank=4, snr_db=30.0).tensor


def test_the_papers_hals_under_a_penalty_is_warned_of_once_before_and_in_the_result() -> None:
    asked = Settings(rank=4, method="hals", beta=5.0, stop={"max_iterations": 5})
    with pytest.warns(AdviceWarning, match="hals as in the paper") as caught:
        result = solve(X, asked)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert sum("hals as in the paper" in warning for warning in result.warnings) == 1


def test_a_faint_penalty_gives_a_warning() -> None:
    assert any("less than 0.1 %" in warning for warning in solve(X, Settings.recommended(4, beta=1e-6)).warnings)
    assert not any("less than 0.1 %" in warning for warning in solve(X, Settings.recommended(4, beta=0.3)).warnings)
    assert not any("less than 0.1 %" in warning for warning in solve(X, Settings.recommended(4)).warnings)


def test_components_that_do_not_pay_give_a_warning_that_they_were_tried() -> None:
    result = solve(X, Settings.recommended(8, beta=1.0))
    assert result.nonzero_components.all_modes < 8
    (warning,) = (warning for warning in result.warnings if "are left" in warning)
    assert "left: putting components back did not lower the objective, so the tensor supports no more" in warning


def test_a_sparsity_that_removes_nothing_gives_a_warning() -> None:
    kept = solve(X, Settings.recommended(4, sparsity=0.005))
    (warning,) = (warning for warning in kept.warnings if "removed no component" in warning)
    weakest = kept.weights.min() / np.linalg.norm(X)
    assert f"{weakest:.3g}" in warning
    assert not any("removed no component" in w for w in solve(X, Settings.recommended(8, sparsity=0.1)).warnings)


@pytest.mark.parametrize(
    ("shape", "most"),
    [((6, 5, 4), 9), ((20, 15), 15), ((3, 3, 3, 3), 9)],
)
def test_more_components_than_can_be_identified_give_a_warning(shape: tuple[int, ...], most: int) -> None:
    tensor = np.random.default_rng(0).random(shape)

    def warned(rank: int) -> list[str]:
        result = solve(tensor, Settings(rank=rank, method="hals", stop={"max_iterations": 2}))
        return [warning for warning in result.warnings if "more than can be identified" in warning]

    assert warned(most) == []
    (warning,) = warned(500)
    assert f"at most {most} components" in warning


def test_missing_entries_leave_fewer_components_that_can_be_identified() -> None:
    tensor = np.random.default_rng(0).random((6, 5, 4))
    tensor[::2, ::2, ::2] = np.nan
    result = solve(tensor, Settings(rank=9, method="hals", missing="nan", stop={"max_iterations": 2}))
    assert any("with 102 entries: at most 7" in warning for warning in result.warnings)


def test_nndsvd_is_never_the_remedy_for_nndsvd() -> None:
    for init in ("random", "nndsvd"):
        asked = Settings(rank=12, method="anls-bpp", beta=1.0, init=init, stop={"max_iterations": 30})
        result = solve(X, asked)
        assert (result.weights < 1e-6).any()
        assert any("starts=8" in warning for warning in result.warnings)
        assert any("nndsvd" in warning for warning in result.warnings) == (init == "random")


def test_an_objective_above_that_of_nothing_gives_a_warning() -> None:
    initial = [10 * A for A in start(X.shape, 4)]
    asked = Settings(rank=4, method="apg", beta=20.0, stop={"max_iterations": 1})
    result = solve(X, asked, initial=initial)
    assert result.objective > np.sum(X**2) / 2
    assert any("higher than without any component" in warning for warning in result.warnings)

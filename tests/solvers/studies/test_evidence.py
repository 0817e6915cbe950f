"""Evidence for a number of components: each criterion, and the vote."""

from dataclasses import replace

import numpy as np
import pytest

from sparse_ncp.solvers import Settings, diagnose, solve
from sparse_ncp.solvers.studies.advice import single_samples
from sparse_ncp.solvers.studies.evidence.core import core_consistency
from sparse_ncp.solvers.studies.evidence.curve import Cliff, Curve
from sparse_ncp.solvers.studies.evidence.prediction import left_out, predict
from sparse_ncp.solvers.studies.evidence.replication import bootstrap, compare_halves
from sparse_ncp.solvers.studies.evidence.residuals import Residuals
from sparse_ncp.solvers.studies.evidence.vote import Ballot, Criteria, decide, smallest_as_good
from sparse_ncp.solvers.studies.fitting.candidates import Candidate, Judge
from sparse_ncp.solvers.studies.fitting.fits import Data, descend
from sparse_ncp.solvers.studies.fitting.noise import Gaussian
from tests.solvers.studies.planted import factors, made

WHITE = Residuals((0.0, 0.0, 0.0), 0.0)
ALL_SAY_3 = Criteria(3, 3, 3, 3, 3, 3, 3, 3)


def curve(*gains: float) -> Curve:
    return Curve(dict(enumerate(100 - np.cumsum([0, *gains]))))


def ballot(criteria: Criteria, ratio: float = 10.0, residuals: Residuals = WHITE, largest: int = 9) -> Ballot:
    return Ballot(criteria, Cliff(criteria.cliff or 1, ratio), residuals, largest)


def fitted(noise: str, largest: int = 5) -> tuple[Judge, dict[int, Candidate]]:
    """The planted components with more of random ones, fitted."""
    tensor, true = made(noise)
    observed = ~np.isnan(tensor)
    data = Data(np.where(observed, tensor, 0.0), None if observed.all() else observed)
    more = factors(largest, seed=9)
    judge = Judge(data, Gaussian((), (0.01,)), np.full(data.entries.size, 0.01))
    best = {}
    for k in range(1, largest + 1):
        start = tuple(np.hstack((A[:, :k], B[:, : max(0, k - 3)])) for A, B in zip(true, more, strict=True))
        fit = descend(data, start, 300, 1e-8)
        best[k] = Candidate(fit.factors, judge.loss(fit.factors))
    return judge, best


@pytest.mark.parametrize(
    ("gains", "components"),
    [
        ((60, 20, 8, 0.5, 0.4), 3),
        ((60, 2.5, 2.4, 0.3, 0.3), 3),
        ((60, 1.5, 0.3, 0.3), 1),  # a second component gains as little as noise
        ((60, 20, 4, 1, 0.2), 3),  # the last of ratios that are nearly the same
    ],
)
def test_the_cliff_is_where_the_gain_falls_most_steeply(gains: tuple[float, ...], components: int) -> None:
    assert curve(*gains).cliff().components == components


def test_the_gain_counts_what_stands_out_from_noise() -> None:
    assert curve(60, 20, 1.2, 0.9, 0.4).best() == 3
    assert curve(0.5, 0.4, 0.4).best() == 0


def test_all_criteria_together_are_very_sure() -> None:
    verdict = decide([ballot(ALL_SAY_3)] * 2)
    assert (verdict.suggestion, verdict.confidence, verdict.range) == (3, "very", (3, 3))
    assert verdict.share == pytest.approx(1)


def test_without_a_steep_cliff_no_number_is_sure() -> None:
    assert decide([ballot(ALL_SAY_3, ratio=4.0)]).confidence == "no"
    assert decide([ballot(ALL_SAY_3, ratio=4.0), ballot(ALL_SAY_3)]).confidence == "very"
    other = ballot(replace(ALL_SAY_3, cliff=4))
    assert decide([other]).confidence == "no"


def test_the_gain_has_no_vote_where_the_residuals_are_not_noise() -> None:
    only_gain = Criteria(gain=7, cliff=3, agreement=None)
    assert decide([ballot(only_gain)]).range == (3, 7)
    for residuals in (Residuals((0.0, 0.2, 0.0), 0.0), Residuals((0.0, 0.0, 0.0), 2.0)):
        assert decide([ballot(only_gain, residuals=residuals)]).range == (3, 3)
    assert decide([ballot(replace(only_gain, gain=9))]).range == (3, 3)


def test_more_components_above_the_noise_lower_the_confidence_by_a_level() -> None:
    more = replace(ALL_SAY_3, gain=5)
    assert decide([ballot(more)]).confidence == "yes"
    assert decide([ballot(replace(more, halves=1, bootstrap=1))]).confidence == "no"
    assert decide([ballot(more), ballot(ALL_SAY_3)]).confidence == "very"  # one view explains all with 3
    assert decide([ballot(more, residuals=Residuals((0.2, 0.0, 0.0), 0.0))]).confidence == "very"  # it has no vote


def test_criteria_without_a_number_do_not_vote() -> None:
    few = Criteria(gain=None, cliff=3, agreement=3, core=4)
    verdict = decide([ballot(few)])
    assert verdict.suggestion == 3
    assert verdict.share == pytest.approx(3 / 3.25)


def test_two_views_that_disagree_leave_a_range() -> None:
    other = Criteria(5, 5, 5, 5, 5, 5, 5, 5)
    verdict = decide([ballot(ALL_SAY_3), ballot(other)])
    assert verdict.range == (3, 5)
    assert (verdict.suggestion, verdict.confidence) == (3, "no")


def test_the_smallest_number_that_predicts_as_well_is_taken() -> None:
    assert smallest_as_good({1: 4.0, 2: 2.0, 3: 1.005, 4: 1.0, 5: 1.2}) == 3


@pytest.mark.parametrize("mode", [None, 0, 1, 2])
@pytest.mark.parametrize("noise", ["negative", "band"])
def test_what_is_left_out_was_observed_and_leaves_every_index_readings(mode: int | None, noise: str) -> None:
    tensor, _ = made(noise)
    observed = ~np.isnan(tensor)
    data = Data(np.where(observed, tensor, 0.0), observed)
    out = left_out(data, mode, np.random.default_rng(0))
    assert 0.05 < out.sum() / observed.sum() < 0.2
    assert not (out & ~observed).any()
    kept = observed & ~out
    assert all(kept.any(axis=tuple({0, 1, 2} - {axis})).all() for axis in range(3))
    if mode is not None:  # whole fibres, but for what was missing
        some = out.any(axis=mode, keepdims=True)
        assert np.array_equal(out, some & observed)


@pytest.mark.parametrize("noise", ["negative", "holes", "band"])
def test_the_planted_number_predicts_best(noise: str) -> None:
    judge, best = fitted(noise)
    found = predict(judge, best, 6, 1, np.random.default_rng(0))
    assert found is not None
    assert smallest_as_good(found.better) == smallest_as_good(found.cold) == 3


@pytest.mark.parametrize("noise", ["negative", "holes"])
def test_samples_give_the_planted_components_again_and_no_others(noise: str) -> None:
    judge, best = fitted(noise)
    random = np.random.default_rng(0)
    again = [bootstrap(judge.data, best, random) for _ in range(5)]
    halves = compare_halves(judge.data, best, 6, random)
    assert halves is not None
    assert min(min(found[3]) for found in again) > 0.95 > min(min(found[5]) for found in again)
    assert halves[3] > 0.9 > halves[5]


def test_halves_without_a_reading_of_some_index_are_not_compared() -> None:
    judge, best = fitted("holes")
    observed = np.ones(judge.data.X.shape, bool)
    observed[1:, 4] = False
    assert compare_halves(Data(judge.data.X, observed), best, 6, np.random.default_rng(0)) is None


def test_the_core_is_that_of_the_diagnostics_where_nothing_is_missing() -> None:
    tensor, _ = made("gaussian")
    for rank in (3, 4, 5):
        result = solve(tensor, Settings.recommended(rank=rank, diagnose=False), threads=1)
        expected = diagnose(tensor, result.factors)
        assert expected is not None
        found = core_consistency(Data(tensor), tuple(A.astype(np.float64) for A in result.factors))
        assert found == pytest.approx(expected.core_consistency, rel=1e-6)


def test_the_core_around_holes_is_near_that_of_the_whole_tensor() -> None:
    tensor, _ = made("negative")
    observed = np.random.default_rng(0).random(tensor.shape) >= 0.3
    holed = Data(np.where(observed, tensor, 0.0), observed)
    for rank, consistent in ((3, True), (5, False)):
        fit = descend(Data(tensor), tuple(factors(rank, seed=4)), 500, 1e-8)
        whole, around = core_consistency(Data(tensor), fit.factors), core_consistency(holed, fit.factors)
        assert whole is not None
        assert around is not None
        assert (whole > 70) == (around > 70) == consistent


def test_a_mode_shorter_than_the_components_has_no_core_consistency() -> None:
    assert core_consistency(Data(np.ones((8, 2, 9))), tuple(factors(3, (8, 2, 9)))) is None


def test_a_component_lives_in_one_sample_if_nine_tenths_of_its_square_do() -> None:
    scores = np.ones((10, 3))
    scores[4, 1], scores[7, 2] = 10.0, 8.0
    assert single_samples(scores) == (4,)
    assert single_samples(np.eye(2)) == ()

"""A number of components with its reasons: right where it is sure, and not sure where it cannot be."""

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from sparse_ncp.solvers import InvalidInput, Settings, metrics, solve
from sparse_ncp.solvers.studies import ChoiceSettings, ChoiceState, SplitHalf, Validation, choose
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.studies import planted
from tests.solvers.studies.planted import chosen, made

QUICK = ChoiceSettings(rank=6, seeds=2)


@pytest.mark.parametrize(("noise", "components"), [("gaussian", 4), ("clipped", 3), ("counts", 3)])
def test_planted_components_are_counted_whatever_the_noise(noise: str, components: int) -> None:
    """The offset of the Gaussian tensor is a component, too."""
    _, true = made(noise)
    choice = planted.choice(noise)
    assert choice.noise == noise
    assert choice.advice.components == choice.advice.suggestion == components
    assert choice.advice.confidence == "very"
    assert choice.advice.residuals_white
    assert metrics.factor_match_score(choice.factors, true) > 0.95
    assert ("flat" in choice.advice.reason) == (noise == "gaussian")


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_other_numbers_are_counted_too(rank: int) -> None:
    choice = planted.choice("clipped", rank, seed=rank)
    assert choice.advice.components == rank
    assert choice.advice.range[0] <= rank <= choice.advice.range[1]


def test_the_sparsity_leaves_just_these_components() -> None:
    tensor, true = made("clipped")
    advice = planted.choice("clipped").advice
    assert advice.sparsity is not None
    result = solve(tensor, Settings.recommended(rank=8, sparsity=advice.sparsity))
    assert result.nonzero_components.all_modes == 3
    assert result.resolved.beta[0] == advice.beta
    alive = [A[:, result.weights > 0] for A in result.factors]
    assert metrics.factor_match_score(alive, true) > 0.95


@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_units_of_the_tensor_change_nothing(unit: float) -> None:
    tensor, _ = made("clipped")
    one, other = planted.choice("clipped"), chosen(tensor * unit)
    assert other.advice.components == one.advice.components
    assert other.advice.confidence == one.advice.confidence
    assert other.advice.sparsity == pytest.approx(one.advice.sparsity, rel=1e-3)
    assert other.advice.weakest_visible == pytest.approx(unit * one.advice.weakest_visible, rel=1e-3)
    assert metrics.weights(other.factors) == pytest.approx(unit * metrics.weights(one.factors), rel=1e-3)


def test_where_the_residual_is_not_noise_nothing_is_counted() -> None:
    advice = planted.choice("correlated").advice
    assert not advice.residuals_white
    assert advice.components is None
    assert advice.confidence == "no"
    assert advice.suggestion == advice.criteria.cliff == 3
    assert "along mode 1 correlate" in advice.reason


def test_heavy_tails_are_not_taken_for_components_with_certainty() -> None:
    advice = planted.choice("heavy_tailed").advice
    assert advice.confidence == "no"
    assert "heavier tails" in advice.reason


def test_where_noise_may_hide_a_component_the_count_is_not_very_sure() -> None:
    """A third of the counts with which it is."""
    _, true = made("counts")
    advice = chosen(np.random.default_rng(100).poisson(20 * planted.signal(true)).astype(np.float64)).advice
    assert (advice.components, advice.confidence) == (3, "yes")
    assert "% of the tensor's variation, cannot be detected" in advice.reason


def test_where_seeds_fit_as_well_with_other_components_the_count_is_not_very_sure() -> None:
    """Two components with one column in mode 3 are a matrix, in which a part of one can go over to the other."""
    A, B, C = planted.factors(3)
    A[:10, 0] = A[10:, 1] = B[:8, 0] = B[8:, 1] = 0
    B[:, 0] += B[:, 1]
    C[:, 1] = C[:, 0]
    advice = chosen(planted.clipped(planted.signal([A, B, C]), np.random.default_rng(5))).advice
    assert (advice.components, advice.confidence) == (3, "yes")
    assert "1 of 3 seeds fit as well with other components" in advice.reason


def test_an_exact_tensor_has_just_its_components() -> None:
    exact = planted.signal(planted.factors(3))
    choice = chosen(exact)
    assert choice.advice.components == 3
    assert choice.relative_error < 1e-3


def test_a_constant_tensor_is_one_background() -> None:
    advice = chosen(np.full((10, 8, 6), 3.0), rank=4, seeds=2).advice
    assert advice.suggestion == 1
    assert advice.confidence != "very"
    assert "flat" in advice.reason


def test_noise_alone_has_no_components() -> None:
    noise = np.maximum(0.0, np.random.default_rng(0).standard_normal(planted.SHAPE))
    advice = chosen(noise).advice
    assert (advice.components, advice.suggestion, advice.confidence) == (None, 1, "no")
    assert "nothing stands out" in advice.reason


def test_an_overfit_too_small_says_so() -> None:
    advice = chosen(made("clipped", rank=5, seed=5)[0], rank=6).advice
    assert advice.confidence == "no"
    assert "raise rank above 6" in advice.reason


def test_a_single_seed_is_never_sure() -> None:
    advice = chosen(made("clipped")[0], seeds=1).advice
    assert advice.components == 3
    assert advice.confidence == "no"
    assert "1 of 1 seeds" in advice.reason


def test_the_kind_of_noise_can_be_given() -> None:
    """Counts in odd units, without a common divisor."""
    tensor = made("counts")[0] * 1.7 + 1e-4 * np.random.default_rng(0).random(planted.SHAPE)
    assert chosen(tensor).noise != "counts"
    given = chosen(tensor, noise="counts")
    assert given.noise == "counts"
    assert given.advice.components == 3


def test_a_quantised_instrument_is_not_taken_for_counts() -> None:
    tensor = np.round(made("clipped")[0] * 1000)
    assert chosen(tensor).noise == "clipped"


def test_the_curve_says_what_each_component_gains() -> None:
    choice = planted.choice("clipped")
    errors, gains = ([getattr(point, name) for point in choice.points] for name in ("relative_error", "gain"))
    assert [point.components for point in choice.points] == list(range(1, 7))
    assert errors[2] == pytest.approx(choice.relative_error, rel=1e-3)
    assert min(gains[:3]) > 1 > max(gains[3:])
    assert choice.points[2].agreement > 0.9 > choice.points[5].agreement
    assert 0.05 < choice.noise_level < 0.15


def test_split_halves_agree_on_the_planted_components() -> None:
    tensor, _ = made("clipped")
    choice = chosen(tensor, validate={"split_half": {"mode": 1}})
    found = {outcome.components: outcome for outcome in choice.validated.split_half}
    assert sorted(found) == [2, 3, 4]
    assert found[3].passed
    assert len(found[3].congruence) == 3
    assert not found[4].passed


@pytest.mark.parametrize("noise", ["gaussian", "clipped", "counts"])
def test_a_study_resumed_anywhere_ends_the_same(noise: str) -> None:
    tensor, _ = made(noise)
    settings = QUICK.model_copy(update={"validation": Validation(split_half=SplitHalf(mode=2, parts=2))})
    states = list(choose(tensor, settings, threads=1))
    whole = states[-1].outcome
    assert whole is not None
    first_of_stage = {state.stage: state for state in reversed(states)}
    everywhere = noise == "clipped"  # the other kinds differ in the noise that is saved, which two states show
    for state in first_of_stage.values() if everywhere else (first_of_stage["exchange"], first_of_stage["refit"]):
        *_, last = [state, *choose(tensor, resume=ChoiceState.from_bytes(state.to_bytes()), threads=1)]
        assert last.outcome is not None
        assert last.outcome.advice == whole.advice
        assert last.outcome.points == whole.points
        assert last.outcome.validated == whole.validated
        assert all(np.array_equal(A, B) for A, B in zip(last.outcome.factors, whole.factors, strict=True))


def test_threads_do_not_change_the_outcome() -> None:
    tensor, _ = made("clipped")
    one, two = (list(choose(tensor, QUICK, threads=threads))[-1].outcome for threads in (1, 2))
    assert one is not None
    assert two is not None
    assert one.advice == two.advice
    assert all(np.array_equal(A, B) for A, B in zip(one.factors, two.factors, strict=True))


def test_progress_rises_to_one_and_the_tensor_stays_as_it_was() -> None:
    tensor, _ = made("clipped")
    before = tensor.copy()
    progress = [state.progress for state in choose(tensor, QUICK, threads=1)]
    assert progress == sorted(progress)
    assert progress[-1] == 1
    assert np.array_equal(tensor, before)


@pytest.mark.parametrize("convert", [np.asfortranarray, lambda X: X.astype(np.float32), lambda X: X.tolist()])
def test_any_form_of_the_tensor_is_taken(convert: Callable[[Float64], Float64]) -> None:
    assert chosen(convert(made("clipped")[0])).advice.components == 3


@pytest.mark.parametrize(
    ("tensor", "fields", "field"),
    [
        (np.ones((2, 2, 2)), {}, "tensor"),
        (np.full((20, 16, 12), -1.0), {}, "tensor"),
        (np.ma.masked_greater(np.random.default_rng(0).random((20, 16, 12)), 0.9), {}, "tensor"),
        (np.ones((20, 16, 12)), {"split_half": {"mode": 4}}, "validate.split_half.mode"),
        (np.ones((20, 16, 3)), {"split_half": {"mode": 3, "parts": 4}}, "validate.split_half.parts"),
        (np.ones((80, 60)), {"split_half": {"mode": 1}}, "validate.split_half"),
    ],
)
def test_what_cannot_be_studied_is_refused_at_its_field(tensor: Float64, fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        chosen(tensor, validate=fields)
    assert refusal.value.field == field


def test_a_study_is_resumed_with_its_own_tensor_and_settings_only() -> None:
    tensor, _ = made("clipped")
    state = next(choose(tensor, QUICK, threads=1))
    with pytest.raises(InvalidInput, match="another tensor"):
        next(choose(2 * tensor, resume=state))
    with pytest.raises(InvalidInput, match="other settings"):
        next(choose(tensor, ChoiceSettings(rank=9), resume=state))
    with pytest.raises(InvalidInput, match="damaged"):
        ChoiceState.from_bytes(state.to_bytes()[:100])


@pytest.mark.parametrize(
    "fields", [{"rank": 1}, {"rank": "16"}, {"seeds": 0}, {"noise": "pink"}, {"validate": {"mode": 1}}]
)
def test_settings_out_of_range_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refusal:
        ChoiceSettings.model_validate(fields)
    assert refusal.value.errors()[0]["loc"][0] == next(iter(fields))

"""The chosen number of components and its reasons: correct where it is sure, and not sure where it cannot be."""

from collections.abc import Callable

import numpy as np
import pytest
from pydantic import ValidationError

from sparse_ncp.solvers import InvalidInput, Settings, metrics, solve
from sparse_ncp.solvers.studies import ChoiceSettings, ChoiceState, SplitHalf, Validation, choose
from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.studies import planted
from tests.solvers.studies.planted import chosen, made

QUICK = ChoiceSettings(rank=6, seeds=2, missing="nan")


@pytest.mark.parametrize("noise", [noise for noise in planted.NOISES if noise not in ("correlated", "heavy_tailed")])
def test_planted_components_are_counted_whatever_the_noise(noise: str) -> None:
    """The offset of the Gaussian tensor is a component, too."""
    _, true = made(noise)
    choice, kinds = planted.choice(noise), {"clipped": "clipped", "clipped holes": "clipped", "counts": "counts"}
    advice, components = choice.advice, 4 if noise == "gaussian" else 3
    assert choice.noise == {**kinds, "count holes": "counts"}.get(noise, "gaussian")
    assert advice.suggestion == components
    assert advice.residuals_white
    # Where noise grows with the signal, more than the planted components stand out from the noise of any one bin.
    assert advice.components == (None if noise == "growing" else components)
    assert metrics.factor_match_score(choice.factors, true) > 0.95
    assert ("flat" in advice.reason) == (noise == "gaussian")


@pytest.mark.parametrize("noise", ["gaussian", "clipped", "counts"])
def test_where_everything_agrees_the_count_is_very_sure(noise: str) -> None:
    advice = planted.choice(noise).advice
    assert advice.confidence == "very"
    assert advice.share is not None
    assert advice.share > 0.8
    assert advice.range == (advice.components, advice.components)


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


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_the_samples_may_be_in_any_mode(mode: int) -> None:
    tensor, true = made("holes")
    choice = chosen(np.moveaxis(tensor, 0, mode - 1), samples_mode=mode)
    assert choice.advice == planted.choice("holes").advice
    samples, *others = true
    moved = [*others[: mode - 1], samples, *others[mode - 1 :]]
    assert metrics.factor_match_score(choice.factors, moved) > 0.95


def test_a_mask_and_missing_entries_mean_the_same() -> None:
    tensor, _ = made("holes")
    observed = ~np.isnan(tensor)
    expected = planted.choice("holes").advice
    assert chosen(np.where(observed, tensor, 7.0), mask=observed).advice == expected
    assert chosen(np.ma.masked_invalid(tensor)).advice == expected


def test_what_stands_in_the_holes_has_no_effect() -> None:
    tensor, _ = made("band")
    observed = ~np.isnan(tensor)
    one, other = (chosen(np.where(observed, tensor, value), mask=observed) for value in (0.0, -1e6))
    assert one.advice == other.advice
    assert one.relative_error == other.relative_error


def test_the_evidence_does_not_hide_that_residuals_are_not_noise() -> None:
    advice = planted.choice("correlated").advice
    assert not advice.residuals_white
    assert advice.suggestion == advice.criteria.cliff == 3
    assert "along mode 1 correlate" in advice.reason
    assert "the gain over noise" not in advice.reason  # which has no vote then


def test_criteria_that_disagree_give_a_range_and_no_count() -> None:
    """Profiles that bend from sample to sample are more than the planted number, and fewer than the gain says."""
    A, B, C = planted.factors(3)
    random = np.random.default_rng(3)
    bent = [model([row[None], B * np.exp(0.25 * np.cumsum(random.standard_normal(B.shape), axis=0)), C]) for row in A]
    advice = chosen(planted.negative(planted.signal_of(np.concatenate(bent)), random)).advice
    assert (advice.components, advice.confidence) == (None, "no")
    assert advice.range[0] < advice.range[1]


def test_components_of_one_sample_are_counted_apart() -> None:
    tensor, _ = made("negative")
    random = np.random.default_rng(3)
    spectrum = random.random(16)[:, None] * random.random(12)
    tensor[7] += 2 * spectrum
    advice = chosen(tensor).advice
    assert advice.suggestion == 4
    assert advice.single_samples == (7,)
    assert advice.confidence != "very"
    assert "4 components, of which 1 is in one sample alone" in advice.reason
    assert "sample 7" in advice.reason
    without = chosen(np.delete(tensor, 7, axis=0)).advice
    assert (without.components, without.single_samples) == (3, ())


def test_the_largest_number_tried_is_never_a_count() -> None:
    advice = chosen(made("clipped", rank=5, seed=5)[0], rank=6).advice
    assert (advice.components, advice.confidence) == (None, "no")
    assert "raise rank above 6" in advice.reason


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


@pytest.mark.parametrize("clip", [False, True])
def test_noise_alone_has_no_components(clip: bool) -> None:
    noise = np.random.default_rng(0).standard_normal(planted.SHAPE)
    noise = np.maximum(0.0, noise) if clip else noise
    advice = chosen(noise).advice
    assert (advice.components, advice.suggestion, advice.confidence) == (None, 1, "no")
    assert "nothing stands out" in advice.reason


def test_a_single_seed_is_never_sure() -> None:
    advice = chosen(made("clipped")[0], seeds=1).advice
    assert (advice.components, advice.suggestion, advice.confidence) == (None, 3, "no")
    assert "1 seed cannot agree" in advice.reason


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
    assert choice.points[2].votes == choice.advice.share
    assert 0.05 < choice.noise_level < 0.15


def test_split_halves_agree_on_the_planted_components() -> None:
    tensor, _ = made("clipped")
    choice = chosen(tensor, validate={"split_half": {"mode": 1}})
    found = {outcome.components: outcome for outcome in choice.validated.split_half}
    assert sorted(found) == [2, 3, 4]
    assert found[3].passed
    assert len(found[3].congruence) == 3
    assert not found[4].passed


@pytest.mark.parametrize("noise", ["clipped holes", "counts"])
def test_a_study_resumed_anywhere_ends_the_same(noise: str) -> None:
    tensor, _ = made(noise)
    settings = QUICK.model_copy(update={"validation": Validation(split_half=SplitHalf(mode=2, parts=2))})
    states = list(choose(tensor, settings, threads=1))
    whole = states[-1].outcome
    assert whole is not None
    first_of_stage = {(len(state.views), state.stage): state for state in reversed(states)}
    everywhere = noise == "clipped holes"  # two states show what the other kinds save besides
    for state in first_of_stage.values() if everywhere else (first_of_stage[1, "holdout"], first_of_stage[2, "refit"]):
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


HALF_SEEN = made("negative")[0]  # a channel that was switched on for every other sample only
HALF_SEEN[1::2, 4] = np.nan
REFUSED: list[tuple[Float64, dict[str, object], str, dict[str, object]]] = [
    (np.ones((2, 2, 2)), {}, "tensor", {}),
    (np.full((20, 16, 12), -1.0), {}, "tensor", {}),
    (made("holes")[0], {"missing": "refuse"}, "tensor", {"missing": "nan"}),
    (made("negative")[0], {"negative": "refuse"}, "tensor", {"negative": "keep"}),
    (made("negative")[0], {"noise": "counts"}, "noise", {"noise": "auto"}),
    (made("negative")[0], {"noise": "clipped"}, "noise", {"noise": "gaussian"}),
    (made("negative")[0], {"samples_mode": 4}, "samples_mode", {"samples_mode": 3}),
    (made("negative")[0], {"validate": {"split_half": {"mode": 4}}}, "validate.split_half.mode", {"validate": {}}),
    (
        made("negative")[0][:, :, :3],
        {"validate": {"split_half": {"mode": 3, "parts": 4}}},
        "validate.split_half.parts",
        {"validate": {"split_half": {"mode": 3, "parts": 2}}},
    ),
    (HALF_SEEN, {"validate": {"split_half": {"mode": 1, "parts": 2}}}, "validate.split_half", {"validate": {}}),
    (np.ones((80, 60)), {"validate": {"split_half": {"mode": 1}}}, "validate.split_half", {}),
]


@pytest.mark.parametrize(("tensor", "fields", "field", "remedy"), REFUSED)
def test_what_cannot_be_studied_is_refused_before_anything_runs(
    tensor: Float64, fields: dict[str, object], field: str, remedy: dict[str, object]
) -> None:
    """The remedy is followed, where settings can be one: the study begins."""
    given = {"rank": 4, "missing": "nan", "negative": "keep", **fields}
    with pytest.raises(InvalidInput) as refusal:
        next(choose(tensor, ChoiceSettings.model_validate(given), threads=1))
    assert refusal.value.field == field
    if remedy:
        assert next(choose(tensor, ChoiceSettings.model_validate({**given, **remedy}), threads=1)).step == 1


@pytest.mark.parametrize("validation", [{"split_half": {"mode": 1, "parts": 2}}, {"holdout": {"folds": 1}}])
def test_validations_take_negative_and_missing_entries(validation: dict[str, object]) -> None:
    found = chosen(made("band")[0], validate=validation).validated
    halves, held_out = ([one.components for one in kind] for kind in (found.split_half, found.holdout))
    assert halves + held_out == [2, 3, 4]


def test_an_index_without_a_reading_is_named_with_the_remedy() -> None:
    tensor = made("holes")[0]
    tensor[:, 5] = np.nan
    with pytest.raises(InvalidInput, match=r'index 5 of mode 2 .* exclude=\{"2": \[5\]\}'):
        chosen(tensor)
    assert chosen(tensor, exclude={"2": [5]}).advice.suggestion == 3


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
    "fields",
    [
        {"rank": 1},
        {"rank": "16"},
        {"seeds": 0},
        {"noise": "pink"},
        {"missing": "zero"},
        {"samples_mode": 0},
        {"validate": {"mode": 1}},
    ],
)
def test_settings_out_of_range_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as refusal:
        ChoiceSettings.model_validate(fields)
    assert refusal.value.errors()[0]["loc"][0] == next(iter(fields))

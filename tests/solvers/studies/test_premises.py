"""Where the rule's premises fail there is no sure number, but always an answer or a refusal with a remedy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.solvers.studies import Choice, ChoiceSettings, ChoiceState, choose
from sparse_ncp.solvers.studies.advice import OtherZeros
from sparse_ncp.solvers.studies.fitting import inputs
from sparse_ncp.solvers.studies.fitting.fits import model
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.studies import planted
from tests.solvers.studies.planted import chosen, made

FEW: dict[str, Any] = {"rank": 6, "seeds": 2}


def with_cut_readings() -> Float64:
    """A tensor from which a band was cut out, which was stored as zeros."""
    return np.nan_to_num(made("band")[0])


def test_zeros_that_look_missing_are_taken_both_ways() -> None:
    tensor = with_cut_readings()
    expected = chosen(made("band")[0], **FEW).advice
    assert expected.components == 3
    missing = chosen(tensor, zeros="missing", **FEW).advice
    assert (missing.components, missing.confidence) == (3, expected.confidence)
    assert missing.other_zeros is not None
    readings = chosen(tensor, **FEW).advice
    assert readings.other_zeros == OtherZeros("missing", 3, expected.confidence)
    assert missing.other_zeros == OtherZeros("readings", readings.suggestion, "no")
    assert (readings.components, readings.confidence) == (None, "no")  # it is not 3
    assert "give zeros='missing'" in readings.reason
    assert "taken as missing, they give 3 components, and that is sure" in readings.reason
    assert expected.other_zeros is None


def test_a_study_of_both_readings_is_resumed_anywhere() -> None:
    tensor = with_cut_readings()
    asked = ChoiceSettings(rank=4, seeds=2, negative="keep")
    states = list(choose(tensor, asked, threads=1))
    progress = [state.progress for state in states]
    assert progress == sorted(progress)
    in_between = [state for state in states if state.stage == "zeros"]
    for state in (states[0], in_between[0], in_between[-1]):
        *_, last = choose(tensor, resume=ChoiceState.from_bytes(state.to_bytes()), threads=1)
        assert last.outcome is not None
        assert states[-1].outcome is not None
        assert last.outcome.advice == states[-1].outcome.advice


def test_samples_that_bend_the_components_are_named() -> None:
    tensor, true = made("negative")
    shifted = [true[0][5:6], np.roll(true[1], 2, axis=0), true[2]]
    tensor[5] = 3 * planted.signal_of(model(shifted))[0]
    advice = chosen(np.moveaxis(tensor, 0, 1), samples_mode=2).advice
    assert 5 in (*advice.outlying_samples, *advice.single_samples)
    assert advice.confidence != "very"
    assert "5 (counted from 0)" in advice.reason
    assert 'exclude={"2": [5]}' in advice.reason
    assert planted.choice("negative").advice.outlying_samples == ()


def test_samples_keep_their_numbers_where_others_are_left_out() -> None:
    tensor, _ = made("negative")
    for sample in (2, 7):
        tensor[sample] += 2 * np.random.default_rng(sample).random((16, 1)) * np.random.default_rng(9).random(12)
    advice = chosen(tensor, exclude={1: [2]}).advice
    assert advice.single_samples == (7,)
    assert 'exclude={"1": [2, 7]}' in advice.reason


@pytest.mark.parametrize("shape", [(40, 30), (1, 30, 30), (30, 1, 20)])
def test_components_of_a_matrix_are_never_sure(shape: tuple[int, ...]) -> None:
    exact = planted.signal(planted.factors(2, shape))
    advice = chosen(exact + 0.02 * np.random.default_rng(0).standard_normal(shape)).advice
    assert (advice.components, advice.confidence) == (None, "no")
    assert "fewer than three modes" in advice.reason


def test_one_wild_reading_is_no_component() -> None:
    tensor, _ = made("negative")
    tensor[3, 4, 5] = 1e6
    advice = chosen(tensor).advice
    assert (advice.components, advice.confidence) == (None, "no")
    assert "in one sample alone" in advice.reason
    assert "no component is in more than one sample" in advice.reason


def test_the_remedy_fits_what_the_tensor_allows() -> None:
    """A rank above what the readings allow cannot be raised."""
    exact = planted.signal(planted.factors(3, (7, 6, 6)))
    advice = chosen(exact, rank=12).advice
    assert "raise rank" not in advice.reason


def test_a_tensor_that_takes_too_much_memory_is_refused_with_slices_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, _ = made("negative")
    free = inputs.choice_bytes((10, 16, 12), 1)
    monkeypatch.setattr(inputs, "memory_bytes", lambda: free)
    with pytest.raises(InvalidInput, match=r"about 491,520 bytes .* tensor\[::2, :, :\]"):
        chosen(tensor)
    assert chosen(tensor[::2]).advice.suggestion == 3


def answer(tensor: NDArray[Any], asked: ChoiceSettings) -> Choice | InvalidInput | None:
    try:
        *_, last = choose(tensor, asked, threads=1)
    except InvalidInput as refusal:
        return refusal
    return last.outcome


LENGTHS = st.lists(st.integers(1, 9), min_size=2, max_size=5)
SPOILS: list[Callable[[Float64, np.random.Generator], NDArray[Any]]] = [
    lambda X, _: X.astype(np.float32),
    lambda X, _: np.where(np.indices(X.shape)[0] == 0, 0.0, X),
    lambda X, _: np.repeat(X[..., :1], X.shape[-1], axis=-1),
    lambda X, random: np.where(random.random(X.shape) < 0.9, np.nan, X),
    lambda X, random: np.where(random.random(X.shape) < 0.3, np.nan, X),
    lambda X, random: random.poisson(5 * np.abs(X)),
    lambda X, _: np.ones(X.shape),
    lambda X, _: X > 0.5,
    lambda X, _: np.where(X == X.max(), X, 0.0),
    lambda X, _: -np.abs(X) + 0.1,
]


@settings(max_examples=12)
@given(LENGTHS, st.sampled_from(SPOILS), st.sampled_from([1e-30, 1.0, 1e30]), st.integers(0, 99))
def test_any_tensor_has_an_answer_or_a_refusal(
    lengths: list[int], spoil: Callable[[Float64, np.random.Generator], NDArray[Any]], unit: float, seed: int
) -> None:
    """Warnings are errors in all tests."""
    random = np.random.default_rng(seed)
    exact = model([random.random((length, 2)) for length in lengths])
    tensor = spoil(exact + 0.05 * random.standard_normal(exact.shape), random)
    asked = ChoiceSettings(rank=4, seeds=2, missing="nan", negative="keep")
    if tensor.dtype == np.float64:
        tensor = unit * tensor
    outcome = answer(tensor, asked)
    if isinstance(outcome, InvalidInput):
        assert outcome.remedy
        return
    assert outcome is not None
    advice = outcome.advice
    assert 1 <= advice.range[0] <= advice.suggestion <= advice.range[1]
    assert advice.components in ((None,) if advice.confidence == "no" else (advice.suggestion,))
    assert all(np.isfinite(A).all() for A in outcome.factors)
    assert np.isfinite([advice.weakest_visible, outcome.relative_error, outcome.noise_level]).all()

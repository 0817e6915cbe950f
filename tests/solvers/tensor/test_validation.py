"""Invalid input is refused before anything runs, naming the field and the remedy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from sparse_ncp.solvers import AdviceWarning, InvalidInput, Settings, clip, solve
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.problems import planted, run, start

X = planted(3).tensor
STOP = {"tolerance", "max_seconds", "patience", "max_iterations", "epsilon"}


def spoiled(index: Any, entry: Any) -> Float64:
    tensor = X.copy()
    tensor[index] = entry
    return tensor


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (spoiled((2, 3, 1), np.nan), "1 entry is NaN, the first at (2, 3, 1).*missing='nan'"),
        (spoiled((0, 0, 4), np.inf), "1 entry is infinite in float64, the first at (0, 0, 4)"),
        (
            spoiled((slice(2, 4), 3, 1), -1.0),
            "2 entries are negative, the first at (2, 3, 1).*negative='keep'.*sparse_ncp.clip",
        ),
        (np.asfortranarray(spoiled((2, 3, 1), -1.0)), "first at (2, 3, 1)"),
        (spoiled(([0, 5], [0, 5], [0, 4]), [-1.0, np.nan]), "1 entry is NaN.*first at (5, 5, 4)"),
        ([[1.0, 2.0], [3.0]], "is not an array.*rectangular"),
        (spoiled((2, 3, 1), -1.0), "1 entry is negative, the first at (2, 3, 1)"),
        (-np.ones((3, 3), np.int8), "9 entries are negative"),
        (np.zeros((3, 3)), "all entries are zero"),
        (np.ones(5), "order 1"),
        (np.ones((1,) * 9), "order 9"),
        (np.ones((3, 0, 2)), "mode 2 is empty"),
        (np.ones((3, 3), complex), "dtype complex128"),
        (np.ones((3, 3), object), "dtype object"),
        (np.array([["a", "b"]]), "dtype <U1"),
        (np.ma.masked_array(X, True), "all entries are missing"),
        (np.full((3, 3), 1e200), "norm.*out of the range of float64.*multiply"),
        (np.full((3, 3), 1e-200), "norm.*out of the range"),
    ],
)
def test_a_bad_tensor_is_refused(tensor: Any, words: str) -> None:
    pattern = words.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(InvalidInput, match=pattern) as refusal:
        run(tensor, method="hals")
    assert refusal.value.field == "tensor"
    assert refusal.value.remedy


def test_an_entry_beyond_single_precision_is_refused_when_that_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match="infinite in float32"):
        run(spoiled((0, 0, 0), 1e60), method="hals", precision="float32")


def test_the_number_of_threads_is_positive() -> None:
    with pytest.raises(InvalidInput, match="threads: is 0"):
        run(X, method="hals", threads=0)


def test_lists_and_arrays_of_weights_are_taken_as_they_are_meant() -> None:
    asked = Settings(rank=2, method="apg", beta=np.array([0.1, 0.2]), stop={"max_iterations": 3})
    assert asked.beta == (0.1, 0.2)
    expected = solve(X[0], asked).objective
    assert solve(X[0].tolist(), asked).objective == expected


def test_clip_is_the_remedy() -> None:
    clipped = clip(spoiled((2, 3, 1), -1.0))
    assert clipped[2, 3, 1] == 0
    assert clipped.dtype == X.dtype
    run(clipped, method="hals")
    assert clip(np.array([[-3, 2]], np.int8)).tolist() == [[0, 2]]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rank": 0}, "rank"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"alpha": 1e-300}, "alpha"),
        ({"beta": 1e300}, "beta"),
        ({"beta": (0.1, -0.1, 0.1)}, "beta"),
        ({"method": "sgd"}, "method"),
        ({"penalty": "l2"}, "penalty"),
        ({"init": "ones"}, "init"),
        ({"precision": "float16"}, "precision"),
        ({"inner_passes": 0}, "inner_passes"),
        ({"method": "anls-bpp", "inner_passes": 2}, "inner_passes"),
        ({"method": "apg", "normalise": True}, "normalise"),
        ({"method": "hals", "normalise": True, "rescale": True}, "normalise"),
        ({"method": "mu", "delta_omega": 0.5}, "delta_omega"),
        ({"method": "apg", "delta_omega": 1.0}, "delta_omega"),
        ({"stop": {"tolerance": -1}}, "tolerance"),
        ({"stop": {"max_seconds": 0}}, "max_seconds"),
        ({"stop": {"patience": 0}}, "patience"),
        ({"stop": {"max_iterations": 0}}, "max_iterations"),
        ({"stop": {"epsilon": 1}}, "epsilon"),
        ({"lambda": 1}, "lambda"),
    ],
)
def test_a_bad_setting_is_refused_at_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        Settings(**{"rank": 2, "method": "hals", **fields})
    assert refusal.value.errors()[0]["loc"][field in STOP] == field
    assert isinstance(refusal.value, ValueError)  # the family of InvalidInput


@pytest.mark.parametrize("field", ["alpha", "beta"])
def test_a_penalty_for_another_number_of_modes_is_refused(field: str) -> None:
    asked: dict[str, Any] = {"method": "hals", field: (0.1, 0.1)}
    with pytest.raises(InvalidInput, match=f"{field}: has 2 numbers for 3 modes"):
        run(X, **asked)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda factors: factors[:2], "has 2 factors"),
        (lambda factors: [*factors[:2], factors[2][:, :3]], r"A3: has shape \(5, 3\)"),
        (lambda factors: [*factors[:2], -factors[2]], "A3: has negative entries, 20 of 20"),
        (lambda factors: [factors[0] * np.nan, *factors[1:]], "A1: has NaN"),
        (lambda factors: [factors[0] * 1j, *factors[1:]], "A1: has dtype complex"),
        (lambda factors: [factors[0] * 1e70, *factors[1:]], "initial: gives a model outside the range of float64"),
    ],
)
def test_bad_initial_factors_are_refused(spoil: Callable[[list[Float64]], list[Any]], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        run(X, method="hals", initial=spoil(start(X.shape, 4)))


def test_a_single_zero_beta_is_warned_of_before_and_after() -> None:
    settings = Settings(rank=2, method="hals", rescale=True, beta=(0.1, 0.0, 0.1), stop={"max_iterations": 1})
    with pytest.warns(AdviceWarning, match="beta is zero in mode 2") as caught:
        result = solve(X, settings)
    assert caught[0].filename == __file__
    assert "beta is zero in mode 2" in result.warnings[0]

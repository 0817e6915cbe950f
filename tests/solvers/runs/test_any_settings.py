"""Valid input runs: any settings that the schema takes give finite factors of any tensor that validation accepts.

One exception, refused by name: weights so far apart between the modes that they drive the factors out of the precision.
"""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from sparse_ncp.solvers import METHODS, AdviceWarning, InvalidInput, Result, Settings, State, estimate_memory, sweeps
from tests.solvers.problems import examples

WEIGHT = st.one_of(st.just(0.0), st.floats(1e-6, 1e3), st.floats(1e-50, 1e50))
SPARSITY = st.one_of(st.just("auto"), st.floats(1e-4, 0.9))
DTYPES = ("float64", "float32", "float16", "int64", "uint8", "bool", ">f8")
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "inner_passes": st.one_of(st.integers(1, 5), st.just(1000)),
    "normalise": st.booleans(),
    "delta_omega": st.floats(0, 1, exclude_max=True),
}
STOP = st.fixed_dictionaries(
    {"max_iterations": st.integers(1, 8)},
    optional={
        "criterion": st.sampled_from(("relative_error", "objective", "relative_objective")),
        "tolerance": st.one_of(st.just(0.0), st.floats(0, 1), st.floats(0, 1e308)),
        "patience": st.integers(1, 10**9),
        "max_seconds": st.floats(1e-300, 1e300),
    },
)


@st.composite
def tensors(draw: st.DrawFn) -> NDArray[Any]:
    """Orders 2 to 5, tiny; now and then a mode long enough to be compressed."""
    order = draw(st.integers(2, 5))
    shape = [draw(st.integers(1, 4)) for _ in range(order)]
    if draw(st.booleans()):
        shape[draw(st.integers(0, order - 1))] = draw(st.integers(12, 20))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    entries = random.random(shape)
    kind = draw(st.sampled_from(("random", "sparse", "flat", "single")))
    if kind == "sparse":
        entries *= random.random(shape) < 0.3
    elif kind == "flat":
        entries[:] = 1.0
    elif kind == "single":
        entries[:] = 0.0
    entries.flat[0] = 1.0
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    scale = draw(st.sampled_from((1.0, 1e-3, 1e3))) if dtype.kind == "f" else 10.0
    scaled = np.ceil(entries * scale) if dtype.kind in "iu" else entries * scale
    return np.asarray(scaled.astype(dtype), order=draw(st.sampled_from(("C", "F"))))


@st.composite
def asked_for(draw: st.DrawFn, order: int) -> Settings:
    """Draw settings as a caller may write them; those that the schema refuses are left out."""
    method = draw(st.sampled_from(sorted(METHODS)))
    per_mode = st.one_of(WEIGHT, st.lists(WEIGHT, min_size=order, max_size=order))
    optional: dict[str, st.SearchStrategy[Any]] = {
        "alpha": per_mode,
        **draw(st.sampled_from(({"beta": per_mode}, {"sparsity": SPARSITY}))),
        "penalty": st.sampled_from(("l1", "l1_squared", None)),
        "seed": st.one_of(st.integers(0, 10), st.integers(0, 2**200)),
        "init": st.sampled_from(("random", "random_scaled", "nndsvd")),
        "precision": st.sampled_from(("float64", "float32", None)),
        "rescale": st.booleans(),
        "accelerate": st.sampled_from(("none", "auto", "compress", "float32")),
        "sparsity_threshold": st.floats(0, 1e300),
        "extrapolate": st.sampled_from((True, False, None)),
        "regrow": st.sampled_from((True, False, None)),
        "starts": st.sampled_from((1, 2, 3, None)),
        "starts_mode": st.sampled_from(("best", "all")),
        "preset": st.sampled_from(("recommended", None)),
        **{name: OPTIONS[name] for name in sorted(METHODS[method].options)},
    }
    fields = draw(st.fixed_dictionaries({"rank": st.integers(1, 6), "stop": STOP}, optional=optional))
    try:
        return Settings.model_validate({"method": method, **fields})
    except ValidationError:
        reject()


def is_extreme(asked: Settings) -> bool:
    """Return whether weights are far beyond those for ordinary tensors: only these may be refused during a run."""
    weights = [*np.ravel(asked.alpha), *np.ravel(asked.beta)]
    return max(weights) > 1e3 or min([weight for weight in weights if weight], default=1.0) < 1e-6


def runs(tensor: NDArray[Any], asked: Settings) -> list[State]:
    try:
        return run(tensor, asked)
    except InvalidInput as refusal:
        if refusal.field != "alpha" or not is_extreme(asked):
            raise
        reject()


def run(tensor: NDArray[Any], asked: Settings, resume: State | None = None) -> list[State]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AdviceWarning)  # advice is expected; nothing else may warn
        return list(sweeps(tensor, asked, resume=resume, threads=1))


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_what_validates_runs(data: st.DataObject) -> None:
    tensor = data.draw(tensors(), "tensor")
    asked = data.draw(asked_for(tensor.ndim), "settings")
    assert estimate_memory(tensor, asked).total > 0
    states = runs(tensor, asked)
    result = Result.of(states[-1])
    assert [A.shape for A in result.factors] == [(length, asked.rank) for length in tensor.shape]
    for A in result.factors:
        assert np.isfinite(A).all()
        assert (A >= 0).all()
    assert np.isfinite(result.history.objective).all()
    assert np.isfinite(result.history.relative_error).all()
    assert min(result.history.relative_error) >= 0
    assert np.isfinite(result.weights).all()
    assert result.iterations == len(states) <= asked.stop.max_iterations + states[-1].trial_iterations
    assert result.stop_reason in ("tolerance", "max_iterations", "max_seconds")


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(st.data())
def test_what_validates_is_resumed_to_the_same_bits(data: st.DataObject) -> None:
    """From any state on the way, saved and read again."""
    tensor = data.draw(tensors(), "tensor")
    asked = data.draw(asked_for(tensor.ndim), "settings")
    if asked.stop.max_seconds is not None:
        reject()  # a clock never runs the same way twice
    states = runs(tensor, asked)
    place = data.draw(st.integers(0, len(states) - 1), "resumed after")
    again = run(tensor, asked, State.from_bytes(states[place].to_bytes())) or [states[place]]
    assert again[-1].stop_reason == states[-1].stop_reason
    for found, expected in zip(again[-1].factors, states[-1].factors, strict=True):
        assert found.tobytes() == expected.tobytes()


def test_settings_survive_their_json() -> None:
    """Settings are stored as JSON by the server, and restored exactly, including seeds with many digits."""
    asked = Settings(rank=3, method="apg", seed=2**200, alpha=(0.0, 1e-50), beta=1e50, delta_omega=0.5)
    assert Settings.model_validate_json(asked.model_dump_json()) == asked


@pytest.mark.parametrize("method", METHODS)
def test_every_option_is_tried(method: str) -> None:
    """A new option of a method belongs into the strategy above."""
    assert METHODS[method].options <= OPTIONS.keys()


@pytest.mark.parametrize(
    ("tensor", "alpha"),
    [
        (np.full((1, 1, 1, 1, 1), 10), (0.0, 0.0, 0.0, 6.8e15, 1.1e11)),
        (np.ones((1, 1, 1, 1)), (0.0, 0.0, 1.9e16, 2.1e9)),
    ],
)
def test_weights_that_drive_the_factors_out_of_the_precision_are_refused_by_name(
    tensor: NDArray[Any], alpha: tuple[float, ...]
) -> None:
    """The scale gathers in the modes without a weight, sweep after sweep; in double precision there is room for it."""
    asked = {"rank": 1, "method": "als", "alpha": alpha, "stop": {"max_iterations": 4}}
    with pytest.raises(InvalidInput, match="out of the range of float32"):
        run(tensor, Settings.model_validate({**asked, "precision": "float32"}))
    assert np.isfinite(run(tensor, Settings.model_validate(asked))[-1].history.objective).all()

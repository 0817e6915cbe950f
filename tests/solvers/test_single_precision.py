"""A run may begin with a copy in single precision, and still ends as a run on the tensor itself."""

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import METHODS, InvalidInput, Settings, State, estimate_memory, solve, sweeps, synthetic
from sparse_ncp.solvers.bcd.phases import MOST_SINGLE, is_single_precision_worthwhile
from sparse_ncp.solvers.settings import Accelerate
from sparse_ncp.solvers.tensor.compressed import sketch_bytes
from sparse_ncp.solvers.tensor.dense import SINGLE_BYTES, Tensor
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.protocol import Positive
from sparse_ncp.solvers.tensor.threads import Threads
from tests.solvers.literal import objective, relative_error
from tests.solvers.problems import Layout, accelerated, is_squared, per_mode, problem_of, same_bits

X = synthetic.planted((30, 20, 15), rank=3, snr_db=30.0).tensor
methods = pytest.mark.parametrize("method", METHODS)


def asked(method: str = "anls-bpp", accelerate: Accelerate = "float32", **fields: Any) -> Settings:
    return accelerated(method, accelerate, **fields)


@methods
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_the_run_ends_where_the_plain_one_does(method: str, beta: float) -> None:
    wanted = asked(method, beta=beta)
    ours, plain = solve(X, wanted), solve(X, asked(method, "none", beta=beta))
    assert 0 < ours.single_iterations < ours.iterations
    assert (ours.compressed_iterations, plain.single_iterations) == (0, 0)
    assert ours.stop_reason == plain.stop_reason == "tolerance"
    assert ours.objective <= 1.001 * plain.objective
    assert {A.dtype for A in ours.factors} == {np.dtype(np.float64)}
    weights = per_mode(wanted.alpha, 3), per_mode(wanted.beta, 3)
    assert ours.objective == pytest.approx(objective(X, ours.factors, *weights, is_squared(wanted)), rel=1e-9)


@methods
def test_the_phase_ends_with_exact_numbers(method: str) -> None:
    wanted = asked(method)
    states = list(sweeps(X, wanted))
    last = next(state for state in states if state.phase == "exact")
    assert last.single_until == last.iteration
    weights = per_mode(wanted.alpha, 3), per_mode(wanted.beta, 3)
    exact = objective(X, last.factors, *weights, is_squared(wanted))
    assert last.history.objective[-1] == pytest.approx(exact, rel=1e-9)
    assert last.history.relative_error[-1] == pytest.approx(relative_error(X, last.factors), rel=1e-9)
    phases = [states[-1].phase_at(iteration) for iteration in range(1, len(states) + 1)]
    assert phases == ["single"] * (last.iteration - 1) + ["exact"] * (len(states) - last.iteration + 1)


def test_numbers_before_are_within_the_noise_of_single_precision() -> None:
    wanted = asked(stop={"max_iterations": 8, "tolerance": 0.0})
    for state in sweeps(X, wanted):
        weights = per_mode(wanted.alpha, 3), per_mode(wanted.beta, 3)
        exact = objective(X, [A.astype(np.float64) for A in state.factors], *weights, is_squared(wanted))
        assert abs(state.objective - exact) < 2e-7 * float(np.vdot(X, X))


@methods
def test_a_limit_in_the_phase_still_gives_exact_numbers(method: str) -> None:
    result = solve(X, asked(method, stop={"max_iterations": 3, "tolerance": 0.0}))
    assert (result.stop_reason, result.iterations, result.single_iterations) == ("max_iterations", 3, 3)
    assert result.relative_error == pytest.approx(relative_error(X, result.factors), rel=1e-9)


@pytest.mark.parametrize("method", ["als", "anls-bpp", "apg"])
@pytest.mark.parametrize("criterion", ["relative_error", "relative_objective"])
def test_without_a_tolerance_the_phase_ends_where_only_rounding_is_left(method: str, criterion: str) -> None:
    """Else single precision would have the last word."""
    result = solve(X, asked(method, stop={"criterion": criterion, "tolerance": 0.0, "max_iterations": 400}))
    assert 0 < result.single_iterations < 400
    assert result.iterations == 400


@methods
def test_a_run_resumed_in_either_phase_is_the_uninterrupted_run(method: str) -> None:
    # Finer than single precision resolves, so several exact sweeps follow.
    stop = {"criterion": "relative_objective", "tolerance": 1e-8, "patience": 3, "max_iterations": 3000}
    wanted = asked(method, stop=stop)
    states = list(sweeps(X, wanted))
    until = states[-1].single_until
    for interrupted in (states[0], states[until - 2], states[until - 1], states[until]):
        *_, last = sweeps(X, wanted, resume=State.from_bytes(interrupted.to_bytes()))
        assert last.history.objective == states[-1].history.objective
        assert last.single_until == until
        assert same_bits(last.factors, states[-1].factors)


def test_trial_starts_and_put_back_run_in_single_precision_and_resume() -> None:
    wanted = Settings.recommended(5, beta=0.3, starts=3, accelerate="float32")
    states = list(sweeps(X, wanted))
    assert [state.phase for state in states if state.search and state.search.is_trial][-1] == "single"
    assert states[-1].phase_at(1) == "start"
    for interrupted in states[: -1 : len(states) // 5]:
        *_, last = sweeps(X, wanted, resume=State.from_bytes(interrupted.to_bytes()), threads=1)
        assert last.history.objective == states[-1].history.objective
        assert same_bits(last.factors, states[-1].factors)


def test_a_state_of_the_phase_belongs_to_a_tensor_in_double_precision() -> None:
    state = next(sweeps(X, asked()))
    with pytest.raises(InvalidInput, match="saved in float32"):
        next(sweeps(X.astype(np.float32), asked(), resume=state))


@methods
def test_threads_do_not_show(method: str) -> None:
    ours, theirs = (solve(X, asked(method), threads=threads) for threads in (1, 3))
    assert ours.history.objective == theirs.history.objective
    assert same_bits(ours.factors, theirs.factors)


@pytest.mark.parametrize("form", [np.ascontiguousarray, np.asfortranarray])
def test_a_memory_map_gives_the_bits_of_an_array(form: Layout, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", form(X))
    mapped, held = (solve(Y, asked()) for Y in (np.load(tmp_path / "X.npy", mmap_mode="r"), form(X)))
    assert mapped.single_iterations > 0
    assert same_bits(mapped.factors, held.factors)


def test_negative_entries_stay() -> None:
    noisy = X - X.mean() / 4
    result = solve(noisy, asked(negative="keep"))
    assert result.single_iterations > 0
    assert result.relative_error == pytest.approx(relative_error(noisy, result.factors), rel=1e-9)


def test_a_tensor_in_single_precision_runs_plainly() -> None:
    narrow = X.astype(np.float32)
    ours, theirs = (solve(narrow, asked(accelerate=accelerate)) for accelerate in ("float32", "none"))
    assert ours.single_iterations == 0
    assert same_bits(ours.factors, theirs.factors)


@pytest.mark.parametrize(
    ("change", "fixed", "reason"),
    [
        (lambda X: np.where(np.random.default_rng(0).random(X.shape) < 0.9, X, np.nan), None, "missing entries"),
        (lambda X: X * 1e20, None, "norm of"),
        (lambda X: X, {2: np.ones((20, 4))}, "fixed factors"),
    ],
)
def test_what_single_precision_cannot_hold_is_refused_by_name_and_left_alone_by_auto(
    change: Layout, fixed: dict[int, Array] | None, reason: str
) -> None:
    with pytest.raises(InvalidInput, match=f"accelerate: float32 cannot be combined with .*{reason}"):
        solve(change(X), asked(missing="nan"), fixed=fixed)
    result = solve(change(X), asked(accelerate="auto", missing="nan", stop={"max_iterations": 2}), fixed=fixed)
    assert result.single_iterations == 0


def test_factors_that_leave_the_range_go_on_in_double_precision() -> None:
    """The scale gathers in the modes without a weight, sweep after sweep; in double precision there is room for it."""
    one = np.full((1, 1, 1, 1, 1), 10.0)
    fields: dict[str, Any] = {"rank": 1, "alpha": (0.0, 0.0, 0.0, 6.8e15, 1.1e11), "beta": 0.0, "rescale": False}
    result = solve(one, asked("als", **fields, init="random", stop={"max_iterations": 4}))
    assert result.single_iterations < 4
    assert np.isfinite(result.history.objective).all()
    wide = [np.full((length, 4), size) for length, size in zip(X.shape, (1e30, 1e20, 1e-50), strict=True)]
    assert solve(X, asked(stop={"max_iterations": 3}), initial=wide).single_iterations == 0


def of_shape(shape: tuple[int, ...], pool: Threads) -> Tensor:
    """A tensor of one number that takes no room."""
    return Tensor(np.broadcast_to(np.float64(1), (1,) * len(shape)), 1.0, Positive(1.0, 1.0), pool)


@pytest.mark.parametrize(
    ("shape", "rank", "pays"),
    [
        ((9, 71, 60, 42), 40, True),
        ((9, 60, 50, 30), 40, False),  # fewer entries than a sweep takes long for
        ((9, 4260, 42), 40, False),  # one long mode: a sketch is small, and the copy is not
        ((300, 300, 300), 40, True),
        ((500, 400, 400), 80, False),  # a copy of over 256 MB
    ],
)
def test_auto_decides_by_the_shape_and_takes_no_more_memory_than_before(
    shape: tuple[int, ...], rank: int, pays: bool
) -> None:
    with Threads(1) as pool:
        tensor = of_shape(shape, pool)
        tensor.shape = shape
        assert (
            is_single_precision_worthwhile(tensor, problem_of(asked(rank=rank, accelerate="auto"), len(shape))) == pays
        )
    if pays:
        assert SINGLE_BYTES * math.prod(shape) <= sketch_bytes(shape, rank)
        assert math.prod(shape) <= MOST_SINGLE


@pytest.mark.parametrize("accelerate", ["float32", "auto"])
def test_the_memory_estimate_holds(accelerate: Accelerate) -> None:
    tensor = synthetic.planted((36, 35, 32, 30), rank=3, snr_db=10.0).tensor
    wanted = asked(rank=20, accelerate=accelerate, stop={"max_iterations": 3}, diagnose=False)
    solve(tensor[:2, :2, :2, :2], wanted)  # what numba and BLAS load once is not this run's
    tracemalloc.start()
    result = solve(tensor, wanted, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.single_iterations > 0
    assert peak < estimate_memory(tensor, wanted).total
    plain = estimate_memory(tensor, wanted.model_copy(update={"accelerate": "none"}))
    assert estimate_memory(tensor, wanted).copy - plain.copy == (tensor.size * 4 if accelerate == "float32" else 0)

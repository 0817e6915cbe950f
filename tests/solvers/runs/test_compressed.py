"""An accelerated run sweeps over a compressed tensor first, and still ends as a run on the tensor itself."""

import tracemalloc
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from sparse_ncp.solvers import METHODS, Settings, State, estimate_memory, solve, sweeps, synthetic
from sparse_ncp.solvers.bcd.phases import compress_if_worthwhile
from sparse_ncp.solvers.settings import Accelerate
from sparse_ncp.solvers.tensor.compressed import compress
from sparse_ncp.solvers.tensor.scan import scan
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import Precision, prepare_tensor
from tests.solvers.literal import model, mttkrp, objective, relative_error
from tests.solvers.problems import Layout, accelerated, is_squared, per_mode, planted, problem_of, same_bits, start

X = synthetic.planted((60, 50, 40), rank=3, snr_db=40.0).tensor
# Compression leaves much of it out, so several exact sweeps follow.
NOISY = synthetic.planted((60, 50, 40), rank=3, snr_db=10.0).tensor
COMPRESSIBLE = [name for name, method in METHODS.items() if method.signed]
methods = pytest.mark.parametrize("method", COMPRESSIBLE)


def asked(method: str = "anls-bpp", accelerate: Accelerate = "compress", **fields: Any) -> Settings:
    return accelerated(method, accelerate, **fields)


@given(
    shape=st.lists(st.sampled_from([1, 3, 14, 17, 20]), min_size=2, max_size=4).map(tuple),
    order=st.sampled_from("CF"),
    precision=st.sampled_from(["float64", "float32"]),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_a_tensor_of_low_rank_is_answered_for_exactly(
    shape: tuple[int, ...], order: Literal["C", "F"], precision: Precision, seed: int
) -> None:
    random = np.random.default_rng(seed)
    X = np.asarray(model([random.random((length, 2)) for length in shape]), order=order)
    factors = [random.random((length, 3)).astype(precision) for length in shape]
    with Threads(1) as pool:
        tensor = prepare_tensor(X, precision, pool)
        small = compress(tensor, 3, pool, largest_loss=1e-3)
        if small is None:
            assert max(shape) <= 13
            return
        tolerance = 1e-9 if precision == "float64" else 1e-4
        for mode, M in small.sweep(factors, small.first_contraction(factors)):
            np.testing.assert_allclose(M, mttkrp(X, factors, mode), rtol=tolerance)
            factors[mode] = random.random(factors[mode].shape).astype(precision)


def test_what_is_left_out_is_the_noise() -> None:
    with Threads(1) as pool:
        tensor = prepare_tensor(X, None, pool)
        # 40 dB, of which the constant part of the noise is kept.
        assert compress(tensor, 4, pool, largest_loss=0.01) is not None
        assert compress(tensor, 4, pool, largest_loss=0.005) is None


@pytest.mark.parametrize(
    ("kind", "rank", "pays"),
    [
        (lambda: synthetic.planted((300, 70, 60)), 12, True),
        (lambda: synthetic.planted((300, 70, 60), snr_db=15.0), 12, False),  # too noisy
        (lambda: synthetic.merge_modes(synthetic.evoked((9, 60, 50, 42)), 1), 30, False),  # too noisy
        (lambda: synthetic.evoked((9, 60, 50, 42)), 40, False),  # modes too short
        (lambda: synthetic.planted((60, 50, 40)), 4, False),  # too small
    ],
)
def test_auto_decides_by_shape_and_spectrum(kind: Callable[[], synthetic.Synthetic], rank: int, pays: bool) -> None:
    with Threads(2) as pool:
        tensor = prepare_tensor(kind().tensor, None, pool)
        problem = problem_of(asked(rank=rank, accelerate="auto"), len(tensor.shape))
        assert (compress_if_worthwhile(tensor, problem, lambda share: None) is not None) == pays


@pytest.mark.parametrize("method", ["hals", "mu"])
def test_where_auto_declines_the_run_is_the_plain_one(method: str) -> None:
    ours, theirs = (solve(X, asked(method, accelerate)) for accelerate in ("auto", "none"))
    assert ours.compressed_iterations == 0
    assert ours.history.objective == theirs.history.objective
    assert same_bits(ours.factors, theirs.factors)


@methods
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_an_accelerated_run_ends_where_the_plain_one_does(method: str, beta: float) -> None:
    wanted = asked(method, beta=beta, rescale=beta > 0)
    ours, plain = solve(X, wanted), solve(X, asked(method, "none", beta=beta, rescale=beta > 0))
    assert 0 < ours.compressed_iterations < ours.iterations
    assert ours.stop_reason == plain.stop_reason == "tolerance"
    assert ours.objective <= 1.001 * plain.objective
    weights = per_mode(wanted.alpha, 3), per_mode(wanted.beta, 3)
    assert ours.objective == pytest.approx(objective(X, ours.factors, *weights, is_squared(wanted)), rel=1e-9)


@methods
def test_the_compressed_phase_ends_with_exact_numbers(method: str) -> None:
    wanted = asked(method)
    last = next(state for state in sweeps(X, wanted) if state.phase == "exact")
    assert last.compressed_until == last.iteration
    weights = per_mode(wanted.alpha, 3), per_mode(wanted.beta, 3)
    exact = objective(X, last.factors, *weights, is_squared(wanted))
    assert last.history.objective[-1] == pytest.approx(exact, rel=1e-9)
    assert last.history.relative_error[-1] == pytest.approx(relative_error(X, last.factors), rel=1e-9)


@methods
def test_a_limit_in_the_compressed_phase_still_gives_exact_numbers(method: str) -> None:
    result = solve(X, asked(method, stop={"max_iterations": 3, "tolerance": 0.0}))
    assert (result.stop_reason, result.iterations, result.compressed_iterations) == ("max_iterations", 3, 3)
    assert result.relative_error == pytest.approx(relative_error(X, result.factors), rel=1e-9)


def test_convergence_on_the_last_iteration_that_is_allowed_ends_the_run() -> None:
    """Convergence ends the compressed phase only, but a limit ends both."""
    converged = next(state.iteration for state in sweeps(X, asked("anls-bpp")) if state.phase == "exact")
    wanted = asked("anls-bpp")
    wanted = wanted.model_copy(update={"stop": wanted.stop.model_copy(update={"max_iterations": converged})})
    states = list(sweeps(X, wanted))
    assert len(states) == converged
    assert states[-1].stop_reason == "max_iterations"


@methods
@pytest.mark.parametrize("noisy", [False, True])
def test_a_run_that_has_converged_before_its_exact_sweeps_ends_with_the_first_that_changes_little(
    method: str, noisy: bool
) -> None:
    wanted = asked(method)
    *_, last = sweeps(NOISY if noisy else X, wanted)
    tolerance, patience, until = wanted.stop.tolerance, wanted.stop.patience, last.compressed_until
    objective = np.array(last.history.objective)
    exact = abs(np.diff(objective[until - 1 :])) / objective[until - 1 : -1]
    assert last.stop_reason == "tolerance"
    if noisy:
        assert exact[0] >= tolerance
        assert (exact[-patience:] < tolerance).all()
        assert not any((exact[k : k + patience] < tolerance).all() for k in range(len(exact) - patience))
    else:
        assert len(exact) == 1
        assert exact[0] < tolerance


@methods
def test_a_run_resumed_in_either_phase_is_the_uninterrupted_run(method: str) -> None:
    wanted = asked(method)
    states = list(sweeps(NOISY, wanted))
    until = states[-1].compressed_until
    for interrupted in (states[0], states[until - 2], states[until - 1], states[until]):
        *_, last = sweeps(NOISY, wanted, resume=State.from_bytes(interrupted.to_bytes()))
        assert last.history.objective == states[-1].history.objective
        assert last.compressed_until == until
        assert same_bits(last.factors, states[-1].factors)


@methods
def test_threads_do_not_show_in_an_accelerated_run(method: str) -> None:
    ours, theirs = (solve(X, asked(method), threads=threads) for threads in (1, 3))
    assert ours.history.objective == theirs.history.objective
    assert same_bits(ours.factors, theirs.factors)


@methods
@pytest.mark.parametrize("fault", ["dead", "twins", "zeros"])
def test_a_singular_start_survives_the_compression(method: str, fault: str) -> None:
    factors = start(X.shape, 4)
    for A in factors:
        A[:, 3] = 0 if fault == "dead" else A[:, 2]
        if fault == "zeros":
            A[:] = 0
    result = solve(X, asked(method, stop={"max_iterations": 30}), initial=factors)
    assert np.isfinite(result.history.objective).all()
    assert all(np.isfinite(A).all() and (A >= 0).all() for A in result.factors)


def test_a_perfect_fit_ends_quietly() -> None:
    exact = synthetic.planted((40, 30, 20), rank=2, snr_db=200.0).tensor
    result = solve(exact, asked(rank=2, beta=0.0, stop={"max_iterations": 200}))
    assert result.relative_error == pytest.approx(relative_error(exact, result.factors), rel=1e-6, abs=1e-12)
    assert result.relative_error < 1e-3


def test_a_tensor_that_cannot_be_compressed_runs_plainly() -> None:
    small = planted(3).tensor
    ours, theirs = (solve(small, asked(accelerate=accelerate)) for accelerate in ("compress", "none"))
    assert same_bits(ours.factors, theirs.factors)


@pytest.mark.parametrize("form", [np.ascontiguousarray, np.asfortranarray])
def test_the_memory_estimate_holds(form: Layout) -> None:
    tensor = form(synthetic.planted((120, 110, 100), rank=3).tensor)
    wanted = asked(stop={"max_iterations": 3})
    estimate = estimate_memory(tensor, wanted).total
    solve(tensor[:2, :2, :2], wanted)  # what numba and BLAS load once is not this run's
    tracemalloc.start()
    solve(tensor, wanted, threads=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < estimate


def test_multiplicative_updates_refuse_a_compressed_tensor() -> None:
    with pytest.raises(ValidationError, match="nonnegative"):
        asked("mu")


def test_the_clock_counts_the_compression() -> None:
    state = next(sweeps(X, asked()))
    assert state.history.seconds[0] > state.preparation_seconds > 0


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("masked", [False, True])
def test_a_scan_that_is_known_changes_no_bit(order: Any, precision: Precision, masked: bool) -> None:
    """Nor does it count where the entries are converted or masked: there it is of other entries."""
    tensor = np.asarray(X, order=order)
    mask = np.ones(X.shape, bool)
    mask[1, 2, 3] = not masked
    settings = asked(precision=precision, accelerate="auto", stop={"max_iterations": 4})
    with Threads(2) as pool, single_threaded_blas():
        known = scan(tensor, pool)
    first, second = (list(sweeps(tensor, settings, mask=mask, scan=found))[-1] for found in (None, known))
    assert same_bits(first.factors, second.factors)
    assert first.history.objective == second.history.objective

"""A run ends for one stated reason, and its clock counts only the work of the method."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparse_ncp.solvers import METHODS, Clock, History, InvalidInput, Settings, State, solve, sweeps, synthetic
from sparse_ncp.solvers.bcd.objective import measure
from sparse_ncp.solvers.bcd.result import Result
from sparse_ncp.solvers.block import Block, Memory
from sparse_ncp.solvers.tensor.products import Float64
from tests.solvers.problems import planted, start

X = planted(3).tensor


def history(**stop: Any) -> History:
    return solve(X, Settings(rank=3, method="hals", stop=stop)).history


@pytest.mark.parametrize(
    ("criterion", "values"),
    [("relative_error", lambda h: h.relative_error), ("objective", lambda h: h.objective)],
)
def test_an_absolute_change_below_the_tolerance_stops(
    criterion: str, values: Callable[[History], Sequence[float]]
) -> None:
    series = np.array(values(history(criterion=criterion, tolerance=1e-5)))
    changes = np.abs(np.diff(series))
    assert changes[-1] < 1e-5
    assert (changes[:-1] >= 1e-5).all()


def test_a_relative_change_of_the_objective_stops() -> None:
    objective = np.array(history(criterion="relative_objective", tolerance=1e-4).objective)
    changes = np.abs(np.diff(objective)) / objective[:-1]
    assert changes[-1] < 1e-4
    assert (changes[:-1] >= 1e-4).all()


def test_patience_wants_consecutive_small_changes() -> None:
    errors = np.array(history(tolerance=1e-5, patience=4).relative_error)
    small = np.abs(np.diff(errors)) < 1e-5
    assert small[-4:].all()
    assert not any(small[k : k + 4].all() for k in range(len(small) - 4))


@pytest.mark.parametrize("method", METHODS)
def test_every_limit_is_named(method: str) -> None:
    def stopped_by(**stop: Any) -> str:
        return solve(X, Settings(rank=3, method=method, stop=stop)).stop_reason

    assert stopped_by(tolerance=0.0, max_iterations=3) == "max_iterations"
    assert stopped_by(tolerance=1e3) == "tolerance"
    assert stopped_by(tolerance=0.0, max_seconds=1e-9) == "max_seconds"


def test_max_seconds_is_honoured_within_one_sweep() -> None:
    result = solve(X, Settings(rank=3, method="mu", stop={"tolerance": 0.0, "max_seconds": 0.05}))
    assert result.stop_reason == "max_seconds"
    *before, last = result.history.seconds
    assert last >= 0.05 > max(before, default=0)  # on a busy machine one sweep may take that long


def test_the_clock_stands_while_the_caller_thinks() -> None:
    settings = Settings(rank=3, method="hals", stop={"tolerance": 0.0, "max_iterations": 4})
    started = time.perf_counter()
    thinking = 0.0
    for state in sweeps(X, settings):
        pause = time.perf_counter()
        while time.perf_counter() < pause + 0.05:
            pass
        thinking += time.perf_counter() - pause
        computed = state.seconds
    assert computed <= time.perf_counter() - started - thinking


def test_the_clock_stands_while_the_objective_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*arguments: Any) -> Any:
        pause = time.perf_counter()
        while time.perf_counter() < pause + 0.2:
            pass
        return measure(*arguments)

    monkeypatch.setattr("sparse_ncp.solvers.bcd.sweep.measure", slow)
    result = solve(X, Settings(rank=3, method="apg", stop={"tolerance": 0.0, "max_iterations": 5}), threads=1)
    assert result.seconds < 0.5


def test_an_exact_fit_ends_a_relative_criterion() -> None:
    """The objective is only rounding there, and its relative change would never fall below the tolerance."""
    A, B, C = start((6, 5, 4), 1)
    tensor = np.einsum("ir,jr,kr->ijk", A, B, C)
    asked = Settings.recommended(1, alpha=0.0, beta=0.0, stop={"max_iterations": 300})
    result = solve(tensor, asked)
    assert result.stop_reason == "tolerance"
    assert result.relative_error < 1e-6


def test_single_precision_stops_where_double_does() -> None:
    """Here the relative error is 0.013: the accelerated formula would jump by more than the tolerance."""
    tensor = synthetic.planted((60, 30, 25), 5, snr_db=36, seed=1).tensor
    asked = Settings.recommended(5, beta=1e-3, stop={"max_iterations": 500})
    double, single = (solve(tensor.astype(dtype), asked) for dtype in ("f8", "f4"))
    assert double.stop_reason == single.stop_reason == "tolerance"
    assert single.objective == pytest.approx(double.objective, rel=1e-3)


@pytest.mark.parametrize("accelerate", ["none", "compress"])
@pytest.mark.parametrize("fields", [{}, {"regrow": False, "starts": 1, "extrapolate": False}])
def test_single_precision_never_goes_round_for_ever(accelerate: str, fields: dict[str, Any]) -> None:
    """Few strong components and a large error: the objective is known to 1e-7 ‖X‖² only, wider than the tolerance."""
    tensor = synthetic.evoked((9, 30, 24, 20)).tensor.astype(np.float32)
    for share in (0.1, 0.2):
        for seed in range(2):
            asked = Settings.recommended(8, sparsity=share, seed=seed, accelerate=accelerate, **fields)
            double, single = solve(tensor.astype(np.float64), asked), solve(tensor, asked)
            assert single.stop_reason == "tolerance"
            assert single.iterations <= double.iterations + 50
            assert single.objective == pytest.approx(double.objective, rel=0.02)  # may be another local minimum


def test_apg_restarts_on_rises_not_on_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, restarts = METHODS["apg"].fallback, 0
    assert plain is not None

    def counted(A: Float64, block: Block, memory: Memory) -> tuple[Float64, Memory]:
        nonlocal restarts
        restarts += 1
        return plain(A, block, memory)

    counting = replace(METHODS["apg"], fallback=counted)
    monkeypatch.setattr("sparse_ncp.solvers.bcd.problem.METHODS", {"apg": counting})
    stop = {"tolerance": 0.0, "max_iterations": 3000}
    result = solve(X, Settings(rank=3, method="apg", alpha=1e-2, beta=0.05, stop=stop))
    late = np.abs(np.diff(result.history.objective[-1000:]))
    assert late.max() < 1e-14 * np.sum(X**2)
    assert restarts < 3 * 300


def test_compiling_is_not_charged_to_the_method(tmp_path: Path) -> None:
    """A fresh process without a cache compiles for seconds; the sweep itself takes a millisecond."""
    script = (
        "import time, numpy; from sparse_ncp import solvers; started = time.perf_counter();"
        "asked = solvers.Settings(rank=2, method='hals', stop={'max_iterations': 1});"
        "charged = solvers.solve(numpy.ones((4, 4)), asked).seconds;"
        "print(charged, time.perf_counter() - started)"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    output = subprocess.run(
        [sys.executable, "-c", script], env=environment, check=True, capture_output=True, text=True
    ).stdout
    charged, taken = map(float, output.split())
    assert charged < 0.2 * taken


def test_a_cancelled_run_keeps_what_it_has() -> None:
    asked = iter([False, False, True])
    result = solve(X, Settings(rank=3, method="hals"), cancelled=lambda: next(asked))
    assert result.stop_reason == "cancelled"
    assert result.iterations == 3


def test_a_finished_run_goes_on_under_new_limits_and_ends_as_if_never_stopped() -> None:
    def settings(iterations: int) -> Settings:
        return Settings(rank=3, method="apg", stop={"tolerance": 0.0, "max_iterations": iterations})

    *_, short = sweeps(X, settings(5))
    *_, extended = sweeps(X, settings(9), resume=State.from_bytes(short.to_bytes()))
    *_, straight = sweeps(X, settings(9))
    assert extended.history.objective == straight.history.objective
    assert list(sweeps(X, settings(5), resume=short)) == []


@pytest.mark.parametrize("accelerate", ["none", "compress"])
@pytest.mark.parametrize("saved_at", [0, 3])
def test_time_that_was_lost_counts_but_ends_nothing_that_is_repeated(accelerate: str, saved_at: int) -> None:
    """It had reached iteration 6 within its limit. Repeating that exceeds the limit, so one more sweep follows."""
    stop = {"tolerance": 0.0, "max_iterations": 20, "max_seconds": 1e4}
    settings = Settings(rank=2, method="hals", accelerate=accelerate, stop=stop)
    X = synthetic.planted((20, 20, 20), 2).tensor
    straight = list(islice(sweeps(X, settings), 9))
    resume = State.from_bytes(straight[saved_at - 1].to_bytes()) if saved_at else None
    *_, last = sweeps(X, settings, resume=resume, clock=Clock(1e4, enforce_after_iteration=6))
    assert (last.iteration, last.stop_reason) == (7, "max_seconds")
    assert last.seconds > 1e4
    assert last.history.objective[:6] == straight[5].history.objective
    assert all(np.array_equal(A, B) for A, B in zip(last.factors, straight[6].factors, strict=True))


def test_a_run_whose_clock_has_not_run_out_goes_on_after_lost_work() -> None:
    settings = Settings(rank=3, method="hals", stop={"tolerance": 0.0, "max_iterations": 8, "max_seconds": 1e4})
    *_, last = sweeps(X, settings, resume=next(sweeps(X, settings)), clock=Clock(5e3, enforce_after_iteration=4))
    assert (last.iteration, last.stop_reason) == (8, "max_iterations")
    assert 5e3 < last.seconds < 5.1e3


def test_a_state_is_resumed_only_where_it_belongs() -> None:
    settings = Settings(rank=3, method="hals", stop={"max_iterations": 2})
    *_, state = sweeps(X, settings)
    with pytest.raises(InvalidInput, match="other settings"):
        next(sweeps(X, Settings(rank=3, method="mu"), resume=state))
    with pytest.raises(InvalidInput, match="together with resume"):
        next(sweeps(X, settings, resume=state, initial=state.factors))
    with pytest.raises(InvalidInput, match="shape"):
        next(sweeps(X[:5], settings, resume=state))


def test_a_damaged_or_foreign_state_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = next(sweeps(X, Settings(rank=3, method="hals"))).to_bytes()
    for damaged in (b"", saved[:-100], saved.replace(b"header", b"footer"), b"\x80\x04."):
        with pytest.raises(InvalidInput, match="damaged"):
            State.from_bytes(damaged)
    monkeypatch.setattr("sparse_ncp.solvers.bcd.state.FORMAT", 99)
    with pytest.raises(InvalidInput, match="format 4, not 99"):
        State.from_bytes(saved)


def test_a_run_that_goes_on_has_no_result_yet() -> None:
    state = next(sweeps(X, Settings(rank=3, method="hals")))
    with pytest.raises(ValueError, match="has not ended"):
        Result.of(state)

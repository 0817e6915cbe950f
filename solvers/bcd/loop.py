"""Block coordinate descent over the modes: one loop for every method."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.objective import measure
from sparse_ncp.solvers.bcd.phases import compressed_phase, single_phase
from sparse_ncp.solvers.bcd.prepare import RunInputs, is_tensor_like, no_progress, prepare
from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.bcd.result import Result
from sparse_ncp.solvers.bcd.state import Clock, OnPrepare, PreparationStep, RunPhase, State
from sparse_ncp.solvers.bcd.sweep import SweepStart, iterate, sweep_modes
from sparse_ncp.solvers.diagnostics import diagnose
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.protocol import TensorLike
from sparse_ncp.solvers.tensor.scan import Scan
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas

# The step that follows the preparation, by the phase in which the run begins.
FIRST_STEPS: Mapping[RunPhase, PreparationStep] = {"compressed": "compress", "single": "single", "exact": "sweep"}


def solve(
    tensor: NDArray[Any] | TensorLike,
    settings: Settings,
    *,
    initial: Sequence[NDArray[Any]] | None = None,
    mask: NDArray[np.bool_] | None = None,
    fixed: Mapping[int, NDArray[Any]] | None = None,
    threads: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Result:
    """Decompose a tensor. `cancelled` is asked after every sweep, and while the result is diagnosed.

    Where `mask` is false, or a masked array is masked, the entry counts as not observed; each mode of the mask has the
    tensor's length, or 1. `fixed` has factors, by mode from 1, that stay as they are while the others are fitted.
    """
    for state in sweeps(tensor, settings, initial=initial, mask=mask, fixed=fixed, threads=threads):
        if cancelled():
            return Result.of(state.cancelled())
    factors, diagnostics = state.outcome()[0], None
    if settings.diagnose and not is_tensor_like(tensor):
        diagnostics = diagnose(tensor, factors, mask=mask, threads=threads, cancelled=cancelled)
    return Result.of(state, diagnostics)


def sweeps(
    tensor: NDArray[Any] | TensorLike,
    settings: Settings,
    *,
    initial: Sequence[NDArray[Any]] | None = None,
    mask: NDArray[np.bool_] | None = None,
    fixed: Mapping[int, NDArray[Any]] | None = None,
    resume: State | None = None,
    threads: int | None = None,
    clock: Clock = Clock(),
    scan: Scan | None = None,
    on_prepare: OnPrepare = no_progress,
) -> Iterator[State]:
    """Yield the state after every sweep; the last one has a `stop_reason`. `resume` goes on from any of them.

    To resume, give the same mask again; the factors that are fixed may be left out, the state has them.

    `clock` counts seconds spent before for `max_seconds`, and may hold that limit off up to an iteration.

    What a scan of the tensor has found may be `scan`: it saves one, and changes no bit. `on_prepare` hears how far the
    preparation of the first sweep is, and may raise to end it.

    The same tensor, settings and start give the same bits for any number of threads.
    """
    inputs = RunInputs(tensor, settings, initial, mask, fixed, resume, threads, clock, scan, on_prepare)
    with Threads(inputs.threads) as pool:
        problem, X, state = prepare(inputs, pool)
        on_prepare(FIRST_STEPS[state.phase], 0.0)
        if problem.is_one_block and state.stop_reason is None:
            state = _solve_one_block(X, problem, state, pool)
            yield state
        if state.phase == "compressed":
            state = yield from compressed_phase(X, problem, state, pool, on_prepare)
        if state.phase == "single":
            state = yield from single_phase(X, problem, state, pool, on_prepare)
        while state.stop_reason is None:
            state = iterate(X, problem, state, pool)
            yield state


def _solve_one_block(X: TensorLike, problem: Problem, state: State, pool: Threads) -> State:
    """Solve a problem with one free mode in one step. Start from zero, so that undetermined entries stay zero."""
    with single_threaded_blas():
        started = time.perf_counter()
        factors = [np.zeros_like(A) if mode in problem.free else A for mode, A in enumerate(state.factors)]
        first = SweepStart.of(X, problem, factors)
        step = sweep_modes(X, problem, factors, state.memory, first, problem.method.update, pool)
        seconds = time.perf_counter() - started
        score = measure(X, problem, step.factors, step.squared_error)
    history = state.history.plus(score.objective, score.relative_error, state.seconds + seconds)
    return replace(state, factors=tuple(step.factors), objective=score.objective, history=history, stop_reason="exact")

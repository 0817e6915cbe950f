"""Block coordinate descent over the modes: one loop for every method."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.excluded import excluded_rows
from sparse_ncp.solvers.bcd.objective import measure
from sparse_ncp.solvers.bcd.phases import compressed_phase, single_phase
from sparse_ncp.solvers.bcd.prepare import RunInputs, is_tensor_like, no_progress, prepare
from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.bcd.resamples import assess_stability
from sparse_ncp.solvers.bcd.result import Resolved, Result
from sparse_ncp.solvers.bcd.state import Clock, OnPrepare, PreparationStep, RunPhase, State
from sparse_ncp.solvers.bcd.sweep import SweepStart, iterate, sweep_modes
from sparse_ncp.solvers.diagnostics.diagnose import diagnose
from sparse_ncp.solvers.settings import Settings
from sparse_ncp.solvers.tensor.protocol import TensorLike
from sparse_ncp.solvers.tensor.scan import Scan
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.zeros import mask_of_readings

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
    """Decompose a tensor into nonnegative factors.

    Parameters
    ----------
    tensor : array_like or TensorLike
        The entries, of two or more modes. A memory map is read in parts and never copied whole. An entry that is
        masked in a masked array counts as missing.
    settings : Settings
        The rank, the method, the penalties and when to stop.
    initial : sequence of array_like, optional
        Starting factors, one per mode, with a row for every index, as in `fixed`: also for those that the settings
        exclude.
    mask : array_like of bool, optional
        True where an entry is observed. Each mode has the length of the tensor, or 1.
    fixed : mapping of int to array_like, optional
        Factors that are kept as they are, by mode, counted from 1.
    threads : int, optional
        Number of threads; by default all available cores. It does not change the result.
    cancelled : callable, optional
        Called after every sweep and during the diagnosis; return True to end the run with what it has.

    Returns
    -------
    Result
        Factors, history, warnings and diagnostics. A `TensorLike` is not diagnosed.

    Raises
    ------
    InvalidInput
        If the tensor cannot be decomposed, or the arguments do not fit together.

    Examples
    --------
    >>> from sparse_ncp import Settings, solve, synthetic
    >>> X = synthetic.planted((20, 15, 10), rank=3, seed=1).tensor
    >>> result = solve(X, Settings(rank=3, method="hals"))
    >>> [A.shape for A in result.factors]
    [(20, 3), (15, 3), (10, 3)]
    >>> result.fit > 0.95
    True
    """
    for last in sweeps(tensor, settings, initial=initial, mask=mask, fixed=fixed, threads=threads):
        state = last.cancelled() if cancelled() else last
        if state.stop_reason is not None:
            break
    if is_tensor_like(tensor) and not isinstance(tensor, np.ndarray):
        return Result.of(state)
    observed = mask_of_readings(tensor, settings.zeros, mask, settings.exclude)
    rows = excluded_rows(tensor, state, mask=observed, fixed=fixed, threads=threads)
    factors, diagnostics, stability = state.whole_factors(rows), None, None
    if settings.diagnose and state.stop_reason != "cancelled":
        diagnostics = diagnose(
            tensor,
            factors,
            mask=observed,
            exclude=settings.exclude,
            samples_mode=settings.samples_mode,
            threads=threads,
            cancelled=cancelled,
        )
    if settings.stability and state.stop_reason != "cancelled":
        stability = assess_stability(
            np.asanyarray(tensor),
            factors,
            settings,
            resolved=Resolved.of(state),
            mask=mask,
            fixed=[mode + 1 for mode in state.fixed],
            threads=threads,
            cancelled=cancelled,
        )
    return Result.of(state, diagnostics, stability, rows)


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
    """Decompose a tensor sweep by sweep.

    `solve` runs this generator to its end. The same tensor, settings and start give the same bits for any number of
    threads, and a resumed run gives those of an uninterrupted one.

    Parameters
    ----------
    tensor, settings, initial, mask, fixed, threads
        As for `solve`. To resume, give the same mask again; fixed factors may be left out.
    resume : State, optional
        The state to go on from. Only `stop` and `diagnose` may differ from the settings that it was saved with.
    clock : Clock, optional
        Seconds spent before, which count for `max_seconds`.
    scan : Scan, optional
        The result of an earlier scan of the same entries, which saves one pass over them.
    on_prepare : callable, optional
        Called before the first sweep with the current step and the fraction of it that is done. It may raise to end
        the run.

    Yields
    ------
    State
        The state after every sweep. The last one has a `stop_reason`. Its factors have no rows of excluded indices.

    Raises
    ------
    InvalidInput
        If the tensor cannot be decomposed, or the arguments do not fit together.

    Examples
    --------
    >>> from sparse_ncp import Settings, State, sweeps, synthetic
    >>> X = synthetic.planted((20, 15, 10), rank=3, seed=1).tensor
    >>> settings = Settings(rank=3, method="hals", stop={"max_iterations": 20})
    >>> states = list(sweeps(X, settings))
    >>> saved = states[4].to_bytes()
    >>> *_, last = sweeps(X, settings, resume=State.from_bytes(saved))
    >>> last.objective == states[-1].objective
    True
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

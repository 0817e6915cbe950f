"""The one loop: block coordinate descent over the modes, for every method."""

import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.arrays import Array, gram, hadamard
from solvers.block import Memory
from solvers.compress import stand_in
from solvers.door import admit
from solvers.errors import AdviceWarning
from solvers.methods import Update
from solvers.objective import Score, measure, measure_whole, noise, squared_error
from solvers.parallel import Threads, single_threaded_blas
from solvers.problem import Problem, resolve
from solvers.reach import check_reach, size_of
from solvers.rescale import rescaled
from solvers.result import Result
from solvers.settings import Settings
from solvers.start import starting_factors
from solvers.state import NOTHING_LOST, Earlier, Phase, State, check_resumable
from solvers.stopping import limit_reached, stop_reason
from solvers.tensor import Partial, Tensor, TensorLike


class Step(NamedTuple):
    """What one sweep leaves behind."""

    factors: list[Array]
    memory: list[Memory]
    squared_error: float


def solve(
    tensor: NDArray[Any],
    settings: Settings,
    *,
    initial: Sequence[NDArray[Any]] | None = None,
    threads: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Result:
    """Decompose a nonnegative tensor. `cancelled` is asked after every sweep."""
    for state in sweeps(tensor, settings, initial=initial, threads=threads):
        if cancelled():
            return Result.of(state.cancelled())
    return Result.of(state)


def sweeps(
    tensor: NDArray[Any],
    settings: Settings,
    *,
    initial: Sequence[NDArray[Any]] | None = None,
    resume: State | None = None,
    threads: int | None = None,
    earlier: Earlier = NOTHING_LOST,
) -> Iterator[State]:
    """Yield the state after every sweep; the last one has a `stop_reason`. `resume` goes on from any of them.

    `earlier` says how far this run had come once, if that is further: `max_seconds` counts that time too.

    The same tensor, settings and start give the same bits for any number of threads.
    """
    with Threads(threads) as pool:
        problem, X, state = _begin(tensor, settings, initial, resume, earlier, pool)
        if state.phase == "compressed":
            state = yield from _compressed_phase(X, problem, state, pool)
        while state.stop_reason is None:
            state = _next(X, problem, state, pool)
            yield state


def _begin(
    tensor: NDArray[Any],
    settings: Settings,
    initial: Sequence[NDArray[Any]] | None,
    resume: State | None,
    earlier: Earlier,
    pool: Threads,
) -> tuple[Problem, Tensor, State]:
    with single_threaded_blas():
        X = admit(tensor, settings.precision, pool)
        problem = resolve(settings, len(X.shape))
        for advice in problem.advice():
            warnings.warn(advice, AdviceWarning, stacklevel=4)
        _compile(problem, pool)
        if resume is None:
            factors = starting_factors(X, problem, initial)
            phase: Phase = "compressed" if problem.accelerates else "exact"
            state = State(settings, tuple(factors), (Memory(),) * len(factors), phase=phase)
            return problem, X, state.after(earlier)
        check_resumable(resume, settings, X, initial)
        resume = resume.after(earlier)
        reason = stop_reason(settings.stop, resume.history, noise(X), resume.compressed_until, resume.untimed_until)
        if resume.phase == "compressed":  # calm there only ends the phase
            reason = limit_reached(settings.stop, resume.history, resume.untimed_until)
        return problem, X, replace(resume, settings=settings, stop_reason=reason)


def _compile(problem: Problem, pool: Threads) -> None:
    """Update a 1 × 1 factor of the first and of the last mode, so that the clock never counts a compiler."""
    one = np.ones((1, 1))
    for mode in (0, len(problem.alpha) - 1):
        problem.method.update(one, problem.block(mode, one, one, pool), Memory())


def _compressed_phase(X: Tensor, problem: Problem, state: State, pool: Threads) -> Generator[State, None, State]:
    """The same iterations on a compressed tensor until they would stop; returns where the exact ones take over."""
    started = time.perf_counter()
    with single_threaded_blas():
        small = stand_in(X, problem, pool)
    if not state.history:
        spent = time.perf_counter() - started
        state = replace(state, preparation_seconds=state.preparation_seconds + spent)
    while small is not None and state.phase == "compressed" and state.stop_reason is None:
        state = _next(small, problem, state, pool)
        if state.stop_reason is not None:
            state = _arrived(X, problem, state)
        yield state
    return state if small is not None else replace(state, phase="exact")


def _arrived(X: Tensor, problem: Problem, state: State) -> State:
    """The end of the compressed phase, judged by the tensor itself. Calm there is no reason to end the run."""
    with single_threaded_blas():
        score = measure_whole(X, problem, state.factors)
    return replace(
        state,
        history=state.history.corrected(score.objective, score.relative_error),
        stop_reason=limit_reached(problem.settings.stop, state.history, state.untimed_until),
        phase="exact",
        compressed_until=state.iteration,
    )


def _next(X: TensorLike, problem: Problem, state: State, pool: Threads) -> State:
    """One iteration: a sweep, repeated without extrapolation if the objective rose, then judged."""
    method, history = problem.method, state.history
    with single_threaded_blas():
        started = time.perf_counter()
        head = X.head(state.factors)
        step = _sweep(X, problem, state, head, method.update, pool)
        seconds = time.perf_counter() - started
        score = measure(X, problem, step.factors, step.squared_error)
        if method.fallback is not None and history and score.objective > history.objective[-1] + noise(X):
            started = time.perf_counter()
            step = _sweep(X, problem, state, head, method.fallback, pool)
            seconds += time.perf_counter() - started
            score = measure(X, problem, step.factors, step.squared_error)
    return _judged(state, step, score, state.seconds + seconds, noise(X))


def _sweep(X: TensorLike, problem: Problem, state: State, head: Partial, update: Update, pool: Threads) -> Step:
    """Every mode in turn: form its block from the freshest factors, update its factor."""
    factors, memory = list(state.factors), list(state.memory)
    grams, sizes = [gram(A) for A in factors], [size_of(A) for A in factors]
    for mode, M in X.sweep(factors, head):
        G = hadamard(grams[:mode] + grams[mode + 1 :])
        block = problem.block(mode, G, M, pool)
        A = factors[mode].astype(np.float64, copy=False)
        for _ in range(problem.settings.inner_passes):
            A, memory[mode] = update(A, block, memory[mode])
        sizes[mode] = size_of(A)
        check_reach(sizes, X.dtype)
        factors[mode] = A.astype(X.dtype, copy=False)
        grams[mode] = gram(factors[mode])
    error = squared_error(X.norm, factors[mode], M, grams[mode], G)
    if problem.settings.rescale:
        factors, memory = rescaled(problem, factors, memory)
    return Step(factors, memory, error)


def _judged(state: State, step: Step, score: Score, seconds: float, rounding: float) -> State:
    history = state.history.plus(score.objective, score.relative_error, seconds)
    reason = stop_reason(state.settings.stop, history, rounding, state.compressed_until, state.untimed_until)
    return replace(state, factors=tuple(step.factors), memory=tuple(step.memory), history=history, stop_reason=reason)

"""One iteration: a sweep over the modes, repeated where the objective rose, measured and recorded."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.objective import measure, rounding_noise, squared_error
from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.bcd.scaling import check_overflow, column_sizes, rescaled, scales_after_sweep
from sparse_ncp.solvers.bcd.starts.regrow import largest_useful_beta, regrow
from sparse_ncp.solvers.bcd.starts.trials import advance, is_below_threshold, start_trial
from sparse_ncp.solvers.bcd.state import Momentum, State, StopReason
from sparse_ncp.solvers.bcd.stopping import limit_reached, stop_reason
from sparse_ncp.solvers.bcd.warnings import ZERO_IS_NOT_BEST
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.methods import Update
from sparse_ncp.solvers.metrics import weights
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.protocol import Modes, Partial, TensorLike
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas

# Sweeps without β before a start that is too faint for it.
FREE_SWEEPS = 5

# Extrapolation between sweeps: the weight grows after a step that helped, up to 1, and shrinks after one that did not.
GROW, FURTHEST, SHRINK = 1.1, 1.0, 1.5


class Step(NamedTuple):
    """The factors, the method's memory and the squared error after a sweep."""

    factors: list[Array]
    memory: list[Memory]
    squared_error: float


class SweepStart(NamedTuple):
    """The factors that a sweep updates, and the first contractions of the tensor and of its observed entries."""

    factors: list[Array]  # of the components that are swept
    sizes: list[Float64]
    swept: NDArray[np.intp] | None  # their columns; None for all of them
    entries: Partial
    observed: Partial | None

    @classmethod
    def of(cls, X: TensorLike, problem: Problem, factors: Sequence[Array]) -> "SweepStart":
        sizes, order = [column_sizes(A) for A in factors], sweep_order(X, problem)
        swept, some = None, list(factors)
        if problem.extrapolates and not problem.is_one_block:  # else all components are swept, as in the paper
            living = np.flatnonzero(np.add.reduce([sizes[mode] for mode in problem.free]))
            if living.size not in (0, len(sizes[0])):  # a component that is zero in all free modes stays zero
                swept, sizes = living, [size[living] for size in sizes]
                some = [A.take(living, axis=1) for A in factors]
        entries, observed = X.first_contraction(some, order), X.observed.first_contraction(some, order)
        return cls(some, sizes, swept, entries, observed)


def iterate(X: TensorLike, problem: Problem, state: State, pool: Threads) -> State:
    """Run one iteration: sweep, measure and record; then end the segment or the run where that is due."""
    with single_threaded_blas():
        recorded = _sweep_once(X, problem, state, pool)
        noise = rounding_noise(X, recorded.history.relative_error[-1])
        started = time.perf_counter()
        after = _explain_zero_solution(X, problem, advance(X, problem, recorded, noise, pool), pool)
        if after is not recorded:
            seconds = recorded.seconds + time.perf_counter() - started
            after = replace(after, history=after.history.with_last_seconds(seconds))
        return after if after.stop_reason is not None else replace(after, stop_reason=limit_reached(after))


def _sweep_once(X: TensorLike, problem: Problem, state: State, pool: Threads) -> State:
    """Sweep once, and again without extrapolation if the objective rose; return the recorded state."""
    method, started = problem.method, time.perf_counter()
    is_new = state.search is not None and state.search.pending == "start"
    state = start_trial(X, problem, state)
    if is_new and is_below_threshold(X, problem, state):
        state = replace(state, factors=_unpenalised_sweeps(X, problem, state.factors, pool))
    extrapolated = _extrapolate(problem, state)
    first = SweepStart.of(X, problem, extrapolated or state.factors)
    step = sweep_modes(X, problem, extrapolated or state.factors, state.memory, first, method.update, pool)
    seconds = time.perf_counter() - started
    score = measure(X, problem, step.factors, step.squared_error)
    rose = score.objective > state.objective + rounding_noise(X, score.relative_error)
    if rose and (extrapolated is not None or method.fallback is not None):
        started = time.perf_counter()
        if extrapolated is not None:
            first = SweepStart.of(X, problem, state.factors)
        step = sweep_modes(X, problem, state.factors, state.memory, first, method.fallback or method.update, pool)
        seconds += time.perf_counter() - started
        score = measure(X, problem, step.factors, step.squared_error)
    momentum = state.momentum
    if problem.extrapolates:
        weight = momentum.weight
        if extrapolated is not None:
            weight = weight / SHRINK if rose else min(FURTHEST, GROW * weight)
        momentum = Momentum(state.factors, weight)
    trial = state.search.start if state.search and state.search.is_trial else None
    swept = replace(
        state,
        factors=tuple(step.factors),
        memory=tuple(step.memory),
        momentum=momentum,
        objective=score.objective,
        history=state.history.plus(score.objective, score.relative_error, state.seconds + seconds, trial),
    )
    return replace(swept, stop_reason=reason_to_stop(X, problem, swept))


def _unpenalised_sweeps(X: TensorLike, problem: Problem, factors: Sequence[Array], pool: Threads) -> tuple[Array, ...]:
    """Return the factors after a few sweeps without β, which do not count as iterations."""
    free = replace(problem, beta=(0.0,) * len(problem.beta))
    memory = [Memory()] * len(factors)
    for _ in range(FREE_SWEEPS):
        first = SweepStart.of(X, free, factors)
        factors, memory, _error = sweep_modes(X, free, factors, memory, first, free.method.update, pool)
    return tuple(factors)


def _extrapolate(problem: Problem, state: State) -> tuple[Array, ...] | None:
    """Extrapolate the factors in the direction of the last sweep; None without one."""
    previous, weight = state.momentum.previous, state.momentum.weight
    if not problem.extrapolates or previous is None:
        return None
    from sparse_ncp.solvers.kernels.elementwise import extrapolate_factor  # numba, see methods/hals.py

    factors = list(state.factors)
    for mode in problem.free:
        A, before = np.ascontiguousarray(factors[mode]), np.ascontiguousarray(previous[mode])
        factors[mode] = np.empty(A.shape, A.dtype)
        extrapolate_factor(A, before, A.dtype.type(weight), factors[mode])
    return tuple(factors)


def sweep_order(X: TensorLike, problem: Problem) -> Modes:
    """Return the free modes in the paper's order, or in the cheapest one if factors are rescaled or extrapolated."""
    changes = problem.settings.rescale or problem.extrapolates
    if not changes or X.observed.count is not None:
        return problem.free
    return tuple(mode for mode in X.cycle if mode in problem.free)


def reason_to_stop(X: TensorLike, problem: Problem, state: State) -> StopReason | None:
    noise = rounding_noise(X, state.history.relative_error[-1])
    return stop_reason(state, noise, problem.method.monotone)


def _explain_zero_solution(X: TensorLike, problem: Problem, state: State, pool: Threads) -> State:
    """If a run ends at zero, find the largest useful β, and whether zero is really the best answer."""
    if state.stop_reason != "tolerance" or not (any(problem.beta) and problem.can_regrow):
        return state
    if state.objective < X.norm**2 / 2 or weights(state.factors).any():
        return state
    has_tried = state.search is not None and state.search.regrow
    better = None if has_tried else regrow(X, problem, state.factors, state.objective, (1, 0), pool)
    if better is None:
        return replace(state, largest_beta=largest_useful_beta(X, problem, pool))
    fall = f"one component lowers the objective from {state.objective:.6g} to {better.score.objective:.6g}"
    note = f"{ZERO_IS_NOT_BEST}: {fall}; set regrow, which the recommended preset does"
    return replace(state, notes=(*state.notes, note))


def sweep_modes(
    X: TensorLike,
    problem: Problem,
    start: Sequence[Array],
    remembered: Sequence[Memory],
    first: SweepStart,
    update: Update,
    pool: Threads,
) -> Step:
    """Update every mode in turn: form its block from the newest factors, then update its factor."""
    factors, memory, sizes = list(first.factors), list(remembered), list(first.sizes)
    order = sweep_order(X, problem)
    products = X.sweep(factors, first.entries, order)
    grams = X.observed.grams(factors, first.observed, order)
    for (mode, M), G in zip(products, grams, strict=False):  # both go on when the factor of the mode is replaced
        block = problem.block(mode, G, M, pool, single=X.dtype == np.float32)
        A = factors[mode].astype(np.float64, copy=False)
        A, memory[mode] = update(A, block, memory[mode])
        sizes[mode] = column_sizes(A)
        check_overflow(sizes, X.dtype)
        factors[mode] = A.astype(X.dtype, copy=False)
    error = squared_error(X.norm, factors[mode], M, G.rows)
    scales = scales_after_sweep(problem, factors, sizes)
    if scales is not None:
        factors, memory = rescaled(factors, memory, scales)
    if first.swept is not None:  # the other columns are zero; a fixed factor stays as it is
        columns, factors = factors, list(start)
        for mode in problem.free:
            factors[mode] = np.zeros(start[mode].shape, columns[mode].dtype)
            factors[mode][:, first.swept] = columns[mode]
    return Step(factors, memory, error)

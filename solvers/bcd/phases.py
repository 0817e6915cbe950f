"""Phases before the exact sweeps: the same iterations on a compressed tensor, or on a copy in single precision."""

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sparse_ncp.solvers.bcd.objective import measure_from_scratch
from sparse_ncp.solvers.bcd.problem import Problem
from sparse_ncp.solvers.bcd.scaling import OutOfRange, check_overflow, column_sizes
from sparse_ncp.solvers.bcd.starts.trials import conclude
from sparse_ncp.solvers.bcd.state import Momentum, OnPrepare, State
from sparse_ncp.solvers.bcd.stopping import limit_reached
from sparse_ncp.solvers.bcd.sweep import iterate
from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.protocol import TensorLike
from sparse_ncp.solvers.tensor.scan import OnProgress
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import LARGEST_NORM

# Entries of a tensor that auto copies to single precision, at least and at most: fewer are swept quickly anyway, and a
# copy of more than 256 MB should be asked for.
FEWEST_SINGLE, MOST_SINGLE = 1 << 20, 1 << 26


def compressed_phase(
    X: TensorLike, problem: Problem, state: State, pool: Threads, on_prepare: OnPrepare
) -> Generator[State, None, State]:
    """Iterate on a compressed tensor until the run would stop; return the state for the exact iterations."""
    started = time.perf_counter()
    with single_threaded_blas():
        small = compress_if_worthwhile(X, problem, partial(on_prepare, "compress"))
    tries_single = small is None and problem.tries_single
    on_prepare("single" if tries_single else "sweep", 0.0)
    if not state.history:
        spent = time.perf_counter() - started
        state = replace(state, preparation_seconds=state.preparation_seconds + spent)
    while small is not None and state.phase == "compressed" and state.stop_reason is None:
        state = iterate(small, problem, state, pool)
        if state.stop_reason is not None:
            state = _switch_to_exact(X, problem, state)
        yield state
    return state if small is not None else replace(state, phase="single" if tries_single else "exact")


def compress_if_worthwhile(X: TensorLike, problem: Problem, on_progress: OnProgress) -> TensorLike | None:
    """Return a compressed tensor if the settings require it, or if sweeps over it promise to be quicker."""
    return X.compress(problem.settings.rank, on_progress, always=problem.settings.accelerate == "compress")


def single_phase(
    X: TensorLike, problem: Problem, state: State, pool: Threads, on_prepare: OnPrepare
) -> Generator[State, None, State]:
    """Iterate on a copy in single precision until the run would stop; return the state for the exact iterations."""
    started = time.perf_counter()
    exact = state
    with np.errstate(over="ignore"):  # what becomes infinite is found right after
        state = replace(state, factors=tuple(A.astype(np.float32, copy=False) for A in state.factors))
    if not state.history and not (is_single_precision_worthwhile(X, problem) and _is_in_range(state.factors)):
        on_prepare("sweep", 0.0)
        return replace(exact, phase="exact")
    copy = X.in_single_precision(partial(on_prepare, "single"))
    on_prepare("sweep", 0.0)
    if not state.history:
        spent = time.perf_counter() - started
        state = replace(state, preparation_seconds=state.preparation_seconds + spent)
    while state.phase == "single" and state.stop_reason is None:
        try:
            state = iterate(copy, problem, state, pool)
        except OutOfRange:  # of single precision; in double it may go on
            return _switch_to_exact(X, problem, state) if state.history else replace(exact, phase="exact")
        if state.stop_reason is not None:
            state = _switch_to_exact(X, problem, state)
        yield state
    return state


def is_single_precision_worthwhile(X: TensorLike, problem: Problem) -> bool:
    """Return whether to copy the tensor to float32: if required, or to save time in no more memory than compression."""
    if X.dtype != np.float64:
        return False
    if problem.settings.accelerate == "float32":
        return True
    if _unfit_for_single(X, problem.has_fixed) is not None:
        return False
    size = math.prod(X.shape)
    fits = np.dtype(np.float32).itemsize * size <= X.compression_bytes(problem.settings.rank)
    return FEWEST_SINGLE <= size <= MOST_SINGLE and fits


def check_single_precision(X: TensorLike, has_fixed: bool) -> None:
    """Raise InvalidInput for a tensor or for fixed factors that single precision cannot hold."""
    unfit = _unfit_for_single(X, has_fixed)
    if unfit is not None:
        raise InvalidInput("accelerate", f"float32 cannot be combined with {unfit}", "give 'auto' or 'none'")


def _unfit_for_single(X: TensorLike, has_fixed: bool) -> str | None:
    if X.observed.count is not None:
        return "missing entries, whose Grams take the time and are in double precision anyway"
    if has_fixed:
        return "fixed factors, which would be rounded"
    largest = LARGEST_NORM[np.dtype(np.float32)]
    return None if 1 / largest < X.norm < largest else f"a norm of {X.norm:.3g}, beyond its range"


def _is_in_range(factors: Sequence[Array]) -> bool:
    """Return whether the factors fit into the range of their precision."""
    try:
        check_overflow([column_sizes(A) for A in factors], factors[0].dtype)
    except OutOfRange:
        return False
    return True


def _switch_to_exact(X: TensorLike, problem: Problem, state: State) -> State:
    """End a phase: measure its factors on the tensor itself. Convergence in the phase does not end the run."""
    reason, state = limit_reached(state), conclude(state)
    factors = [A.astype(X.dtype, copy=False) for A in state.factors]
    with single_threaded_blas():
        score = measure_from_scratch(X, problem, factors)
    return replace(
        state,
        factors=tuple(factors),
        history=state.history.corrected(score.objective, score.relative_error),
        objective=score.objective,
        momentum=Momentum(),
        phase="exact",
        compressed_until=state.iterations_in("compressed"),
        single_until=state.iterations_in("single"),
        stop_reason=reason,
    )

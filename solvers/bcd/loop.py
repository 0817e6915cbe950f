"""The one loop: block coordinate descent over the modes, for every method."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.objective import measure
from sparse_ncp.solvers.bcd.phases import check_single_precision, compress_if_worthwhile, compressed_phase, single_phase
from sparse_ncp.solvers.bcd.problem import Problem, resolve
from sparse_ncp.solvers.bcd.result import Result
from sparse_ncp.solvers.bcd.starts.initial import check_fixed, initial_notes, starting_factors
from sparse_ncp.solvers.bcd.starts.trials import search_for
from sparse_ncp.solvers.bcd.state import Clock, OnPrepare, PreparationStep, RunPhase, State, check_resumable
from sparse_ncp.solvers.bcd.stopping import limit_reached
from sparse_ncp.solvers.bcd.sweep import SweepStart, iterate, reason_to_stop, sweep_modes
from sparse_ncp.solvers.bcd.weights import Weights, missing_count, sparsity_above_noise, weights_for
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.diagnostics import diagnose
from sparse_ncp.solvers.errors import AdviceWarning, InvalidInput
from sparse_ncp.solvers.settings import Settings, Stop
from sparse_ncp.solvers.tensor.dense import Positive, Tensor
from sparse_ncp.solvers.tensor.protocol import Gram
from sparse_ncp.solvers.tensor.scan import Scan
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import prepare_tensor

# A fit without a penalty, close enough to its end to tell the noise.
FREE_FIT = Stop(criterion="relative_objective", tolerance=1e-3, patience=2, max_iterations=40)


# What a run of each phase does next, once it is prepared.
FIRST_STEPS: Mapping[RunPhase, PreparationStep] = {"compressed": "compress", "single": "single", "exact": "sweep"}


def _no_progress(step: PreparationStep, share: float) -> None:
    """Nobody asks how far the preparation is."""


def solve(
    tensor: NDArray[Any],
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
    if settings.diagnose:
        diagnostics = diagnose(tensor, factors, mask=mask, threads=threads, cancelled=cancelled)
    return Result.of(state, diagnostics)


def sweeps(
    tensor: NDArray[Any],
    settings: Settings,
    *,
    initial: Sequence[NDArray[Any]] | None = None,
    mask: NDArray[np.bool_] | None = None,
    fixed: Mapping[int, NDArray[Any]] | None = None,
    resume: State | None = None,
    threads: int | None = None,
    clock: Clock = Clock(),
    scan: Scan | None = None,
    on_prepare: OnPrepare = _no_progress,
) -> Iterator[State]:
    """Yield the state after every sweep; the last one has a `stop_reason`. `resume` goes on from any of them.

    To resume, give the same mask again; the factors that are fixed may be left out, the state has them.

    `clock` counts seconds spent before for `max_seconds`, and may hold that limit off up to an iteration.

    What a scan of the tensor has found may be `scan`: it saves one, and changes no bit. `on_prepare` hears how far the
    preparation of the first sweep is, and may raise to end it.

    The same tensor, settings and start give the same bits for any number of threads.
    """
    with Threads(threads) as pool:
        problem, X, state = _prepare(tensor, settings, initial, mask, fixed, resume, clock, pool, scan, on_prepare)
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


def _prepare(
    tensor: NDArray[Any],
    settings: Settings,
    initial: Sequence[NDArray[Any]] | None,
    mask: NDArray[np.bool_] | None,
    fixed: Mapping[int, NDArray[Any]] | None,
    resume: State | None,
    clock: Clock,
    pool: Threads,
    scan: Scan | None,
    on_prepare: OnPrepare,
) -> tuple[Problem, Tensor, State]:
    with single_threaded_blas():
        on_prepare("scan", 0.0)
        kinds, on_progress = (settings.missing, settings.negative, settings.rank), partial(on_prepare, "scan")
        X = prepare_tensor(tensor, settings.precision, pool, mask, *kinds, scan, on_progress)
        if settings.accelerate == "compress" and not X.observed.constant:
            unfit = "cannot compress a tensor whose missing entries differ along every mode"
            raise InvalidInput("accelerate", unfit, "give 'auto' or 'none'")
        stay = check_fixed(fixed or {}, X.shape, settings, X.dtype)
        if settings.accelerate == "float32":
            check_single_precision(X, bool(stay) or (resume is not None and bool(resume.fixed)))
        if resume is not None:
            check_resumable(resume, settings, X, initial, stay)
        started = time.perf_counter()
        penalties = _weights(X, settings, initial, pool, on_prepare) if resume is None else resume.weights
        fitted_seconds = time.perf_counter() - started if settings.sparsity == "auto" else 0.0
        problem = resolve(settings, penalties, tuple(stay) if resume is None else resume.fixed)
        sparse_rows = _rows_with_few_entries(X, problem)
        for advice in (*problem.advice(), *sparse_rows):
            warnings.warn(advice, AdviceWarning, stacklevel=4)
        _compile(X, problem, pool)
        if resume is None:
            factors = starting_factors(X, problem, initial, fixed=stay, on_progress=partial(on_prepare, "start"))
            state = State(
                settings,
                penalties,
                X.norm,
                tuple(factors),
                (Memory(),) * len(factors),
                phase="compressed" if problem.tries_compression else "single" if problem.tries_single else "exact",
                search=None if problem.is_one_block else search_for(problem, initial),
                notes=(*initial_notes(initial, settings.rank), *sparse_rows),
                missing=missing_count(X),
                fixed=tuple(stay),
                preparation_seconds=fitted_seconds,
            )
            return problem, X, state.with_clock(clock)
        resume = replace(resume.with_clock(clock).on_this_machine(), settings=settings, tensor_norm=X.norm)
        reason = resume.stop_reason if problem.is_one_block else reason_to_stop(X, problem, resume)
        if resume.phase != "exact" or (resume.search and resume.search.stage != "final"):
            # Convergence ends the phase or the segment, and not the run.
            reason = limit_reached(resume)
        return problem, X, replace(resume, stop_reason=reason)


def _solve_one_block(X: Tensor, problem: Problem, state: State, pool: Threads) -> State:
    """The one step that solves it, from zero: what nothing determines stays zero."""
    with single_threaded_blas():
        started = time.perf_counter()
        factors = [np.zeros_like(A) if mode in problem.free else A for mode, A in enumerate(state.factors)]
        first = SweepStart.of(X, problem, factors)
        step = sweep_modes(X, problem, factors, state.memory, first, problem.method.update, pool)
        seconds = time.perf_counter() - started
        score = measure(X, problem, step.factors, step.squared_error)
    history = state.history.plus(score.objective, score.relative_error, state.seconds + seconds)
    return replace(state, factors=tuple(step.factors), objective=score.objective, history=history, stop_reason="exact")


def _rows_with_few_entries(X: Tensor, problem: Problem) -> list[str]:
    """Advice on rows of factors that too few observed entries determine."""
    found: list[str] = []
    if X.missing is None:
        return found
    rank = problem.settings.rank
    for mode in problem.free:
        counts = X.missing.grams.pattern.counts[mode]
        few = np.flatnonzero(counts < rank)
        if few.size:
            count = counts[few[0]]
            more = "" if few.size == 1 else f", and so have {few.size - 1} more of its mode"
            found.append(
                f"index {few[0]} of mode {mode + 1} has {count} observed {'entry' if count == 1 else 'entries'}, fewer "
                f"than the {rank} components{more}: its row is not determined; lower the rank, or leave it out"
            )
    return found


def _weights(
    X: Tensor, settings: Settings, initial: Sequence[NDArray[Any]] | None, pool: Threads, on_prepare: OnPrepare
) -> Weights:
    """The weights of the penalties for this tensor; with `sparsity="auto"`, from the noise that a free fit leaves."""
    if settings.sparsity != "auto":
        return weights_for(settings, X, settings.sparsity)
    unpenalised = weights_for(settings, X, 0.0)
    free = resolve(settings.model_copy(update={"stop": FREE_FIT}), unpenalised)
    _compile(X, free, pool)

    def on_progress(_share: float) -> None:
        on_prepare("weights", 0.0)  # the sweeps that follow take most of the time

    small = compress_if_worthwhile(X, free, pool, on_progress=on_progress) if free.tries_compression else None
    factors = starting_factors(X, free, initial, on_progress=on_progress)
    state = State(free.settings, unpenalised, X.norm, tuple(factors), (Memory(),) * len(factors))
    while state.stop_reason is None:
        on_prepare("weights", state.iteration / FREE_FIT.max_iterations)
        state = iterate(small or X, free, state, pool)
    return weights_for(settings, X, sparsity_above_noise(X, settings.rank, state.history.relative_error[-1]))


def _compile(X: Tensor, problem: Problem, pool: Threads) -> None:
    """Update a 1 × 1 factor of the first and of the last mode, so that the clock never counts a compiler."""
    from sparse_ncp.solvers.kernels.elementwise import precompile
    from sparse_ncp.solvers.kernels.hals import hals_rows  # puts components back; numba, see methods/hals.py

    for dtype in (np.dtype(np.float64), np.dtype(np.float32)):
        precompile(dtype)
    one = np.ones((1, 1))
    rows = one if X.observed.count is None else one[None]
    for G in (Gram(one, one), Gram(rows, one)):
        for mode in (problem.free[0], problem.free[-1]):
            problem.method.update(one, problem.block(mode, G, one, pool), Memory())
        if problem.can_regrow:
            hals_rows(one, one, G.rows, one.copy(), 1)
    if problem.tries_single:
        Tensor(np.ones((1,) * len(X.shape), np.float32), 1.0, Positive(1.0, 1.0), pool)

"""The one loop: block coordinate descent over the modes, for every method."""

import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from solvers.bcd.initial import check_fixed, initial_notes, starting_factors
from solvers.bcd.objective import Score, measure, measure_from_scratch, rounding_noise, squared_error
from solvers.bcd.problem import Problem, resolve
from solvers.bcd.regrow import largest_useful_beta, regrow
from solvers.bcd.result import ZERO_IS_NOT_BEST, Result
from solvers.bcd.scaling import OutOfRange, check_overflow, column_sizes, rescaled, scales_after_sweep
from solvers.bcd.starts import begin, is_too_faint, proceed, search_for, settled
from solvers.bcd.state import Clock, Momentum, PreparationStep, Report, State, StopReason, check_resumable
from solvers.bcd.stopping import limit_reached, stop_reason
from solvers.bcd.weights import Weights, missing_count, sparsity_above_noise, weights_for
from solvers.block import Memory
from solvers.diagnostics import diagnose
from solvers.errors import AdviceWarning, InvalidInput
from solvers.methods import Update
from solvers.metrics import weights
from solvers.settings import Settings, Stop
from solvers.tensor.compressed import LARGEST_LOSS, Compressed, compress, is_worthwhile, sketch_bytes
from solvers.tensor.dense import SINGLE_BYTES, Positive, Tensor
from solvers.tensor.products import Array
from solvers.tensor.protocol import Gram, Modes, Partial, TensorLike
from solvers.tensor.scan import Scan, Tell
from solvers.tensor.thin.products import ProductsOfFormat1, products_with
from solvers.tensor.threads import Threads, single_threaded_blas
from solvers.tensor.validation import LARGEST_NORM, prepare_tensor

# A fit without a penalty, close enough to its end to tell the noise.
FREE_FIT = Stop(criterion="relative_objective", tolerance=1e-3, patience=2, max_iterations=40)

# Sweeps without β before a start that is too faint for it.
FREE_SWEEPS = 5

# Extrapolation between sweeps: the weight grows after a step that helped, up to 1, and shrinks after one that did not.
GROW, FURTHEST, SHRINK = 1.1, 1.0, 1.5

# Entries of a tensor that auto copies to single precision, at least and at most: fewer are swept quickly anyway, and a
# copy of more than 256 MB should be asked for.
FEWEST_SINGLE, MOST_SINGLE = 1 << 20, 1 << 26


class Step(NamedTuple):
    """What one sweep leaves behind."""

    factors: list[Array]
    memory: list[Memory]
    squared_error: float


class First(NamedTuple):
    """What a sweep begins with: the first contraction of the tensor, and of what is observed of it."""

    entries: Partial
    observed: Partial | None

    @classmethod
    def of(cls, X: TensorLike, problem: Problem, factors: Sequence[Array]) -> "First":
        order = sweep_order(X, problem)
        return cls(X.first_contraction(factors, order), X.observed.first_contraction(factors, order))


def _unheard(step: PreparationStep, share: float) -> None:
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
    known: Scan | None = None,
    report: Report = _unheard,
) -> Iterator[State]:
    """Yield the state after every sweep; the last one has a `stop_reason`. `resume` goes on from any of them.

    To resume, give the same mask again; the factors that are fixed may be left out, the state has them.

    `clock` counts seconds spent before for `max_seconds`, and may hold that limit off up to an iteration.

    What a scan of the tensor has found may be `known`: it saves one, and changes no bit. `report` hears how far the
    preparation of the first sweep is, from several threads.

    The same tensor, settings and start give the same bits for any number of threads.
    """
    with Threads(threads) as pool:
        problem, X, state = _prepare(tensor, settings, initial, mask, fixed, resume, clock, pool, known, report)
        report("compress" if state.phase == "compressed" else "sweep", 0.0)
        if problem.is_one_block and state.stop_reason is None:
            state = _solve_one_block(X, problem, state, pool)
            yield state
        if state.phase == "compressed":
            state = yield from _compressed_phase(X, problem, state, pool, report)
        if state.phase == "single":
            state = yield from _single_phase(X, problem, state, pool, report)
        while state.stop_reason is None:
            state = _iterate(X, problem, state, pool)
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
    known: Scan | None,
    report: Report,
) -> tuple[Problem, Tensor, State]:
    with single_threaded_blas():
        report("scan", 0.0)
        is_of_format_1 = resume is not None and resume.format == 1
        products_of = ProductsOfFormat1 if is_of_format_1 else products_with
        kinds, tell = (settings.missing, settings.negative, settings.rank), partial(report, "scan")
        X = prepare_tensor(tensor, settings.precision, pool, mask, *kinds, products_of, known, tell)
        if settings.accelerate == "compress" and not X.observed.constant:
            unfit = "cannot compress a tensor whose missing entries differ along every mode"
            raise InvalidInput("accelerate", unfit, "give 'auto' or 'none'")
        stay = check_fixed(fixed or {}, X.shape, settings, X.dtype)
        if settings.accelerate == "float32":
            _check_single(X, bool(stay) or (resume is not None and bool(resume.fixed)))
        if resume is not None:
            check_resumable(resume, settings, X, initial, stay)
        started = time.perf_counter()
        penalties = _weights(X, settings, initial, pool, report) if resume is None else resume.weights
        fitted_seconds = time.perf_counter() - started if settings.sparsity == "auto" else 0.0
        problem = resolve(settings, penalties, tuple(stay) if resume is None else resume.fixed, is_of_format_1)
        sparse_rows = _rows_with_few_entries(X, problem)
        for advice in (*problem.advice(), *sparse_rows):
            warnings.warn(advice, AdviceWarning, stacklevel=4)
        _compile(X, problem, pool)
        if resume is None:
            report("start", 0.0)
            factors = starting_factors(X, problem, initial, fixed=stay)
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
        resume = replace(resume.with_clock(clock), settings=settings, tensor_norm=X.norm)
        reason = resume.stop_reason if problem.is_one_block else _stop_reason(X, problem, resume)
        if resume.phase != "exact" or (resume.search and resume.search.stage != "final"):
            # Convergence ends the phase or the stretch, and not the run.
            reason = limit_reached(resume)
        return problem, X, replace(resume, stop_reason=reason)


def _solve_one_block(X: Tensor, problem: Problem, state: State, pool: Threads) -> State:
    """The one step that solves it, from zero: what nothing determines stays zero."""
    with single_threaded_blas():
        started = time.perf_counter()
        factors = [np.zeros_like(A) if mode in problem.free else A for mode, A in enumerate(state.factors)]
        first = First.of(X, problem, factors)
        step = sweep_modes(X, problem, factors, state.memory, first, problem.method.update, pool)
        seconds = time.perf_counter() - started
        score = measure(X, problem, step.factors, step.squared_error)
    history = state.history.plus(score.objective, score.relative_error, state.seconds + seconds)
    return replace(state, factors=tuple(step.factors), objective=score.objective, history=history, stop_reason="exact")


def _rows_with_few_entries(X: Tensor, problem: Problem) -> list[str]:
    """Advice on rows of factors that too few observed entries determine."""
    found: list[str] = []
    if X.gaps is None:
        return found
    rank = problem.settings.rank
    for mode in problem.free:
        counts = X.gaps.observed.pattern.counts[mode]
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
    X: Tensor, settings: Settings, initial: Sequence[NDArray[Any]] | None, pool: Threads, report: Report
) -> Weights:
    """The weights of the penalties for this tensor; with `sparsity="auto"`, from the noise that a free fit leaves."""
    if settings.sparsity != "auto":
        return weights_for(settings, X, settings.sparsity)
    unpenalised = weights_for(settings, X, 0.0)
    free = resolve(settings.model_copy(update={"stop": FREE_FIT}), unpenalised)
    _compile(X, free, pool)
    report("weights", 0.0)
    small = maybe_compress(X, free, pool) if free.tries_compression else None
    factors = starting_factors(X, free, initial)
    state = State(free.settings, unpenalised, X.norm, tuple(factors), (Memory(),) * len(factors))
    while state.stop_reason is None:
        report("weights", state.iteration / FREE_FIT.max_iterations)
        state = _iterate(small or X, free, state, pool)
    return weights_for(settings, X, sparsity_above_noise(X, settings.rank, state.history.relative_error[-1]))


def _compile(X: Tensor, problem: Problem, pool: Threads) -> None:
    """Update a 1 × 1 factor of the first and of the last mode, so that the clock never counts a compiler."""
    one = np.ones((1, 1))
    rows = one if X.observed.count is None else one[None]
    for mode in (problem.free[0], problem.free[-1]):
        for G in (Gram(one, one), Gram(rows, one)):
            problem.method.update(one, problem.block(mode, G, one, pool), Memory())
    if problem.tries_single:
        Tensor(np.ones((1,) * len(X.shape), np.float32), 1.0, Positive(1.0, 1.0), pool)


def _compressed_phase(
    X: Tensor, problem: Problem, state: State, pool: Threads, report: Report
) -> Generator[State, None, State]:
    """The same iterations on a compressed tensor until they would stop; returns where the exact ones go on."""
    started = time.perf_counter()
    with single_threaded_blas():
        small = maybe_compress(X, problem, pool, precise=state.format > 1, tell=partial(report, "compress"))
    report("sweep", 0.0)
    if not state.history:
        spent = time.perf_counter() - started
        state = replace(state, preparation_seconds=state.preparation_seconds + spent)
    while small is not None and state.phase == "compressed" and state.stop_reason is None:
        state = _iterate(small, problem, state, pool)
        if state.stop_reason is not None:
            state = _switch_to_exact(X, problem, state)
        yield state
    return state if small is not None else replace(state, phase="single" if problem.tries_single else "exact")


def maybe_compress(
    tensor: Tensor, problem: Problem, threads: Threads, precise: bool = True, tell: Tell | None = None
) -> Compressed | None:
    """The compressed tensor if it was asked for, or if its shape and what it leaves out promise a gain."""
    rank = problem.settings.rank
    if problem.settings.accelerate == "compress":
        return compress(tensor, rank, threads, precise=precise, tell=tell)
    pays = is_worthwhile(tensor.shape, rank, tensor.observed.constant)
    return compress(tensor, rank, threads, LARGEST_LOSS, precise, tell) if pays else None


def _single_phase(
    X: Tensor, problem: Problem, state: State, pool: Threads, report: Report
) -> Generator[State, None, State]:
    """The same iterations on a copy in single precision, likewise."""
    started = time.perf_counter()
    exact, state = state, replace(state, factors=_in_single_precision(state.factors))
    if not state.history and not (pays_in_single(X, problem) and _is_in_range(state.factors)):
        return replace(exact, phase="exact")
    report("single", 0.0)
    copy = X.in_single_precision()
    report("sweep", 0.0)
    if not state.history:
        spent = time.perf_counter() - started
        state = replace(state, preparation_seconds=state.preparation_seconds + spent)
    while state.phase == "single" and state.stop_reason is None:
        try:
            state = _iterate(copy, problem, state, pool)
        except OutOfRange:  # of single precision; in double it may go on
            return _switch_to_exact(X, problem, state) if state.history else replace(exact, phase="exact")
        if state.stop_reason is not None:
            state = _switch_to_exact(X, problem, state)
        yield state
    return state


def pays_in_single(X: Tensor, problem: Problem) -> bool:
    """Whether a copy in single precision was asked for, or promises a gain and takes no more room than a sketch."""
    if X.dtype != np.float64:
        return False
    if problem.settings.accelerate == "float32":
        return True
    if _unfit_for_single(X, problem.has_fixed) is not None:
        return False
    size = math.prod(X.shape)
    fits = SINGLE_BYTES * size <= sketch_bytes(X.shape, problem.settings.rank)
    return FEWEST_SINGLE <= size <= MOST_SINGLE and fits


def _check_single(X: Tensor, has_fixed: bool) -> None:
    """Refuse what a run in single precision cannot begin with."""
    unfit = _unfit_for_single(X, has_fixed)
    if unfit is not None:
        raise InvalidInput("accelerate", f"float32 does not go with {unfit}", "give 'auto' or 'none'")


def _unfit_for_single(X: Tensor, has_fixed: bool) -> str | None:
    if X.gaps is not None:
        return "missing entries, whose Grams take the time and are in double precision anyway"
    if has_fixed:
        return "fixed factors, which would be rounded"
    largest = LARGEST_NORM[np.dtype(np.float32)]
    return None if 1 / largest < X.norm < largest else f"a norm of {X.norm:.3g}, beyond its range"


def _in_single_precision(factors: Sequence[Array]) -> tuple[Array, ...]:
    with np.errstate(over="ignore"):  # what became infinite is found right after
        return tuple(A.astype(np.float32, copy=False) for A in factors)


def _is_in_range(factors: Sequence[Array]) -> bool:
    """Whether the factors are those that single precision can go on with."""
    try:
        check_overflow([column_sizes(A) for A in factors], factors[0].dtype)
    except OutOfRange:
        return False
    return True


def _switch_to_exact(X: Tensor, problem: Problem, state: State) -> State:
    """End the phase: measure its factors on the tensor itself. Convergence before does not end the run."""
    reason, state = limit_reached(state), settled(state)
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


def _iterate(X: TensorLike, problem: Problem, state: State, pool: Threads) -> State:
    """One iteration: a sweep, repeated without extrapolation if the objective rose, then measured and recorded."""
    method = problem.method
    with single_threaded_blas():
        started = time.perf_counter()
        is_new = state.search is not None and state.search.pending == "start"
        state = begin(X, problem, state)
        if is_new and is_too_faint(X, problem, state):
            state = replace(state, factors=_swept_free(X, problem, state.factors, pool))
        beyond = _extrapolated(problem, state)
        first = First.of(X, problem, beyond or state.factors)
        step = sweep_modes(X, problem, beyond or state.factors, state.memory, first, method.update, pool)
        seconds = time.perf_counter() - started
        score = measure(X, problem, step.factors, step.squared_error)
        rose = score.objective > state.objective + _noise(X, state, score)
        if rose and (beyond is not None or method.fallback is not None):
            started = time.perf_counter()
            if beyond is not None:
                first = First.of(X, problem, state.factors)
            step = sweep_modes(X, problem, state.factors, state.memory, first, method.fallback or method.update, pool)
            seconds += time.perf_counter() - started
            score = measure(X, problem, step.factors, step.squared_error)
        momentum = _next_momentum(problem, state, beyond is not None, rose)
        recorded = _record(X, problem, state, step, score, momentum, state.seconds + seconds)
        noise = _noise(X, state, score)
        after = _timed(recorded, lambda state: _explained(X, problem, proceed(X, problem, state, noise, pool), pool))
        return after if after.stop_reason is not None else replace(after, stop_reason=limit_reached(after))


def _swept_free(X: TensorLike, problem: Problem, factors: Sequence[Array], pool: Threads) -> tuple[Array, ...]:
    """The factors after a few sweeps without β: no iterations of this problem, so they have no line in the history."""
    free = replace(problem, beta=(0.0,) * len(problem.beta))
    memory = [Memory()] * len(factors)
    for _ in range(FREE_SWEEPS):
        first = First.of(X, free, factors)
        factors, memory, _error = sweep_modes(X, free, factors, memory, first, free.method.update, pool)
    return tuple(factors)


def _extrapolated(problem: Problem, state: State) -> tuple[Array, ...] | None:
    """The factors, carried on in the direction that the last sweep took; None where there was none."""
    previous, weight = state.momentum.previous, state.momentum.weight
    if not problem.extrapolates or previous is None:
        return None
    return tuple(
        np.maximum(0, A + A.dtype.type(weight) * (A - before)) if mode in problem.free else A
        for mode, (A, before) in enumerate(zip(state.factors, previous, strict=True))
    )


def _next_momentum(problem: Problem, state: State, went_beyond: bool, rose: bool) -> Momentum:
    """Go further while that helps, less far after a step that did not."""
    if not problem.extrapolates:
        return state.momentum
    weight = state.momentum.weight
    if went_beyond:
        weight = weight / SHRINK if rose else min(FURTHEST, GROW * weight)
    return Momentum(state.factors, weight)


def sweep_order(X: TensorLike, problem: Problem) -> Modes:
    """The free modes in turn: from the first on, as in the paper; or, if factors change between sweeps, as X likes."""
    changes = problem.settings.rescale or problem.extrapolates
    if not changes or X.observed.count is not None:
        return problem.free
    return tuple(mode for mode in X.cycle if mode in problem.free)


def _noise(X: TensorLike, state: State, score: Score) -> float:
    return rounding_noise(X, score.relative_error, state.format)


def _stop_reason(X: TensorLike, problem: Problem, state: State) -> StopReason | None:
    noise = rounding_noise(X, state.history.relative_error[-1], state.format)
    return stop_reason(state, noise, problem.method.monotone and state.format > 1)


def _explained(X: TensorLike, problem: Problem, state: State, pool: Threads) -> State:
    """At an end where every component is zero: the largest β that leaves one, and whether zero is really the best."""
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


def _timed(state: State, work: Callable[[State], State]) -> State:
    """The state that the work makes of this one, its seconds on the clock."""
    started = time.perf_counter()
    after = work(state)
    spent = time.perf_counter() - started
    return after if after is state else replace(after, history=after.history.with_last_seconds(state.seconds + spent))


def sweep_modes(
    X: TensorLike,
    problem: Problem,
    start: Sequence[Array],
    remembered: Sequence[Memory],
    first: First,
    update: Update,
    pool: Threads,
) -> Step:
    """Every mode in turn: form its block from the freshest factors, update its factor."""
    factors, memory = list(start), list(remembered)
    sizes = [column_sizes(A) for A in factors]
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
    return Step(factors, memory, error)


def _record(
    X: TensorLike, problem: Problem, state: State, step: Step, score: Score, momentum: Momentum, seconds: float
) -> State:
    """The next state: the history one longer, and the reason to stop if there is one."""
    trial = state.search.start if state.search and state.search.is_trial else None
    swept = replace(
        state,
        factors=tuple(step.factors),
        memory=tuple(step.memory),
        momentum=momentum,
        objective=score.objective,
        history=state.history.plus(score.objective, score.relative_error, seconds, trial),
    )
    return replace(swept, stop_reason=_stop_reason(X, problem, swept))

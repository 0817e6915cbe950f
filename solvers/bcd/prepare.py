"""Prepare a run: check its inputs, choose its penalty weights and starting factors, compile its kernels.

This is the only module of `solvers.bcd` that makes a tensor; the others know `TensorLike` alone.
"""

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.penalties import Weights, missing_count, sparsity_above_noise, weights_for
from sparse_ncp.solvers.bcd.phases import check_single_precision, compress_if_worthwhile
from sparse_ncp.solvers.bcd.problem import Problem, rank_advice, resolve
from sparse_ncp.solvers.bcd.starts.initial import check_fixed, initial_notes, starting_factors
from sparse_ncp.solvers.bcd.starts.trials import search_for
from sparse_ncp.solvers.bcd.state import Clock, OnPrepare, PreparationStep, State, check_resumable
from sparse_ncp.solvers.bcd.stopping import limit_reached
from sparse_ncp.solvers.bcd.sweep import iterate, reason_to_stop
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.diagnostics.stability import check_stability
from sparse_ncp.solvers.errors import AdviceWarning, InvalidInput
from sparse_ncp.solvers.settings import Settings, Stop
from sparse_ncp.solvers.tensor.exclusion import Exclusion, exclude_with
from sparse_ncp.solvers.tensor.protocol import Gram, TensorLike
from sparse_ncp.solvers.tensor.scan import Scan
from sparse_ncp.solvers.tensor.subtensor import Subtensor
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import (
    as_array,
    check_mask,
    check_mode,
    check_shape_and_dtype,
    is_masked_out,
    prepare_tensor,
)
from sparse_ncp.solvers.zeros import ZeroFibres, find_zero_fibres, without_zero_fibres, zeros_notes

# Stopping rule of the fit without a penalty that estimates the noise: it need not converge further than that.
NOISE_FIT = Stop(criterion="relative_objective", tolerance=1e-3, patience=2, max_iterations=40)
# Negative entries are noise around zero up to this share of the entries, and of the sum of squares.
MANY_NEGATIVE, LARGE_NEGATIVE = 0.25, 0.1


def no_progress(step: PreparationStep, share: float) -> None:
    """Ignore the progress of the preparation."""


@dataclass(frozen=True)
class RunInputs:
    """Everything that a run is given; `solvers.sweeps` describes the fields."""

    tensor: NDArray[Any] | TensorLike
    settings: Settings
    initial: Sequence[NDArray[Any]] | None = None
    mask: NDArray[np.bool_] | None = None
    fixed: Mapping[int, NDArray[Any]] | None = None
    resume: State | None = None
    threads: int | None = None
    clock: Clock = Clock()
    scan: Scan | None = None
    on_prepare: OnPrepare = no_progress
    exclusion: Exclusion | None = None

    def without_excluded(self) -> "RunInputs":
        """Return the inputs with what the settings exclude, and factors without its rows."""
        exclude = self.settings.exclude
        if is_tensor_like(self.tensor) and not isinstance(self.tensor, np.ndarray):
            if exclude is not None:
                raise InvalidInput(
                    "exclude", "is for arrays, and this tensor is not one", "leave the indices out of it"
                )
            check_mode(self.settings.samples_mode, len(self.tensor.shape))
            return self
        array = as_array(self.tensor)
        check_shape_and_dtype(array)
        check_mode(self.settings.samples_mode, array.ndim)
        if exclude is None:
            return replace(self, tensor=array)
        exclusion, initial = Exclusion.of(exclude, array.shape), self.initial
        if initial is not None and len(initial) == array.ndim:  # another number is refused later
            initial = [exclusion.rows(A, mode, f"initial A{mode + 1}") for mode, A in enumerate(initial)]
        fixed = {
            mode: exclusion.rows(A, mode - 1, f"fixed A{mode}") if 1 <= mode <= array.ndim else A
            for mode, A in (self.fixed or {}).items()
        }
        return replace(
            self,
            tensor=array,
            initial=initial,
            fixed=fixed,
            scan=None,  # of the whole tensor
            exclusion=exclusion,
        )


class PreparedRun(NamedTuple):
    """A run before its next sweep."""

    problem: Problem
    tensor: TensorLike
    state: State


def prepare(inputs: RunInputs, pool: Threads) -> PreparedRun:
    """Check the inputs of a run and return what its first sweep begins with.

    Raises
    ------
    InvalidInput
        If the tensor cannot be decomposed, or the inputs do not fit together.
    """
    inputs = inputs.without_excluded()
    settings, resume = inputs.settings, inputs.resume
    with single_threaded_blas():
        X, about_zeros = _open_tensor(inputs, pool)
        if settings.accelerate == "compress" and not X.observed.constant:
            unfit = "cannot compress a tensor whose missing entries differ along every mode"
            raise InvalidInput("accelerate", unfit, "give 'auto' or 'none'")
        fixed = check_fixed(inputs.fixed or {}, X.shape, settings, X.dtype)
        if settings.stability:
            check_stability(settings.samples_mode, X.shape, [mode + 1 for mode in fixed])
        if settings.accelerate == "float32":
            check_single_precision(X, bool(fixed) or (resume is not None and bool(resume.fixed)))
        if resume is not None:
            check_resumable(resume, settings, X, inputs.initial, fixed)
        started = time.perf_counter()
        penalties = _penalty_weights(X, inputs, pool) if resume is None else resume.weights
        weights_seconds = time.perf_counter() - started if settings.sparsity == "auto" else 0.0
        problem = resolve(settings, penalties, tuple(fixed) if resume is None else resume.fixed)
        sparse_rows = _rows_with_few_entries(X, problem, inputs.exclusion)
        too_many = rank_advice(X.shape, settings.rank, X.observed.count)
        advised = [*([too_many] if too_many else []), *sparse_rows]
        for advice in (*problem.advice(), *sparse_rows):
            warnings.warn(advice, AdviceWarning, stacklevel=4)
        _compile(X, problem, pool)
        if resume is not None:
            return PreparedRun(problem, X, _resumed(resume, inputs, problem, X))
        on_progress = partial(inputs.on_prepare, "start")
        factors = starting_factors(X, problem, inputs.initial, fixed=fixed, on_progress=on_progress)
        state = State(
            settings,
            penalties,
            X.norm,
            tuple(factors),
            (Memory(),) * len(factors),
            phase="compressed" if problem.tries_compression else "single" if problem.tries_single else "exact",
            search=None if problem.is_one_block else search_for(problem, inputs.initial),
            notes=(*initial_notes(inputs.initial, settings.rank), *advised, *about_zeros, *_negative_notes(X)),
            missing=missing_count(X),
            fixed=tuple(fixed),
            preparation_seconds=weights_seconds,
        )
        return PreparedRun(problem, X, state.with_clock(inputs.clock))


def is_tensor_like(tensor: object) -> bool:
    """Return whether this is a `TensorLike`, not an array or a list."""
    return hasattr(tensor, "first_contraction") and hasattr(tensor, "sweep")


def _open_tensor(inputs: RunInputs, pool: Threads) -> tuple[TensorLike, tuple[str, ...]]:
    """Scan an array for entries that cannot be decomposed, and return it with notes on its zeros.

    A `TensorLike` is returned as it is.
    """
    tensor, settings, mask = inputs.tensor, inputs.settings, inputs.mask
    inputs.on_prepare("scan", 0.0)
    if not isinstance(tensor, np.ndarray) and is_tensor_like(tensor):
        if mask is not None:
            raise InvalidInput("mask", "cannot be given, since the tensor has a mask of its own", "leave it out")
        if settings.zeros == "missing":
            raise InvalidInput("zeros", "cannot be 'missing', since the tensor has a mask of its own", "leave it out")
        if settings.stability:
            raise InvalidInput("stability", "needs the entries of an array", "leave it out, or pass an array")
        return tensor, ()
    array = as_array(tensor)
    check_shape_and_dtype(array)
    mask = None if mask is None else check_mask(mask, array.shape)
    exclusion = inputs.exclusion
    is_masked = exclusion is not None and is_masked_out(array, exclusion, settings.precision)
    if exclusion is not None and not is_masked:
        array, mask = exclusion.array(array), exclusion.mask(mask)
    zeros: tuple[ZeroFibres, ...] = ()
    if settings.zeros == "missing" or (settings.diagnose and inputs.resume is None):
        zeros = find_zero_fibres(array, mask)
    if settings.zeros == "missing":
        mask = without_zero_fibres(array, zeros, mask)
    if exclusion is not None and is_masked:
        mask = exclusion.masked(mask)
    on_progress = partial(inputs.on_prepare, "scan")
    kinds = (settings.missing, settings.negative, settings.rank)
    X: TensorLike = prepare_tensor(array, settings.precision, pool, mask, *kinds, inputs.scan, on_progress, exclusion)
    if exclusion is not None and is_masked:
        X = Subtensor(X, exclusion)
    return X, zeros_notes(zeros, settings.zeros)


def _penalty_weights(X: TensorLike, inputs: RunInputs, pool: Threads) -> Weights:
    """Return the weights of the penalties; for `sparsity="auto"`, estimate the noise by a fit without a penalty."""
    settings = inputs.settings
    if settings.sparsity != "auto":
        return weights_for(settings, X, settings.sparsity)
    unpenalised = weights_for(settings, X, 0.0)
    problem = resolve(settings.model_copy(update={"stop": NOISE_FIT}), unpenalised)
    _compile(X, problem, pool)

    def on_progress(_share: float) -> None:
        inputs.on_prepare("weights", 0.0)  # the sweeps that follow take most of the time

    compressed = compress_if_worthwhile(X, problem, on_progress) if problem.tries_compression else None
    factors = starting_factors(X, problem, inputs.initial, on_progress=on_progress)
    state = State(problem.settings, unpenalised, X.norm, tuple(factors), (Memory(),) * len(factors))
    while state.stop_reason is None:
        inputs.on_prepare("weights", state.iteration / NOISE_FIT.max_iterations)
        state = iterate(compressed or X, problem, state, pool)
    return weights_for(settings, X, sparsity_above_noise(X, settings.rank, state.history.relative_error[-1]))


def _rows_with_few_entries(X: TensorLike, problem: Problem, exclusion: Exclusion | None) -> list[str]:
    """Return advice on rows of factors that too few observed entries determine."""
    found: list[str] = []
    rank, observed = problem.settings.rank, X.observed.counts
    if observed is None:
        return found
    for mode in problem.free:
        counts = observed[mode]
        few = np.flatnonzero(counts < rank)
        if few.size:
            count = counts[few[0]]
            more = "" if few.size == 1 else f", and so have {few.size - 1} more of its mode"
            places = few.tolist() if exclusion is None else exclusion.kept[mode][few].tolist()
            left_out = exclude_with({} if exclusion is None else exclusion.by_mode(), {mode + 1: places})
            found.append(
                f"index {places[0]} of mode {mode + 1} has {count} observed {'entry' if count == 1 else 'entries'}, "
                f"fewer than the {rank} components{more}: its row is not determined; lower the rank, or give {left_out}"
            )
    return found


def _negative_notes(X: TensorLike) -> list[str]:
    """Return a note on a tensor whose negative entries are too many, or too large, to be noise around zero."""
    count = math.prod(X.shape) if X.observed.count is None else X.observed.count
    entries, square = X.positive.negative / count, 1 - (X.positive.norm / X.norm) ** 2
    if entries < MANY_NEGATIVE and square < LARGE_NEGATIVE:
        return []
    return [
        f"{100 * entries:.3g} % of the entries are negative, with {100 * square:.3g} % of the sum of squares, which a "
        "nonnegative model cannot follow: look whether the tensor was centred, log-scaled or corrected for a baseline"
    ]


def _compile(X: TensorLike, problem: Problem, pool: Threads) -> None:
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
        X.compile_single_precision()


def _resumed(resume: State, inputs: RunInputs, problem: Problem, X: TensorLike) -> State:
    """Return the state that a run goes on from, under the new stopping rules."""
    state = resume.with_clock(inputs.clock).on_this_machine()
    state = replace(state, settings=inputs.settings, tensor_norm=X.norm)
    reason = state.stop_reason if problem.is_one_block else reason_to_stop(X, problem, state)
    if state.phase != "exact" or (state.search and state.search.stage != "final"):
        reason = limit_reached(state)  # there, convergence ends the phase or the segment, and not the run
    return replace(state, stop_reason=reason)

"""Refit a model to resampled data, starting from the model itself: see `solvers.diagnostics.stability`."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.bcd.penalties import Weights, weights_for
from sparse_ncp.solvers.bcd.problem import Problem, resolve
from sparse_ncp.solvers.bcd.result import Resolved
from sparse_ncp.solvers.bcd.starts.initial import starting_factors
from sparse_ncp.solvers.bcd.state import State
from sparse_ncp.solvers.bcd.sweep import iterate
from sparse_ncp.solvers.block import Memory
from sparse_ncp.solvers.diagnostics.stability import (
    Stability,
    check_stability,
    half_weights,
    resample_weights,
    summarise,
)
from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.settings import Settings, Stop
from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.products import Array, Float64
from sparse_ncp.solvers.tensor.protocol import TensorLike
from sparse_ncp.solvers.tensor.scaled import ScaledSlices, SliceSums
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.solvers.tensor.validation import is_masked_out, prepare_tensor
from sparse_ncp.solvers.zeros import mask_of_readings

# A fit that starts from the model converges, or leaves it, within few sweeps; with half of the samples it needs more.
RESAMPLE_STOP = Stop(criterion="relative_objective", tolerance=1e-5, patience=2, max_iterations=30)
HALF_STOP = RESAMPLE_STOP.model_copy(update={"max_iterations": 40})
# Settings that a fit which starts from the model does not need.
WARM = {"starts": 1, "regrow": False, "accelerate": "none", "init": "random", "sparsity": None, "stability": False}


def assess_stability(
    tensor: NDArray[Any],
    factors: Sequence[Array],
    settings: Settings,
    *,
    resolved: Resolved | None = None,
    mask: NDArray[np.bool_] | None = None,
    fixed: Collection[int] = (),
    threads: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    on_progress: Callable[[float], None] = lambda fraction: None,
) -> Stability | None:
    """Assess the stability of the components of a model by refitting it to bootstrap resamples of its samples.

    Every fit begins at the model, and takes at most 30 sweeps over the tensor, or 40 for a half of the samples. No
    sample is copied: one that was drawn twice counts twice.

    Parameters
    ----------
    tensor : array_like
        The tensor, which may be a memory map.
    factors : sequence of numpy.ndarray
        The factors that were fitted to it, one per mode, with rows for excluded indices too.
    settings : Settings
        The settings of the fit; `samples_mode`, `resamples` and `seed` say which samples are drawn, and how often.
    resolved : Resolved, optional
        The penalties of the fit, from `result.resolved`; needed with `sparsity="auto"`.
    mask : numpy.ndarray of bool, optional
        True where an entry is observed.
    fixed : collection of int, optional
        The modes, counted from 1, whose factors were given and stay.
    threads : int, optional
        Number of threads; it does not change the result.
    cancelled : callable, optional
        Called after every sweep; return True to stop.
    on_progress : callable, optional
        Called after every fit with the fraction done.

    Returns
    -------
    Stability or None
        None if `cancelled` returned True.

    Raises
    ------
    InvalidInput
        If the factors do not fit the tensor, or there are too few samples.

    Examples
    --------
    >>> from sparse_ncp import Settings, assess_stability, solve, synthetic
    >>> X = synthetic.planted((20, 15, 10), rank=3, seed=1).tensor
    >>> settings = Settings(rank=3, method="hals", resamples=5)
    >>> min(assess_stability(X, solve(X, settings).factors, settings).replicability) > 0.9
    True
    """
    with Threads(threads) as pool, single_threaded_blas():
        exclusion = Exclusion.of(settings.exclude, tensor.shape)
        if is_masked_out(tensor, exclusion, settings.precision):
            unfit = "cannot be assessed where indices are left out of a file that is larger than memory"
            raise InvalidInput("stability", unfit, "leave stability out, or upload the tensor without these indices")
        observed = mask_of_readings(tensor, settings.zeros, mask, settings.exclude)
        kinds = (settings.missing, settings.negative, settings.rank)
        kept = exclusion.array(tensor), exclusion.mask(observed)
        X = prepare_tensor(kept[0], settings.precision, pool, kept[1], *kinds, exclusion=exclusion)
        check_stability(settings.samples_mode, X.shape, tuple(fixed))
        axis, given = settings.samples_mode - 1, tuple(mode - 1 for mode in sorted(fixed))
        warm = settings.model_copy(update=WARM)
        if resolved is not None:
            weights = Weights(resolved.alpha, resolved.beta)
        elif settings.sparsity == "auto":
            raise InvalidInput("sparsity", "is 'auto', which only a fit can resolve", "give resolved=result.resolved")
        else:
            weights = weights_for(settings, X, settings.sparsity)
        whole = [np.asarray(A, np.float64)[own] for A, own in zip(factors, exclusion.kept, strict=True)]
        sums = SliceSums(X, axis)
        drawn = resample_weights(X.shape[axis], settings.resamples, settings.seed)
        halves = half_weights(X.shape[axis], settings.seed)
        found: list[list[Float64]] = []
        for counts in (*drawn, *halves):
            stop = RESAMPLE_STOP if len(found) < len(drawn) else HALF_STOP
            problem = resolve(warm.model_copy(update={"stop": stop}), weights, given)
            scales = np.sqrt(counts)
            start = [A * scales[:, None] if mode == axis else A for mode, A in enumerate(whole)]
            fitted = _fit(ScaledSlices(X, axis, scales, sums), problem, start, pool, cancelled)
            if fitted is None:
                return None
            determined = _determined(X, counts > 0, axis)
            others = [mode for mode in range(len(whole)) if mode != axis]
            found.append([np.where(determined[mode][:, None], fitted[mode], np.nan) for mode in others])
            on_progress(len(found) / (len(drawn) + len(halves)))
    reference = [A for mode, A in enumerate(whole) if mode != axis]
    stability = summarise(settings.samples_mode, reference, found[: len(drawn)], found[len(drawn) :])
    return stability.with_rows(exclusion.shape, exclusion.kept) if exclusion else stability


def _fit(
    X: TensorLike, problem: Problem, start: Sequence[Float64], pool: Threads, cancelled: Callable[[], bool]
) -> Sequence[Array] | None:
    """Return the factors of a fit from these, or None if it was cancelled."""
    if X.norm == 0:  # samples of zeros alone
        return [np.zeros_like(A) for A in start]
    fixed = {mode: start[mode].astype(X.dtype) for mode in range(len(start)) if mode not in problem.free}
    factors = tuple(starting_factors(X, problem, start, fixed=fixed))
    weights, memory = Weights(problem.alpha, problem.beta), (Memory(),) * len(factors)
    state = State(problem.settings, weights, X.norm, factors, memory, fixed=tuple(fixed))
    while state.stop_reason is None:
        if cancelled():
            return None
        state = iterate(X, problem, state, pool)
    return state.factors


def _determined(X: TensorLike, drawn: NDArray[np.bool_], axis: int) -> list[NDArray[np.bool_]]:
    """Return for every mode which indices have an observed entry in the samples that were drawn."""
    if X.observed.count is None:
        return [np.ones(length, bool) for length in X.shape]
    indicator = [np.ones((length, 1), X.dtype) for length in X.shape]
    indicator[axis] = drawn[:, None].astype(X.dtype)
    # The Gram of one column of ones counts the entries.
    counts = [G.rows.reshape(-1) for G in X.observed.grams(indicator, X.observed.first_contraction(indicator))]
    return [np.broadcast_to(count > 0.5, length) for count, length in zip(counts, X.shape, strict=True)]

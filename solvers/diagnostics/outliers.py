"""Outlying samples: those that the other samples predict badly, and components that are in a single sample.

A sample is left out, the loadings of the other modes are refitted to the rest, and the sample is fitted to them. Its
error is compared with the median of all. The worst sample is taken out for good before the next is looked for, since it
bends the components that the others are judged by.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.kernels.regularise import regularise
from sparse_ncp.solvers.tensor.exclusion import Indices
from sparse_ncp.solvers.tensor.gemm.blocks import split_point
from sparse_ncp.solvers.tensor.gemm.out_of_core import FileEntries
from sparse_ncp.solvers.tensor.products import Float64, hadamard
from sparse_ncp.solvers.tensor.scan import Booleans
from sparse_ncp.solvers.tensor.threads import Threads, split_evenly

# A sample is outlying if its squared error when left out is this many times the median, and is not rounding error: at
# least this share of the mean square of a sample.
OUTLYING, LEAST_ERROR = 10.0, 1e-4
# A component is in a single sample if that has this share of the sum of its squared loadings.
ONE_SAMPLE = 0.9
# Fewer samples have no median to compare with.
FEWEST_SAMPLES = 4
# Sweeps of a refit without a sample, and of the refit after an outlying sample was removed.
SWEEPS, FURTHER_SWEEPS = 25, 100
# Samples that are left out in turn: all, or of many those with the largest residual or leverage.
MOST_LEFT_OUT = 64
# Samples that are fitted, and entries times refits: of a larger tensor, evenly spaced indices.
MOST_SAMPLES, MOST_ENTRIES, MOST_WORK = 256, 1 << 18, 1 << 22
# Entries of the arrays of a group of refits, which are computed together.
GROUP = 1 << 16


@dataclass(frozen=True)
class Outlier:
    """An outlying sample; `ratio` is its error when left out, divided by the median at that step."""

    index: int
    ratio: float


@dataclass(frozen=True)
class SingleSample:
    """A component, counted from 1, of which one sample has the `share` of the sum of squared loadings."""

    component: int
    index: int
    share: float


@dataclass(frozen=True)
class SampleDiagnostics:
    """Outlying samples of a fit.

    Attributes
    ----------
    mode : int
        The mode of the samples, counted from 1.
    left_out : tuple of (float or None)
        The error of each sample when it is left out, over the median; None where it was not computed.
    outliers : tuple of Outlier
        The outlying samples, the worst first.
    single : tuple of SingleSample
        Components that are in a single sample.
    reason : str or None
        Why no sample was left out.
    """

    mode: int
    left_out: tuple[float | None, ...]
    outliers: tuple[Outlier, ...]
    single: tuple[SingleSample, ...]
    reason: str | None = None

    def renumbered(self, indices: Sequence[int], length: int, components: Sequence[int]) -> "SampleDiagnostics":
        """Renumber samples and components found in a part, given its indices of the mode and its components."""
        left_out: list[float | None] = [None] * length
        for index, ratio in zip(indices, self.left_out, strict=True):
            left_out[index] = ratio
        return replace(
            self,
            left_out=tuple(left_out),
            outliers=tuple(Outlier(int(indices[found.index]), found.ratio) for found in self.outliers),
            single=tuple(
                SingleSample(int(components[found.component - 1]) + 1, int(indices[found.index]), found.share)
                for found in self.single
            ),
        )


@dataclass(frozen=True)
class Samples:
    """A tensor of a moderate size, samples first, with zeros for missing entries, and the factors of its model."""

    X: Float64
    observed: Booleans | None
    factors: tuple[Float64, ...]
    numbers: Indices  # of the samples, in the whole tensor

    def without(self, place: int) -> "Samples":
        kept = np.delete(np.arange(len(self.X)), place)
        observed = None if self.observed is None else self.observed[kept]
        return Samples(self.X[kept], observed, (self.factors[0][kept], *self.factors[1:]), self.numbers[kept])


def find_outliers(
    tensor: NDArray[Any],
    factors: Sequence[Float64],
    mode: int,
    suspicion: Float64,
    pool: Threads,
    kept: Sequence[Indices],
    mask: Booleans | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> SampleDiagnostics | None:
    """Look for outlying samples among the indices of a mode, counted from 0.

    Parameters
    ----------
    tensor : numpy.ndarray
        The tensor; entries that are not finite are missing.
    factors : sequence of numpy.ndarray
        The factors of the components to look at, which must not vanish.
    mode : int
        The mode of the samples.
    suspicion : numpy.ndarray
        Of many samples, those where this is largest are left out in turn.
    pool : Threads
        Threads, which do not change the result.
    kept : sequence of numpy.ndarray
        The indices of each mode that count; the factors have rows for these alone.
    mask : numpy.ndarray of bool, optional
        True where an entry is observed.
    cancelled : callable, optional
        Called between refits; return True to stop.

    Returns
    -------
    SampleDiagnostics or None
        None if `cancelled` returned True.
    """
    A, length = factors[mode], len(factors[mode])
    found = SampleDiagnostics(mode + 1, (None,) * length, (), _single(A))
    reason = None
    if not A.shape[1]:
        reason = "every component is zero"
    elif length < FEWEST_SAMPLES:
        reason = f"mode {mode + 1} has {length} samples: fewer than {FEWEST_SAMPLES} have no median"
    elif FileEntries.of(np.ma.getdata(tensor)) is not None:
        reason = "the tensor is in a file that is larger than memory"
    if reason is not None:
        return replace(found, reason=reason)
    samples = _moderate(tensor, mask, factors, mode, suspicion, kept)
    suspects = set(np.argsort(-suspicion, kind="stable")[:MOST_LEFT_OUT].tolist())
    ratios: list[float | None] = [None] * length
    outliers: list[Outlier] = []
    fewest = max(FEWEST_SAMPLES, len(samples.X) // 2 + 1, A.shape[1] + 1)
    while len(samples.X) >= fewest:
        places = [place for place, number in enumerate(samples.numbers) if int(number) in suspects]
        errors = _errors(samples, places, pool, cancelled)
        if errors is None:
            return None
        square = np.square(samples.X).mean()
        median = float(np.median(errors))
        found_ratios = errors / median if median > 0 else np.where(errors > 0, math.inf, 1.0)
        if not outliers:
            for place, ratio in zip(places, found_ratios.tolist(), strict=True):
                ratios[int(samples.numbers[place])] = ratio
        worst = int(found_ratios.argmax())
        if not (found_ratios[worst] > OUTLYING and errors[worst] > LEAST_ERROR * square):
            break
        place = places[worst]
        outliers.append(Outlier(int(samples.numbers[place]), float(found_ratios[worst])))
        rest = samples.without(place)
        refitted = _refit(rest, [], FURTHER_SWEEPS)
        samples = Samples(rest.X, rest.observed, tuple(B[0] for B in refitted), rest.numbers)
    return SampleDiagnostics(mode + 1, tuple(ratios), tuple(outliers), found.single)


def search_bytes(shape: Sequence[int], mode: int, rank: int, has_gaps: bool, threads: int) -> int:
    """Return a bound on the bytes that looking for outlying samples takes, for a mode counted from 0."""
    most = min(MOST_ENTRIES, MOST_WORK // min(shape[mode], MOST_LEFT_OUT))
    determined = math.prod(min(size, 2 * rank) for other, size in enumerate(shape) if other != mode)
    entries = min(math.prod(shape), max(most, min(shape[mode], MOST_SAMPLES) * determined))
    # The part and its copies; on every thread a group of refits, each with the part's gaps filled.
    return 8 * 6 * (entries + threads * (GROUP + (entries if has_gaps else 0)))


def _single(A: Float64) -> tuple[SingleSample, ...]:
    squares = np.square(A)
    shares = squares / np.maximum(squares.sum(axis=0), np.finfo(float).tiny)
    tops = [(r, int(column.argmax())) for r, column in enumerate(shares.T)]
    return tuple(
        SingleSample(r + 1, top, float(shares[top, r])) for r, top in tops if shares[top, r] > ONE_SAMPLE and len(A) > 1
    )


def _moderate(
    tensor: NDArray[Any],
    mask: Booleans | None,
    factors: Sequence[Float64],
    mode: int,
    suspicion: Float64,
    kept: Sequence[Indices],
) -> Samples:
    """Return the suspects and other samples, at evenly spaced indices of the other modes if there are many entries."""
    length, rank = len(suspicion), factors[0].shape[1]
    numbers = np.arange(length)
    if length > MOST_SAMPLES:
        suspects = np.argsort(-suspicion, kind="stable")[:MOST_LEFT_OUT]
        others = np.linspace(0, length - 1, MOST_SAMPLES - MOST_LEFT_OUT).round().astype(np.intp)
        numbers = np.union1d(suspects, others)
    most = min(MOST_ENTRIES, MOST_WORK // min(length, MOST_LEFT_OUT)) // len(numbers)
    lengths = [1 if other == mode else len(own) for other, own in enumerate(kept)]
    thinned = [min(size, 2 * rank) for size in lengths]
    while math.prod(lengths) > most:  # halve the longest mode, as long as it determines its components
        longest = max(range(len(lengths)), key=lambda other: lengths[other] - thinned[other])
        if lengths[longest] <= thinned[longest]:
            break
        lengths[longest] = max(thinned[longest], lengths[longest] // 2)
    rows = [np.linspace(0, len(own) - 1, size).round().astype(np.intp) for own, size in zip(kept, lengths, strict=True)]
    rows[mode] = numbers
    picks = [own[some] for own, some in zip(kept, rows, strict=True)]
    X = np.moveaxis(np.ma.getdata(tensor)[np.ix_(*picks)].astype(np.float64), mode, 0)
    observed = np.isfinite(X)
    if np.ma.is_masked(tensor):
        observed &= np.moveaxis(~np.ma.getmaskarray(tensor[np.ix_(*picks)]), mode, 0)
    if mask is not None:
        own = [pick if size > 1 else np.zeros(1, np.intp) for pick, size in zip(picks, mask.shape, strict=True)]
        observed &= np.moveaxis(mask[np.ix_(*own)], mode, 0)
    order = [mode, *(other for other in range(tensor.ndim) if other != mode)]
    X = np.ascontiguousarray(np.where(observed, X, 0.0))
    model = tuple(np.ascontiguousarray(factors[other][rows[other]]) for other in order)
    return Samples(X, None if observed.all() else np.ascontiguousarray(observed), model, numbers)


def _errors(samples: Samples, places: Sequence[int], pool: Threads, cancelled: Callable[[], bool]) -> Float64 | None:
    """Return the mean squared error of each of these samples for the model that is fitted without it."""
    X, rank = samples.X, samples.factors[0].shape[1]
    cut = split_point(X.shape)
    one = (math.prod(X.shape[:cut]) + math.prod(X.shape[cut:])) * rank + (X.size if samples.observed is not None else 0)
    groups = list(split_evenly(len(places), -(-len(places) * one // GROUP)))
    errors: list[Float64] = []
    for first in range(0, len(groups), pool.count):
        if cancelled():
            return None
        errors += pool.each(lambda group: _group_errors(samples, places[group]), groups[first : first + pool.count])
    return np.concatenate(errors)


def _group_errors(samples: Samples, places: Sequence[int]) -> Float64:
    from sparse_ncp.solvers.kernels.bpp_simd import bpp_rows  # numba: see methods/hals.py

    others = _refit(samples, places, SWEEPS)[1:]
    B = _khatri_rao(others)
    x = samples.X[places].reshape(len(places), -1)
    count = np.full(len(places), x.shape[1])
    weighted = B
    if samples.observed is not None:
        seen = samples.observed[places].reshape(x.shape)
        weighted, count = B * seen[:, :, None], seen.sum(axis=1)
    G = weighted.transpose(0, 2, 1) @ B
    M = np.matmul(x[:, None, :], weighted)[:, 0]
    with Threads(1) as alone:
        A = regularise(np.zeros_like(M), G, M).solve_rows(bpp_rows, alone)
    residual = x - np.matmul(weighted, A[:, :, None])[:, :, 0]
    errors: Float64 = np.square(residual).sum(axis=1) / np.maximum(count, 1)
    return errors


def _refit(samples: Samples, left_out: Sequence[int], sweeps: int) -> list[Float64]:
    """Refit the factors by HALS without each of these samples in turn: refits × length × R; a single one of all.

    Missing entries are replaced by the model before every sweep.
    """
    from sparse_ncp.solvers.kernels.hals import hals_rows  # numba: see methods/hals.py

    X, count = samples.X, max(1, len(left_out))
    cut = split_point(X.shape)
    halves = range(cut), range(cut, X.ndim)
    sizes = [math.prod(X.shape[mode] for mode in half) for half in halves]
    F = [np.repeat(A[None], count, axis=0) for A in samples.factors]
    gone = (np.arange(len(left_out)), list(left_out))
    F[0][gone] = 0.0
    grams = [A.transpose(0, 2, 1) @ A for A in F]
    matrix = X.reshape(sizes)
    for _ in range(sweeps):
        filled = matrix
        if samples.observed is not None:
            model = _khatri_rao(F[:cut]) @ _khatri_rao(F[cut:]).transpose(0, 2, 1)
            filled = np.where(samples.observed.reshape(sizes), matrix, model)
        for half, others in zip(halves, reversed(halves), strict=True):
            K = _khatri_rao([F[mode] for mode in others])
            rows = filled if others is halves[1] else np.swapaxes(filled, -1, -2)
            if filled.ndim == 3:
                partial = rows @ K
            else:  # one product for all refits
                flat = rows @ K.transpose(1, 0, 2).reshape(K.shape[1], -1)
                partial = flat.reshape(len(rows), *K.shape[::2]).transpose(1, 0, 2)
            partial = partial.reshape(count, *(X.shape[mode] for mode in half), -1)
            for axis, mode in enumerate(half):
                M = partial
                for place, other in reversed(list(enumerate(half))):
                    if place != axis:
                        shape = [count, *(1,) * (M.ndim - 2), M.shape[-1]]
                        shape[1 + place] = X.shape[other]
                        M = (M * F[other].reshape(shape)).sum(axis=1 + place, keepdims=True)
                M = np.ascontiguousarray(M.reshape(count, X.shape[mode], -1))
                Q = hadamard([G for other, G in enumerate(grams) if other != mode])
                updated = np.empty_like(M)
                for refit in range(count):
                    hals_rows(F[mode][refit], M[refit], Q[refit], updated[refit], 1)
                if mode == 0:
                    updated[gone] = 0.0
                F[mode], grams[mode] = updated, updated.transpose(0, 2, 1) @ updated
    return F


def _khatri_rao(factors: Sequence[Float64]) -> Float64:
    """Return the Khatri-Rao products of stacked factors: refits × product of the lengths × R."""
    product = factors[0]
    for A in factors[1:]:
        product = (product[:, :, None, :] * A[:, None, :, :]).reshape(len(A), -1, A.shape[-1])
    return product

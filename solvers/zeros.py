"""Zeros that look like missing readings: whole fibres of zeros where a fit of the other entries expects far more.

Instruments and programs often store a reading that was not made, or was cut out, as zero. A fit that takes such zeros
for readings bends its components around them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.tensor.exclusion import Exclusion
from sparse_ncp.solvers.tensor.products import Float64, gram, hadamard, khatri_rao
from sparse_ncp.solvers.tensor.scan import Booleans
from sparse_ncp.solvers.tensor.threads import single_threaded_blas
from sparse_ncp.solvers.tensor.validation import check_mask, check_shape_and_dtype, is_masked_out

Zeros: TypeAlias = Literal["readings", "missing"]

# A tensor with more entries is thinned: these are enough, and the search must be quick.
MOST_ENTRIES = 1 << 19
# Components of the fit, and its sweeps: from each of three random starts, and then from the best of them.
RANK, STARTS, START_SWEEPS, SWEEPS = 6, 3, 10, 60
INNER_PASSES = 3
# Fibres of zeros are examined if there are at least this many, and if they are at most this fraction of the entries.
FEWEST_FIBRES, LARGEST_SHARE = 5, 0.5
# Zeros look missing if the model there is more than this many times the residual elsewhere (measured: 8 to 85 where
# readings were cut out, at most 0.8 where zeros are readings) ...
SUSPICIOUS_RATIO = 3.0
# ... and more than this fraction of the readings elsewhere: where the fit is exact, the residual alone says nothing.
SUSPICIOUS_LEVEL = 0.05


@dataclass(frozen=True)
class ZeroFibres:
    """Fibres along one mode that are zero throughout, compared with a fit of all other entries.

    Attributes
    ----------
    mode
        The mode along which the fibres run, counted from 1.
    entries
        How many entries these fibres have; an estimate if the tensor was thinned.
    share
        The same, as a fraction of the observed entries.
    ratio
        Root mean square of the model in these fibres, in units of that of the residual elsewhere.
    level
        Root mean square of the model in these fibres, in units of that of the readings elsewhere.

    Examples
    --------
    >>> from sparse_ncp import ZeroFibres
    >>> ZeroFibres(mode=1, entries=300, share=0.08, ratio=21.0, level=0.9).look_missing
    True
    """

    mode: int
    entries: int
    share: float
    ratio: float
    level: float

    @property
    def look_missing(self) -> bool:
        """Whether the fit contradicts these zeros."""
        return self.ratio > SUSPICIOUS_RATIO and self.level > SUSPICIOUS_LEVEL


def find_zero_fibres(tensor: NDArray[Any], mask: Booleans | None = None, seed: int = 0) -> tuple[ZeroFibres, ...]:
    """Look for fibres of exact zeros, and compare them with what a fit of the other entries expects there.

    Parameters
    ----------
    tensor : array_like
        The tensor. NaN and masked entries are missing. A large tensor is thinned to about 500,000 entries first.
    mask : array_like of bool, optional
        True where an entry is observed.
    seed : int
        Seed of the fits.

    Returns
    -------
    tuple of ZeroFibres
        One for each mode along which there are such fibres; `look_missing` says whether the fit contradicts them.

    Examples
    --------
    >>> from sparse_ncp import find_zero_fibres, synthetic
    >>> tensor = synthetic.planted((20, 15, 12), rank=2).tensor + 1
    >>> tensor[:, 3:6, 4:9] = 0  # readings that were cut out of every sample
    >>> [found] = find_zero_fibres(tensor)
    >>> found.mode, found.entries, found.look_missing
    (1, 300, True)
    """
    entries = np.ma.getdata(tensor)
    known = np.ma.getmaskarray(tensor) if np.ma.is_masked(tensor) else None
    thin = _thinning(entries.shape)
    X = np.asarray(entries[thin], np.float64)
    observed = np.isfinite(X)
    if known is not None:
        observed &= ~known[thin]
    if mask is not None:
        observed &= np.broadcast_to(mask, entries.shape)[thin]
    X = np.where(observed, X, 0.0)
    largest = float(np.abs(X).max())
    found = []
    for mode in range(X.ndim if largest else 0):
        zeros = _in_zero_fibres(X, observed, mode)
        fibres, share = np.count_nonzero(zeros.any(axis=mode)), float(zeros.sum() / max(1, observed.sum()))
        if fibres < FEWEST_FIBRES or share > LARGEST_SHARE:
            continue
        with single_threaded_blas():
            ratio, level = _expectation(X / largest, observed, zeros, seed)
        whole = zeros.sum() * (entries.size / X.size)
        found.append(ZeroFibres(mode + 1, round(float(whole)), share, ratio, level))
    return tuple(found)


def mask_of_readings(
    tensor: object,
    zeros: Zeros,
    mask: object = None,
    exclude: Mapping[int, Sequence[int | str]] | None = None,
) -> Booleans | None:
    """Return the mask with which a tensor is fitted: zeros that look missing are left out, if `zeros` says so.

    Parameters
    ----------
    tensor : array_like
        The tensor.
    zeros : {"readings", "missing"}
        With "readings", the mask is returned as it is.
    mask : array_like of bool, optional
        True where an entry is observed, as far as that is known already.
    exclude : mapping of int to sequence of int, optional
        Indices that are not fitted, by mode, counted from 1: their zeros do not count.

    Returns
    -------
    numpy.ndarray of bool or None
        The mask, with a length of 1 in modes along which it does not change; None if there is none.
    """
    array = np.asanyarray(tensor)
    known = None if mask is None else check_mask(mask, array.shape)
    if zeros == "readings":
        return known
    check_shape_and_dtype(array)
    exclusion = Exclusion.of(exclude, array.shape)
    if not exclusion or is_masked_out(array, exclusion, None):
        return without_zero_fibres(array, find_zero_fibres(array, known), known)
    rest, seen = exclusion.array(array), exclusion.mask(known)
    found = exclusion.whole_mask(without_zero_fibres(rest, find_zero_fibres(rest, seen), seen))
    return known if found is None else found if known is None else found & known


def without_zero_fibres(
    tensor: NDArray[Any], found: Sequence[ZeroFibres], mask: Booleans | None = None
) -> Booleans | None:
    """Return the mask without the fibres of zeros that look missing, as `mask_of_readings` does."""
    entries = np.ma.getdata(tensor)
    for one in found:
        if not one.look_missing:
            continue
        others = tuple(other for other in range(entries.ndim) if other != one.mode - 1)
        read = _has_reading(entries, one.mode - 1)
        # An index that has zeros only would have no readings left: its zeros stay.
        for other in others:
            rest = tuple(axis for axis in others if axis != other)
            read |= ~read.any(axis=rest, keepdims=True)
        mask = read if mask is None else mask & read
    return mask


def zeros_notes(found: Sequence[ZeroFibres], zeros: Zeros) -> tuple[str, ...]:
    """Return a sentence for each mode with zeros that look missing; it names the remedy, unless that was applied."""
    suspicious = [one for one in found if one.look_missing]
    if zeros == "missing" and not suspicious:
        return ("no zeros look like missing readings, so all of them are readings",)
    notes = []
    for one in suspicious:
        where = f"{one.entries:,} entries ({one.share:.1%}) are zero along the whole of mode {one.mode}"
        expected = f"a fit of the others expects {one.ratio:.0f} times its residual there"
        if zeros == "missing":
            notes.append(f"{where} and are taken as missing: {expected}")
        else:
            remedy = "if they were not measured, give zeros='missing'"
            notes.append(f"{where}, but {expected}: they look like missing readings; {remedy}")
    return tuple(notes)


def _thinning(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return slices that leave at most about MOST_ENTRIES entries, by a step in the longest modes."""
    kept = list(shape)
    while math.prod(kept) > MOST_ENTRIES:
        longest = kept.index(max(kept))
        kept[longest] = -(-kept[longest] // 2)
    steps = [max(1, length // count) for length, count in zip(shape, kept, strict=True)]
    return tuple(slice(0, count * step, step) for count, step in zip(kept, steps, strict=True))


def _has_reading(entries: NDArray[Any], mode: int) -> Booleans:
    """Return which fibres along a mode have an entry that is neither zero nor NaN, reading one index at a time."""
    read = np.zeros([1 if axis == mode else length for axis, length in enumerate(entries.shape)], np.bool_)
    slowest = 0 if entries.flags.c_contiguous else entries.ndim - 1
    for index in range(entries.shape[slowest]):
        place = tuple(slice(index, index + 1) if axis == slowest else slice(None) for axis in range(entries.ndim))
        part = entries[place]
        into = read if slowest == mode else read[place]
        into |= ((part > 0) | (part < 0)).any(axis=mode, keepdims=True)
    return read


def _in_zero_fibres(X: Float64, observed: Booleans, mode: int) -> Booleans:
    """Return the observed entries of fibres without a reading other than zero, but never a whole slice of a mode."""
    read = (observed & (X != 0)).any(axis=mode, keepdims=True)
    zeros: Booleans = observed & ~read
    for other in range(X.ndim):
        if other != mode:
            rest = tuple(axis for axis in range(X.ndim) if axis != other)
            zeros &= (observed & ~zeros).any(axis=rest, keepdims=True)
    return zeros


def _expectation(X: Float64, observed: Booleans, zeros: Booleans, seed: int) -> tuple[float, float]:
    """Fit the other entries; return the model in the fibres, in units of the residual and of the readings elsewhere."""
    fitted = observed & ~zeros
    scale = root_mean_square(X[fitted])
    random = np.random.default_rng(seed)
    rank = min(RANK, math.prod(X.shape) // max(X.shape))
    starts = [[random.random((length, rank)) for length in X.shape] for _ in range(STARTS)]
    fits = [_fit(X / scale, observed, start, START_SWEEPS) for start in starts]
    # Also start from a fit that includes the zeros: a model that explains them stays there, even if it is not unique.
    model, _ = _fit(X / scale, fitted, min(fits, key=lambda fit: fit[1])[0], SWEEPS)

    expected = root_mean_square(full(model)[zeros])
    residual = root_mean_square((X / scale - full(model))[fitted])
    return expected / max(residual, np.finfo(float).eps), expected


def _fit(X: Float64, fitted: Booleans, start: Sequence[Float64], sweeps: int) -> tuple[list[Float64], float]:
    """Fit some entries by HALS, with the model in place of the others before every sweep; return factors and error."""
    from sparse_ncp.solvers.kernels.hals import hals_rows  # numba takes half a second to load

    factors = list(start)
    for _ in range(sweeps):
        filled = np.where(fitted, X, full(factors))
        for mode, A in enumerate(factors):
            others = [B for other, B in enumerate(factors) if other != mode]
            products: Float64 = np.moveaxis(filled, mode, 0).reshape(len(A), -1) @ khatri_rao(others).T
            factors[mode] = np.empty_like(A)
            hals_rows(A, products, hadamard([gram(B) for B in others]), factors[mode], INNER_PASSES)
    return factors, float(np.square((X - full(factors))[fitted]).sum())


def full(factors: Sequence[Float64]) -> Float64:
    """Return the model tensor ⟦A¹…Aᴺ⟧."""
    first, *others = factors
    return (first @ khatri_rao(others)).reshape([len(A) for A in factors])


def root_mean_square(values: Float64) -> float:
    """Return the root mean square of some numbers."""
    return math.sqrt(float(np.square(values).mean()))

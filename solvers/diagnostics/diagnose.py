"""Diagnostics of a result: where the model misses the tensor, which indices it depends on, whether components overlap.

Two passes over the tensor, in tiles and in the order of its memory or file: neither the model nor its residual is ever
held whole. Outlying samples are looked for in a part of moderate size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.diagnostics.core_consistency import COLLINEAR, core_consistency, why_inconsistent
from sparse_ncp.solvers.diagnostics.outliers import SampleDiagnostics, find_outliers
from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.metrics import DEAD_SHARE, unit_columns, weights
from sparse_ncp.solvers.tensor.dense import GROUPS, TILE
from sparse_ncp.solvers.tensor.entries import Entries, normal_equations
from sparse_ncp.solvers.tensor.exclusion import Exclusion, whole_factors
from sparse_ncp.solvers.tensor.gemm.out_of_core import MatrixTile, matrix_tiles
from sparse_ncp.solvers.tensor.products import Array, Float64, KhatriRao, gram, hadamard
from sparse_ncp.solvers.tensor.scan import Booleans
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas, split_evenly
from sparse_ncp.solvers.tensor.validation import check_mask, check_mode, check_shape_and_dtype, is_masked_out


@dataclass(frozen=True)
class ComponentDiagnostics:
    """Diagnostics of a component: its squared weight as a fraction of the sum over all components.

    `unobserved` is the fraction of the component's own square that lies over missing entries.
    """

    share: float
    unobserved: float = 0.0


@dataclass(frozen=True)
class ModeDiagnostics:
    """Diagnostics of a mode: for each index, the squared residual of its observed entries, and its leverage.

    A leverage is between 0 and 1; over all indices they sum to the number of independent columns. An excluded index has
    the residual of the row that was computed for it, and no leverage on the fit.
    """

    residual: tuple[float, ...]
    leverage: tuple[float, ...]


@dataclass(frozen=True)
class UnobservedDiagnostics:
    """The model over missing entries: its largest value there, over the largest reading.

    `component`, counted from 1, contributes most to that value. `missing` is the number of missing entries.
    """

    missing: int
    ratio: float
    component: int


@dataclass(frozen=True)
class Diagnostics:
    """Measures of how far a result can be trusted.

    Attributes
    ----------
    core_consistency : float or None
        The core consistency of Bro and Kiers, 100 at best.
    core_consistency_reason : str or None
        Why there is no core consistency.
    components : tuple of ComponentDiagnostics
        The share of each component.
    modes : tuple of ModeDiagnostics
        Squared residual and leverage of each index of each mode.
    congruence : tuple of tuple of float
        Tucker congruence of all pairs of components.
    unobserved : UnobservedDiagnostics or None
        The model over missing entries; None without any.
    samples : SampleDiagnostics or None
        Outlying samples; None if none were looked for.

    Examples
    --------
    >>> from sparse_ncp import Settings, solve, synthetic
    >>> X = synthetic.planted((20, 15, 10), rank=3, seed=1).tensor
    >>> found = solve(X, Settings(rank=3, method="hals")).diagnostics
    >>> [len(mode.residual) for mode in found.modes]
    [20, 15, 10]
    """

    core_consistency: float | None
    core_consistency_reason: str | None
    components: tuple[ComponentDiagnostics, ...]
    modes: tuple[ModeDiagnostics, ...]
    congruence: tuple[tuple[float, ...], ...]
    unobserved: UnobservedDiagnostics | None = None
    samples: SampleDiagnostics | None = None


class _Residual(NamedTuple):
    """Squared residuals of some rows and columns, summed over either, and the rest of the statistics over them."""

    rows: slice
    columns: slice
    by_row: Float64
    by_column: Float64
    statistics: "_Statistics"


@dataclass(frozen=True)
class _Statistics:
    """The sum of squares and the largest of the readings, and the model over missing entries.

    `missing` is the number of these, `hidden` the square of each component over them, `peak` the largest value of the
    model there and the component that contributes most to it.
    """

    square: float
    reading: float
    missing: int
    hidden: Float64
    peak: tuple[float, int]

    def plus(self, other: "_Statistics") -> "_Statistics":
        return _Statistics(
            self.square + other.square,
            max(self.reading, other.reading),
            self.missing + other.missing,
            self.hidden + other.hidden,
            max(self.peak, other.peak, key=lambda peak: peak[0]),
        )


def diagnose(
    tensor: object,
    factors: Sequence[Array],
    *,
    mask: Booleans | None = None,
    exclude: Mapping[int, Sequence[int | str]] | None = None,
    samples_mode: int | None = 1,
    threads: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Diagnostics | None:
    """Diagnose factors that were fitted to a tensor, in two passes over it, or seven if entries are missing.

    Outlying samples are looked for by refits of up to 262,144 of its entries without each sample in turn.

    Parameters
    ----------
    tensor : array_like
        The tensor, which may be a memory map.
    factors : sequence of numpy.ndarray
        One factor per mode.
    mask : numpy.ndarray of bool, optional
        True where an entry is observed.
    exclude : mapping of int to sequence of int, optional
        Indices that were left out of the fit, by mode, as in `Settings`. They count for their own residual alone.
    samples_mode : int, optional
        The mode whose indices are samples, counted from 1; None to look for no outlying samples.
    threads : int, optional
        Number of threads; it does not change the result.
    cancelled : callable, optional
        Called from time to time; return True to stop.

    Returns
    -------
    Diagnostics or None
        None if `cancelled` returned True.

    Raises
    ------
    InvalidInput
        If the factors do not fit the tensor.

    Examples
    --------
    >>> from sparse_ncp import diagnose, synthetic
    >>> planted = synthetic.planted((20, 15, 10), rank=3, seed=1)
    >>> diagnose(planted.tensor, planted.factors).core_consistency > 90
    True
    """
    array = np.asanyarray(tensor)
    check_shape_and_dtype(array)
    _check_factors(factors, array.shape)
    check_mode(samples_mode or 1, array.ndim)
    observed = None if mask is None else check_mask(mask, array.shape)
    exclusion = Exclusion.of(exclude, array.shape)
    whole = [A.astype(np.float64, copy=False) for A in factors]
    exact = [A[own] for A, own in zip(whole, exclusion.kept, strict=True)]
    is_masked = is_masked_out(array, exclusion, None)
    if is_masked:
        entries = Entries(array, exclusion.masked(observed))
    else:
        entries = Entries(exclusion.array(array), exclusion.mask(observed)) if exclusion else Entries(array, observed)
    with Threads(threads) as pool, single_threaded_blas():
        shown = whole_factors(exact, exclude, {}) if is_masked else exact
        measured = _residual_per_mode(entries, shown, pool, cancelled)
        if measured is None:
            return None
        residuals, found = measured
        if is_masked:
            residuals = [residual[own] for residual, own in zip(residuals, exclusion.kept, strict=True)]
            left_out = math.prod(exclusion.shape) - math.prod(exclusion.kept_shape)
            found = replace(found, missing=found.missing - left_out)
        sizes = weights(exact)
        is_living = sizes > DEAD_SHARE * math.sqrt(found.square)
        living = [A[:, is_living] for A in exact]
        reason = why_inconsistent(living)
        if is_masked and reason is None:
            reason = "indices are left out of a file that is larger than memory"
        consistency = None if reason else core_consistency(entries, living, found.missing > 0, pool, cancelled)
        if consistency is None and reason is None:
            return None
        leverages = [_leverage(A) for A in living]
        samples = None
        if samples_mode is not None:
            mode = samples_mode - 1
            suspicion = np.maximum(leverages[mode], residuals[mode] / (residuals[mode].max(initial=0.0) or 1.0))
            seen = find_outliers(array, living, mode, suspicion, pool, exclusion.kept, observed, cancelled)
            if seen is None:
                return None
            components = np.flatnonzero(is_living).tolist()
            samples = seen.renumbered(exclusion.kept[mode].tolist(), len(whole[mode]), components)
    energy = np.square(sizes)
    unobserved = found.hidden / np.where(energy > 0, energy, 1.0)
    return Diagnostics(
        core_consistency=consistency,
        core_consistency_reason=reason,
        components=tuple(map(ComponentDiagnostics, (energy / (energy.sum() or 1.0)).tolist(), unobserved.tolist())),
        modes=_whole_modes(array, observed, exclusion, whole, residuals, leverages),
        congruence=tuple(map(tuple, hadamard([gram(unit_columns(A)) for A in exact]).tolist())),
        unobserved=UnobservedDiagnostics(found.missing, found.peak[0] / (found.reading or 1.0), found.peak[1] + 1)
        if found.missing
        else None,
        samples=samples,
    )


def _whole_modes(
    array: NDArray[Any],
    mask: Booleans | None,
    exclusion: Exclusion,
    factors: Sequence[Float64],
    residuals: Sequence[Float64],
    leverages: Sequence[Float64],
) -> tuple[ModeDiagnostics, ...]:
    """Return the diagnostics of every index, the excluded ones too."""
    modes = []
    kept = [A[own] for A, own in zip(factors, exclusion.kept, strict=True)]
    for mode, A in enumerate(factors):
        residual, leverage = np.zeros(len(A)), np.zeros(len(A))
        residual[exclusion.kept[mode]], leverage[exclusion.kept[mode]] = residuals[mode], leverages[mode]
        beside = [*kept[:mode], np.ones((1, A.shape[1])), *kept[mode + 1 :]]
        for index in exclusion.excluded[mode].tolist():
            part = exclusion.slice_of(array, mode, index)
            part_mask = None if mask is None else exclusion.slice_of(mask, mode, index)
            residual[index] = normal_equations(part, part_mask, beside).residual(A[index])
        modes.append(ModeDiagnostics(tuple(residual.tolist()), tuple(leverage.tolist())))
    return tuple(modes)


def _check_factors(factors: Sequence[Array], shape: tuple[int, ...]) -> None:
    wanted = [(length, factors[0].shape[-1] if factors else 1) for length in shape]
    if [A.shape for A in factors] != wanted:
        shapes = ", ".join(str(A.shape) for A in factors)
        raise InvalidInput("factors", f"have shapes {shapes}", f"give {', '.join(map(str, wanted))}: length × rank")


def _residual_per_mode(
    entries: Entries, factors: Sequence[Float64], pool: Threads, cancelled: Callable[[], bool]
) -> tuple[list[Float64], _Statistics] | None:
    """Return squared residuals per index of every mode, and statistics of readings and of missing entries."""
    halves = [entries.modes[: entries.cut], entries.modes[entries.cut :]]
    left, right = (
        KhatriRao([factors[mode] for mode in half], used_once)
        for half, used_once in zip(halves, (entries.matrix.shape[1] <= TILE, False), strict=True)
    )
    by_row, by_column = (np.zeros(length) for length in entries.matrix.shape)
    nothing = _Statistics(0.0, 0.0, 0, np.zeros(factors[0].shape[1]), (0.0, 0))
    found = nothing

    def residual(tiles: Sequence[MatrixTile]) -> _Residual:
        rows, columns = slice(tiles[0].rows.start, tiles[-1].rows.stop), tiles[0].columns
        row_sums, column_sums = np.zeros(rows.stop - rows.start), np.zeros(columns.stop - columns.start)
        statistics, beside = nothing, right[columns]
        for tile in tiles:
            entry, observed = entries.observed(tile)
            first, model = left[tile.rows], left[tile.rows].T @ beside
            part = replace(nothing, square=float(np.vdot(entry, entry)), reading=float(entry.max()))
            entry -= model
            if observed is not None:
                entry[~observed] = 0
                part = _over_missing(part, observed, model, first, beside)
            statistics = statistics.plus(part)
            np.square(entry, out=entry)
            row_sums[tile.rows.start - rows.start : tile.rows.stop - rows.start] = entry.sum(axis=1)
            column_sums += entry.sum(axis=0)
            del entry, model  # before the next tile is read
        return _Residual(rows, columns, row_sums, column_sums, statistics)

    for group in matrix_tiles(entries.matrix, TILE):
        if cancelled():
            return None
        lists = _below_each_other(group)
        together = max(pool.count, TILE // len(by_column))  # each holds sums of all its columns
        for start in range(0, len(lists), together):
            for part in pool.each(residual, lists[start : start + together]):
                by_row[part.rows] += part.by_row
                by_column[part.columns] += part.by_column
                found = found.plus(part.statistics)
    sums: list[Float64] = [np.empty(0)] * len(factors)
    for half, total in zip(halves, (by_row, by_column), strict=True):
        shaped = total.reshape([len(factors[mode]) for mode in half])
        for axis, mode in enumerate(half):
            sums[mode] = shaped.sum(axis=tuple(other for other in range(len(half)) if other != axis))
    return sums, found


def _over_missing(found: _Statistics, observed: Booleans, model: Array, left: Array, right: Array) -> _Statistics:
    """Add the statistics of the missing entries of a tile; the model is overwritten where entries are observed."""
    missing = (~observed).astype(np.float64)
    hidden = ((missing @ np.square(right).T) * np.square(left).T).sum(axis=0)
    model[observed] = 0
    row, column = divmod(int(model.argmax()), model.shape[1])
    component = int((left[:, row] * right[:, column]).argmax())
    count = observed.size - int(observed.sum())
    return replace(found, missing=count, hidden=hidden, peak=(float(model[row, column]), component))


def _below_each_other(tiles: Sequence[MatrixTile]) -> list[list[MatrixTile]]:
    """Group tiles of the same columns and adjacent rows, in about as many lists as threads can share."""
    same: dict[int, list[MatrixTile]] = {}
    for tile in tiles:
        same.setdefault(tile.columns.start, []).append(tile)
    each = -(-GROUPS // len(same))
    return [below[some] for below in same.values() for some in split_evenly(len(below), each)]


def _leverage(A: Float64) -> Float64:
    """Return the diagonal of A A⁺, from an orthonormal basis of the columns."""
    if A.shape[1] == 0:
        return np.zeros(len(A))
    left, singular, _ = np.linalg.svd(unit_columns(A), full_matrices=False)
    leverage: Float64 = np.square(left[:, singular > COLLINEAR * singular[0]]).sum(axis=1)
    return leverage

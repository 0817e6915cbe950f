"""Diagnostics of a result: where the model misses the tensor, which indices it leans on, whether components overlap.

Two passes over the tensor, in tiles and in the order of its memory or file: neither the model nor its residual is ever
held whole.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.metrics import DEAD_SHARE, unit_columns, weights
from sparse_ncp.solvers.tensor.dense import GROUPS, TILE
from sparse_ncp.solvers.tensor.gemm.blocks import split_point
from sparse_ncp.solvers.tensor.gemm.out_of_core import MatrixTile, contiguous_runs, matrix_tiles
from sparse_ncp.solvers.tensor.products import Array, Float64, KhatriRao, gram, hadamard
from sparse_ncp.solvers.tensor.scan import Booleans, Region, regions_with_entries
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas, split_evenly
from sparse_ncp.solvers.tensor.validation import check_mask, check_shape_and_dtype

# Entries of the largest core: 64 components in three modes, 22 in four. A consistency of more says nothing.
LARGEST_CORE = 1 << 18
# Columns of a factor are collinear where their smallest singular value is below this share of the largest.
COLLINEAR = 1e-6


@dataclass(frozen=True)
class ComponentDiagnostics:
    """Diagnostics of a component. `share` is its squared weight as a fraction of the sum over all components."""

    share: float


@dataclass(frozen=True)
class ModeDiagnostics:
    """Diagnostics of a mode: for each index, the squared residual of its observed entries, and its leverage.

    A leverage is between 0 and 1; over all indices they sum to the number of independent columns.
    """

    residual: tuple[float, ...]
    leverage: tuple[float, ...]


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


class Entries:
    """The entries of a tensor as they lie in memory, read as a matrix in tiles or box by box, with what is missing.

    An entry is missing where it is NaN, or where `mask` (true: observed; each mode's length or 1) is false.
    """

    def __init__(self, tensor: NDArray[Any], mask: Booleans | None = None) -> None:
        if isinstance(tensor, np.ma.MaskedArray):
            own = ~np.ma.getmaskarray(tensor)
            tensor, mask = np.ma.getdata(tensor), own if mask is None else own & mask
        contiguous = tensor.flags.c_contiguous or tensor.flags.f_contiguous
        entries = tensor if contiguous else np.ascontiguousarray(tensor)
        reverse = not entries.flags.c_contiguous
        self.stored = entries.T if reverse else entries
        self.modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
        self.cut = split_point(self.stored.shape)
        self.matrix = self.stored.reshape(math.prod(self.stored.shape[: self.cut]), -1)
        self._observed = None if mask is None else _MaskMatrix(mask.T if reverse else mask, self.stored.shape, self.cut)

    def observed(self, tile: MatrixTile) -> tuple[Float64, Booleans | None]:
        """The entries of a tile, zero where they are missing, and which are observed; None if all are."""
        entries = tile.entries.astype(np.float64)
        observed = None if self._observed is None else self._observed.tile(tile.rows, tile.columns)
        if self.stored.dtype.kind == "f":
            numbers = ~np.isnan(entries)
            observed = numbers if observed is None else observed & numbers
        if observed is None or observed.all():
            return entries, None
        entries[~observed] = 0
        return entries, observed


class _MaskMatrix:
    """A mask as the matrix of `Entries`, without repeating it along the modes where its length is 1."""

    def __init__(self, mask: Booleans, shape: tuple[int, ...], cut: int) -> None:
        halves = [(mask.shape[part], shape[part]) for part in (slice(cut), slice(cut, None))]
        self._matrix = mask.reshape(tuple(math.prod(own) for own, _ in halves))
        self._rows, self._columns = (_places(own, lengths) for own, lengths in halves)

    def tile(self, rows: slice, columns: slice) -> Booleans:
        found: Booleans = self._matrix[self._rows[rows, None], self._columns[None, columns]]
        return found


def _places(own: Sequence[int], lengths: Sequence[int]) -> NDArray[np.intp]:
    """Return the position of each index of some modes in a mask, which may have length 1 in them."""
    numbered = np.arange(math.prod(own)).reshape(tuple(own))
    return np.broadcast_to(numbered, tuple(lengths)).reshape(-1)


class _Residual(NamedTuple):
    """Squared residuals of some rows and columns, summed over either; the entries' square, and how many are missing."""

    rows: slice
    columns: slice
    by_row: Float64
    by_column: Float64
    square: float
    missing: int


def diagnose(
    tensor: object,
    factors: Sequence[Array],
    *,
    mask: Booleans | None = None,
    threads: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Diagnostics | None:
    """Diagnose factors that were fitted to a tensor, in two passes over it.

    Parameters
    ----------
    tensor : array_like
        The tensor, which may be a memory map.
    factors : sequence of numpy.ndarray
        One factor per mode.
    mask : numpy.ndarray of bool, optional
        True where an entry is observed.
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
    entries = Entries(array, None if mask is None else check_mask(mask, array.shape))
    exact = [A.astype(np.float64, copy=False) for A in factors]
    with Threads(threads) as pool, single_threaded_blas():
        found = _residual_per_mode(entries, exact, pool, cancelled)
        if found is None:
            return None
        residuals, square, missing = found
        sizes = weights(exact)
        living = [A[:, sizes > DEAD_SHARE * math.sqrt(square)] for A in exact]
        reason = _why_inconsistent(living, missing)
        consistency = None if reason else _core_consistency(entries, living, pool, cancelled)
        if consistency is None and reason is None:
            return None
        leverages = [_leverage(A) for A in living]
    energy = np.square(sizes)
    return Diagnostics(
        core_consistency=consistency,
        core_consistency_reason=reason,
        components=tuple(map(ComponentDiagnostics, (energy / (energy.sum() or 1.0)).tolist())),
        modes=tuple(
            ModeDiagnostics(tuple(residual.tolist()), tuple(leverage.tolist()))
            for residual, leverage in zip(residuals, leverages, strict=True)
        ),
        congruence=tuple(map(tuple, hadamard([gram(unit_columns(A)) for A in exact]).tolist())),
    )


def _check_factors(factors: Sequence[Array], shape: tuple[int, ...]) -> None:
    wanted = [(length, factors[0].shape[-1] if factors else 1) for length in shape]
    if [A.shape for A in factors] != wanted:
        shapes = ", ".join(str(A.shape) for A in factors)
        raise InvalidInput("factors", f"have shapes {shapes}", f"give {', '.join(map(str, wanted))}: length × rank")


def _residual_per_mode(
    entries: Entries, factors: Sequence[Float64], pool: Threads, cancelled: Callable[[], bool]
) -> tuple[list[Float64], float, int] | None:
    """Return squared residuals per index of every mode, the squared norm of the tensor, and the missing count."""
    halves = [entries.modes[: entries.cut], entries.modes[entries.cut :]]
    left, right = (
        KhatriRao([factors[mode] for mode in half], used_once)
        for half, used_once in zip(halves, (entries.matrix.shape[1] <= TILE, False), strict=True)
    )
    by_row, by_column = (np.zeros(length) for length in entries.matrix.shape)
    square, missing = 0.0, 0

    def residual(tiles: Sequence[MatrixTile]) -> _Residual:
        rows, columns = slice(tiles[0].rows.start, tiles[-1].rows.stop), tiles[0].columns
        row_sums, column_sums = np.zeros(rows.stop - rows.start), np.zeros(columns.stop - columns.start)
        square, missing, beside = 0.0, 0, right[columns]
        for tile in tiles:
            entry, observed = entries.observed(tile)
            square += float(np.vdot(entry, entry))
            entry -= left[tile.rows].T @ beside
            if observed is not None:
                entry[~observed] = 0
                missing += observed.size - int(observed.sum())
            np.square(entry, out=entry)
            row_sums[tile.rows.start - rows.start : tile.rows.stop - rows.start] = entry.sum(axis=1)
            column_sums += entry.sum(axis=0)
            del entry  # before the next tile is read
        return _Residual(rows, columns, row_sums, column_sums, square, missing)

    for group in matrix_tiles(entries.matrix, TILE):
        if cancelled():
            return None
        lists = _below_each_other(group)
        together = max(pool.count, TILE // len(by_column))  # each holds sums of all its columns
        for first in range(0, len(lists), together):
            for part in pool.each(residual, lists[first : first + together]):
                by_row[part.rows] += part.by_row
                by_column[part.columns] += part.by_column
                square, missing = square + part.square, missing + part.missing
    sums: list[Float64] = [np.empty(0)] * len(factors)
    for half, total in zip(halves, (by_row, by_column), strict=True):
        shaped = total.reshape([len(factors[mode]) for mode in half])
        for axis, mode in enumerate(half):
            sums[mode] = shaped.sum(axis=tuple(other for other in range(len(half)) if other != axis))
    return sums, square, missing


def _below_each_other(tiles: Sequence[MatrixTile]) -> list[list[MatrixTile]]:
    """Tiles of the same columns and of rows that follow each other, in about as many lists as threads may share."""
    same: dict[int, list[MatrixTile]] = {}
    for tile in tiles:
        same.setdefault(tile.columns.start, []).append(tile)
    each = -(-GROUPS // len(same))
    return [below[some] for below in same.values() for some in split_evenly(len(below), each)]


def _why_inconsistent(living: Sequence[Float64], missing: int) -> str | None:
    """Return why there is no core consistency, or None if there is one."""
    rank, order = living[0].shape[1], len(living)
    if order < 3:
        return "the tensor has two modes: core consistency is about three or more"
    if rank == 0:
        return "every component is zero"
    if missing:
        return "entries are missing: filled in with the model, they would agree with it"
    if rank**order > LARGEST_CORE:
        return f"{rank} components in {order} modes make a core of more than {LARGEST_CORE:,} entries"
    return next(filter(None, map(_why_singular, range(1, order + 1), living)), None)


def _why_singular(mode: int, A: Float64) -> str | None:
    """Return why a factor has no left inverse, or None if it has one."""
    length, rank = A.shape
    if length < rank:
        return f"mode {mode} has a length of {length}, for {rank} components"
    singular = np.linalg.svd(unit_columns(A), compute_uv=False)
    if singular[-1] < COLLINEAR * singular[0]:
        return f"columns of mode {mode} are collinear: there may be too many components"
    return None


def _core_consistency(
    entries: Entries, living: Sequence[Float64], pool: Threads, cancelled: Callable[[], bool]
) -> float | None:
    """Return the core consistency of Bro and Kiers, 100 (1 − ‖G − T‖² / R).

    G = X ×₁ A₁⁺ … ×_N A_N⁺ is the core; T is one on its diagonal, else zero. G depends on how the scale of a component
    is spread over the modes: here evenly, so that it does not depend on the run.
    """
    rank, order = living[0].shape[1], len(living)
    scale = weights(living) ** (1 / order)
    inverses = [np.linalg.pinv(unit_columns(living[mode]), rcond=0) / scale[:, None] for mode in entries.modes]
    total = np.zeros((rank,) * order)

    def core(some: Sequence[tuple[Region, NDArray[Any]]]) -> Float64:
        return reduce(
            np.add, (_box_core(part, [A[:, cut] for A, cut in zip(inverses, box, strict=True)]) for box, part in some)
        )

    for group in regions_with_entries(entries.stored, contiguous_runs, TILE):
        if cancelled():
            return None
        for term in pool.each(core, [group[some] for some in split_evenly(len(group), GROUPS)]):
            total += term.reshape(total.shape)
    total[(np.arange(rank),) * order] -= 1
    consistency: float = 100 * (1 - float(np.vdot(total, total)) / rank)
    return consistency


def _box_core(entries: NDArray[Any], inverses: Sequence[Float64]) -> Float64:
    """Return a region's part of the core: multiply mode by mode, the last first, by the inverse."""
    rest, after = entries.astype(np.float64), 1
    for inverse in reversed(inverses):
        if after == 1:
            rest = rest.reshape(-1, inverse.shape[1]) @ inverse.T
        else:
            rest = np.matmul(inverse, rest.reshape(-1, inverse.shape[1], after))
        after *= len(inverse)
    return rest


def _leverage(A: Float64) -> Float64:
    """Return the diagonal of A A⁺, from an orthonormal basis of the columns."""
    if A.shape[1] == 0:
        return np.zeros(len(A))
    left, singular, _ = np.linalg.svd(unit_columns(A), full_matrices=False)
    leverage: Float64 = np.square(left[:, singular > COLLINEAR * singular[0]]).sum(axis=1)
    return leverage

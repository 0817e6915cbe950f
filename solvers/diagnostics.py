"""Diagnostics of a result: where the model misses the tensor, which indices it leans on, whether components overlap.

Two passes over the tensor, in tiles: neither the model nor its residual is ever held whole.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from solvers.errors import InvalidInput
from solvers.metrics import DEAD_SHARE, unit_columns, weights
from solvers.tensor.contraction import split_point
from solvers.tensor.dense import GROUPS, TILE
from solvers.tensor.products import Array, Float64, gram, hadamard, khatri_rao
from solvers.tensor.scan import Booleans, Box, boxes
from solvers.tensor.threads import Threads, single_threaded_blas, slabs
from solvers.tensor.validation import check_mask, check_shape_and_dtype

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

# Entries of the largest core: 64 components in three modes, 22 in four. A consistency of more says nothing.
LARGEST_CORE = 1 << 18
# Entries that one thread reads in a row; between two rounds of `GROUPS` of them somebody may cancel.
PART = 1 << 24
# Entries of a tile that lie side by side in memory, at least: fewer would read a page for a few numbers.
SIDE_BY_SIDE = 256
# A tensor of more than a part may lie in a file larger than memory: its matrix is read in order, some rows at a time,
# unless a row has more entries than this, of which sums are held.
LONGEST_ROW, ROWS_SIDE_BY_SIDE = 1 << 19, 16
# Columns of a factor are collinear where their smallest singular value is below this share of the largest.
COLLINEAR = 1e-6


@dataclass(frozen=True)
class ComponentDiagnostics:
    """`share`: the component's squared weight, as a share of all components' together."""

    share: float


@dataclass(frozen=True)
class ModeDiagnostics:
    """Per index of a mode: the squared residual over its observed entries, and its leverage on the factor.

    A leverage is between 0 and 1; over all indices they sum to the number of independent columns.
    """

    residual: tuple[float, ...]
    leverage: tuple[float, ...]


@dataclass(frozen=True)
class Diagnostics:
    """How far a result can be trusted. `core_consistency_reason` says why there is no core consistency."""

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
        self.rows, self.columns = math.prod(self.stored.shape[: self.cut]), math.prod(self.stored.shape[self.cut :])
        self._matrix = self.stored.reshape(self.rows, self.columns)
        self._observed = None if mask is None else _MaskMatrix(mask.T if reverse else mask, self.stored.shape, self.cut)

    def tile(self, rows: slice, columns: slice) -> tuple[Float64, Booleans | None]:
        """The entries of a tile, zero where they are missing, and which are observed; None if all are."""
        entries = self._matrix[rows, columns].astype(np.float64)
        observed = None if self._observed is None else self._observed.tile(rows, columns)
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
    """For every index of some modes together, its place in a mask that may have length 1 there."""
    numbered = np.arange(math.prod(own)).reshape(tuple(own))
    return np.broadcast_to(numbered, tuple(lengths)).reshape(-1)


@dataclass(frozen=True)
class _Residual:
    """Squared residuals summed over the columns and over the rows of a part, the tensor's square, what is missing."""

    along: Float64
    across: Float64
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
    """The diagnostics of factors that were fitted to the tensor; None if `cancelled` said so, now and then asked.

    The same bits for any number of threads.
    """
    array = np.asanyarray(tensor)
    check_shape_and_dtype(array)
    _check_factors(factors, array.shape)
    entries = Entries(array, None if mask is None else check_mask(mask, array.shape))
    exact = [A.astype(np.float64) for A in factors]
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
    """Squared residuals per index of every mode, the tensor's square, and how many entries are missing.

    Parts are cut from the longer side of the matrix, so that only sums over the shorter one are held per part; those of
    a large tensor from its rows, so that it is read in the order of its file.
    """
    halves = [entries.modes[: entries.cut], entries.modes[entries.cut :]]
    left, right = (khatri_rao([factors[mode] for mode in half]) for half in halves)
    size = entries.rows * entries.columns
    is_wide = entries.columns > entries.rows
    in_order = is_wide and size > PART and entries.columns <= LONGEST_ROW
    upright = in_order or not is_wide
    long, short = (entries.rows, entries.columns) if upright else (entries.columns, entries.rows)
    wide = min(long, ROWS_SIDE_BY_SIDE if in_order else max(SIDE_BY_SIDE, TILE // short))
    high = min(short, max(1, TILE // wide))

    def residual(part: slice) -> _Residual:
        along, across, square, missing = np.zeros(part.stop - part.start), np.zeros(short), 0.0, 0
        tiles = product(slabs(len(along), -(-len(along) // wide)), slabs(short, -(-short // high)))
        for place, side in tiles:
            main = slice(part.start + place.start, part.start + place.stop)
            rows, columns = (main, side) if upright else (side, main)
            entry, observed = entries.tile(rows, columns)
            square += float(np.vdot(entry, entry))
            entry -= left[:, rows].T @ right[:, columns]
            if observed is not None:
                entry[~observed] = 0
                missing += observed.size - int(observed.sum())
            np.square(entry, out=entry)
            along[place] += entry.sum(axis=1 if upright else 0)
            across[side] += entry.sum(axis=0 if upright else 1)
        return _Residual(along, across, square, missing)

    along, across, square, missing = [], np.zeros(short), 0.0, 0
    for part in _in_rounds(residual, list(slabs(long, _parts(size, -(-size // TILE)))), pool, cancelled):
        if part is None:
            return None
        along.append(part.along)
        across += part.across
        square, missing = square + part.square, missing + part.missing
    by_half = (np.concatenate(along), across) if upright else (across, np.concatenate(along))
    sums: list[Float64] = [np.empty(0)] * len(factors)
    for half, total in zip(halves, by_half, strict=True):
        shaped = total.reshape([len(factors[mode]) for mode in half])
        for axis, mode in enumerate(half):
            sums[mode] = shaped.sum(axis=tuple(other for other in range(len(half)) if other != axis))
    return sums, square, missing


def _parts(size: int, tiles: int) -> int:
    """How many parts to cut a pass into: by the shape alone, a round's worth at least where there are enough tiles."""
    return max(min(GROUPS, tiles), -(-size // PART))


def _in_rounds(
    work: Callable[[Item], Outcome], items: Sequence[Item], pool: Threads, cancelled: Callable[[], bool]
) -> Iterator[Outcome | None]:
    """The outcomes in the order of the items, worked through in rounds; None, and no more, once it is cancelled."""
    for start in range(0, len(items), GROUPS):
        if cancelled():
            yield None
            return
        yield from pool.each(work, items[start : start + GROUPS])


def _why_inconsistent(living: Sequence[Float64], missing: int) -> str | None:
    """Why there can be no core consistency; None where there can."""
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
    """Why a factor has no left inverse; None where it has."""
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
    """Bro and Kiers's: 100 (1 − ‖G − T‖² / R), with G = X ×₁ A₁⁺ … ×_N A_N⁺ and T one on its diagonal, else zero.

    G depends on how a component's scale is spread over the modes: here evenly, so that it does not depend on the run.
    """
    rank, order = living[0].shape[1], len(living)
    scale = weights(living) ** (1 / order)
    inverses = [np.linalg.pinv(unit_columns(living[mode]), rcond=0) / scale[:, None] for mode in entries.modes]
    stored, cuts = entries.stored, list(boxes(entries.stored.shape, TILE))

    def box_core(box: Box) -> Float64:
        return _box_core(stored[box], [inverse[:, cut] for inverse, cut in zip(inverses, box, strict=True)])

    def core(part: slice) -> Float64:
        return reduce(np.add, map(box_core, cuts[part]))

    parts = list(slabs(len(cuts), _parts(stored.size, len(cuts))))
    total = np.zeros((rank,) * order)
    for term in _in_rounds(core, parts, pool, cancelled):
        if term is None:
            return None
        total += term.reshape(total.shape)
    total[(np.arange(rank),) * order] -= 1
    consistency: float = 100 * (1 - float(np.vdot(total, total)) / rank)
    return consistency


def _box_core(entries: NDArray[Any], inverses: Sequence[Float64]) -> Float64:
    """What a box adds to the core: mode after mode, the last one first, is multiplied by its part of the inverse."""
    rest, after = entries.astype(np.float64), 1
    for inverse in reversed(inverses):
        if after == 1:
            rest = rest.reshape(-1, inverse.shape[1]) @ inverse.T
        else:
            rest = np.matmul(inverse, rest.reshape(-1, inverse.shape[1], after))
        after *= len(inverse)
    return rest


def _leverage(A: Float64) -> Float64:
    """The diagonal of A A⁺, from an orthonormal basis of the columns."""
    if A.shape[1] == 0:
        return np.zeros(len(A))
    left, singular, _ = np.linalg.svd(unit_columns(A), full_matrices=False)
    leverage: Float64 = np.square(left[:, singular > COLLINEAR * singular[0]]).sum(axis=1)
    return leverage

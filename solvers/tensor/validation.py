"""Validate a tensor, and convert it if necessary."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.errors import InvalidInput
from sparse_ncp.solvers.tensor.dense import MissingEntries, Tensor
from sparse_ncp.solvers.tensor.exclusion import Exclusion, exclude_with
from sparse_ncp.solvers.tensor.gemm.out_of_core import FileEntries, contiguous_runs
from sparse_ncp.solvers.tensor.missing.grams import RowGrams
from sparse_ncp.solvers.tensor.missing.masked import Mask
from sparse_ncp.solvers.tensor.missing.pattern import find_pattern
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.solvers.tensor.protocol import Positive
from sparse_ncp.solvers.tensor.scan import Booleans, OnProgress, Scan, scan
from sparse_ncp.solvers.tensor.threads import Threads

Precision: TypeAlias = Literal["float64", "float32"]

MIN_ORDER, MAX_ORDER = 2, 8
# Limit for the norm of a tensor or of an initial model, and for its inverse: squares of such norms, and their products
# with a few factors, neither overflow nor vanish.
LARGEST_NORM = {np.dtype(np.float64): 1e60, np.dtype(np.float32): 1e12}
Missing: TypeAlias = Literal["refuse", "nan"]
Negative: TypeAlias = Literal["refuse", "keep"]


def working_precision(tensor: NDArray[Any], precision: Precision | None) -> np.dtype[Any]:
    """Return the requested precision, else that of a floating-point tensor, else float64."""
    if precision is not None:
        return np.dtype(precision)
    narrow = tensor.dtype.kind == "f" and tensor.dtype.itemsize <= 4
    return np.dtype(np.float32 if narrow else np.float64)


def is_copied(tensor: NDArray[Any], precision: Precision | None) -> bool:
    """Return whether the tensor must be copied: for its type, its byte order, or because it is not contiguous."""
    contiguous = tensor.flags.c_contiguous or tensor.flags.f_contiguous
    return not contiguous or tensor.dtype != working_precision(tensor, precision)


def check_shape_and_dtype(tensor: NDArray[Any]) -> None:
    """Raise InvalidInput for an unsupported type or shape, without reading any entry."""
    if tensor.dtype.kind not in "fiub":
        remedy = "pass real numbers: a float, integer or bool array"
        raise InvalidInput("tensor", f"has dtype {tensor.dtype}", remedy)
    if not MIN_ORDER <= tensor.ndim <= MAX_ORDER:
        remedy = f"pass an array with {MIN_ORDER} to {MAX_ORDER} modes"
        raise InvalidInput("tensor", f"has order {tensor.ndim}", remedy)
    if 0 in tensor.shape:
        empty = tensor.shape.index(0) + 1
        raise InvalidInput("tensor", f"mode {empty} is empty", "give every mode a length of 1 or more")


def check_mode(mode: int, order: int) -> None:
    """Raise InvalidInput if a tensor of this order has no such mode for its samples."""
    if mode > order:
        raise InvalidInput("samples_mode", f"is {mode} for a tensor of {order} modes", f"give a mode from 1 to {order}")


def check_mask(mask: object, shape: Sequence[int]) -> Booleans:
    """Return the mask as an array, true where observed; raise InvalidInput if it does not fit the tensor."""
    array = as_array(mask, "mask")
    if array.dtype != np.bool_:
        remedy = "give booleans, true where an entry is observed, such as mask=tensor > 0"
        raise InvalidInput("mask", f"has dtype {array.dtype}", remedy)
    if array.ndim != len(shape) or any(
        ours not in (1, theirs) for ours, theirs in zip(array.shape, shape, strict=True)
    ):
        problem = f"has shape {array.shape} for a tensor of {tuple(shape)}"
        raise InvalidInput("mask", problem, "give every mode the tensor's length, or 1 where it is the same all along")
    return array


def prepare_tensor(
    tensor: object,
    precision: Precision | None,
    threads: Threads,
    mask: object = None,
    missing: Missing = "refuse",
    negative: Negative = "refuse",
    rank: int = 1,
    known: Scan | None = None,
    on_progress: OnProgress | None = None,
    exclusion: Exclusion | None = None,
) -> Tensor:
    """Check a tensor and convert it if necessary, without modifying the array that was passed.

    `rank` determines how the Gram matrices are computed if entries are missing. Pass an earlier scan of the same
    entries as `known` to skip the scan, unless entries are converted or masked. `on_progress` is called with the
    fraction done. `exclusion` has been left out of the tensor, or is masked in the whole tensor.
    """
    array = as_array(tensor)
    check_shape_and_dtype(array)
    observed = None if mask is None else check_mask(mask, array.shape)
    if np.ma.is_masked(array):
        own = ~np.ma.getmaskarray(array)
        observed = own if observed is None else own & observed
    if observed is not None and observed.all():
        observed = None
    entries = np.ma.getdata(array)
    copied = is_copied(entries, precision)
    if copied:
        order: Literal["C", "F"] = "F" if entries.flags.f_contiguous and not entries.flags.c_contiguous else "C"
        with np.errstate(over="ignore"):  # an overflow becomes an infinity, which the scan refuses with its index
            entries = np.array(entries, working_precision(entries, precision), order=order)
    found = None if copied or observed is not None else known
    if found is None:
        found = scan(entries, threads, observed, on_progress=on_progress, runs=contiguous_runs)
    if exclusion is not None and exclusion.shape != array.shape:
        located = [exclusion.located(kind) for kind in (found.nan, found.infinite, found.negative)]
        found = replace(found, nan=located[0], infinite=located[1], negative=located[2])
    check_entries(found, entries.dtype, missing, negative)
    positive = Positive(found.positive_norm, found.positive_sum, found.negative.count)
    if found.observed == entries.size:
        return Tensor(entries, found.norm, positive, threads)
    if copied and observed is not None:
        np.copyto(entries, np.nan, where=np.broadcast_to(~observed, entries.shape))
        observed = None
    missing_entries = _missing_entries(entries, observed, rank, threads, exclusion or Exclusion.of(None, entries.shape))
    return Tensor(entries, found.norm, positive, threads, missing_entries)


def is_masked_out(tensor: NDArray[Any], exclusion: Exclusion, precision: Precision | None) -> bool:
    """Return whether to mask excluded indices in the whole tensor: a copy of the rest would not fit into memory."""
    entries = np.ma.getdata(tensor)
    if not exclusion or is_copied(entries, precision) or exclusion.is_view(tensor):
        return False
    return FileEntries.of(entries) is not None


def _missing_entries(
    entries: Array, observed: Booleans | None, rank: int, threads: Threads, exclusion: Exclusion
) -> MissingEntries:
    reverse = not entries.flags.c_contiguous
    mask = Mask(entries.T, None if observed is None else observed.T) if reverse else Mask(entries, observed)
    modes = tuple(range(entries.ndim))[:: -1 if reverse else 1]
    pattern = find_pattern(mask, modes, rank, threads)
    kept = exclusion.kept
    is_whole = exclusion.shape == entries.shape
    counted = [counts[own] if is_whole else counts for counts, own in zip(pattern.counts, kept, strict=True)]
    empty = {n: own[counts == 0].tolist() for n, (counts, own) in enumerate(zip(counted, kept, strict=True), start=1)}
    empty = {mode: indices for mode, indices in empty.items() if indices}
    if empty:
        problem = f"{describe_indices(empty)} no observed entry"
        raise InvalidInput("tensor", problem, f"leave these indices out: {exclude_with(exclusion.by_mode(), empty)}")
    return MissingEntries(mask, RowGrams(mask, modes, pattern, threads))


def describe_indices(indices: Mapping[int, Sequence[int]]) -> str:
    """Describe indices by mode and a verb, as in "indices 2, 5 of mode 1 and index 4 of mode 2 have"."""
    parts = [
        f"{'index' if len(some) == 1 else 'indices'} {', '.join(map(str, some))} of mode {mode}"
        for mode, some in indices.items()
    ]
    return f"{' and '.join(parts)} {'has' if sum(map(len, indices.values())) == 1 else 'have'}"


def clip(tensor: NDArray[Any]) -> NDArray[Any]:
    """Return a copy in which every negative entry is zero.

    Parameters
    ----------
    tensor : array_like
        The tensor. NaN and masked entries stay missing.

    Returns
    -------
    numpy.ndarray
        The copy; a masked array stays one.

    Examples
    --------
    >>> from sparse_ncp import clip
    >>> clip([-1.0, 2.0]).tolist()
    [0.0, 2.0]
    """
    array = as_array(tensor)
    clipped: NDArray[Any] = np.maximum(array, array.dtype.type(0))
    return clipped


def as_array(tensor: object, field: str = "tensor") -> NDArray[Any]:
    """Convert lists, matrices and memory maps to plain arrays; masked arrays stay masked."""
    try:
        return tensor if isinstance(tensor, np.ma.MaskedArray) else np.asarray(tensor)
    except ValueError as error:
        raise InvalidInput(field, "is not an array", "pass numbers in a rectangular arrangement") from error


def check_entries(found: Scan, dtype: np.dtype[Any], missing: Missing, negative: Negative) -> None:
    """Raise InvalidInput for a tensor with entries that cannot be decomposed or were not allowed."""
    if found.infinite.count:
        problem = f"{found.infinite.counted('infinite')} in {dtype}, the first at {found.infinite.first}"
        raise InvalidInput("tensor", problem, "replace them before decomposing")
    if found.nan.count and missing == "refuse":
        remedy = "say that NaN means not observed with missing='nan', or replace them"
        raise InvalidInput("tensor", f"{found.nan.counted('NaN')}, the first at {found.nan.first}", remedy)
    if found.negative.count and negative == "refuse":
        remedy = "fit them as they are with negative='keep', or set them to zero with sparse_ncp.clip(tensor)"
        problem = f"{found.negative.counted('negative')}, the first at {found.negative.first}"
        raise InvalidInput("tensor", problem, remedy)
    if found.observed == 0:
        raise InvalidInput("tensor", "all entries are missing", "there is nothing to decompose")
    if found.maximum <= 0:
        kind = "zero" if found.minimum == 0 else "negative or zero"
        raise InvalidInput("tensor", f"all entries are {kind}", "there is nothing to decompose")
    check_norm(found.norm, dtype)


def check_norm(norm: float, dtype: np.dtype[Any]) -> None:
    """Raise InvalidInput for a tensor whose squares would overflow or vanish."""
    largest = LARGEST_NORM[dtype]
    if not 1 / largest < norm < largest:
        problem = f"its norm {norm:.3g} is out of the range of {dtype}"
        raise InvalidInput("tensor", problem, "multiply the tensor by a constant so that its norm is near 1")

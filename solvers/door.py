"""The one door for tensors: what may come in, and in which form the solvers get it."""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from solvers.arrays import Array
from solvers.errors import InvalidInput
from solvers.parallel import Threads, slabs
from solvers.tensor import Tensor

Precision: TypeAlias = Literal["float64", "float32"]

MIN_ORDER, MAX_ORDER = 2, 8
# Of a tensor, or of the model that initial factors make: squares of such norms, and products with a few factors on the
# way, neither overflow nor vanish.
LARGEST_NORM = {np.dtype(np.float64): 1e60, np.dtype(np.float32): 1e12}
# Entries scanned at a time: three passes over one chunk find it in the second-level cache.
CHUNK = 1 << 15


@dataclass(frozen=True)
class Faults:
    """Entries that a nonnegative decomposition cannot take: how many, and the index of the first, modes from 0.

    `first` is that of the first NaN or infinity if there is one, else that of the first negative; first in memory.
    """

    not_finite: int
    negative: int
    first: tuple[int, ...]


@dataclass(frozen=True)
class Scan:
    """What one look at every entry tells."""

    minimum: float
    maximum: float
    norm: float
    faults: Faults | None


def working_precision(tensor: NDArray[Any], precision: Precision | None) -> np.dtype[Any]:
    """The precision asked for, else the tensor's own if it is floating, else float64."""
    if precision is not None:
        return np.dtype(precision)
    narrow = tensor.dtype.kind == "f" and tensor.dtype.itemsize <= 4
    return np.dtype(np.float32 if narrow else np.float64)


def is_copied(tensor: NDArray[Any], precision: Precision | None) -> bool:
    """Whether the solvers must convert the tensor first: another type, byte order or scattered entries."""
    contiguous = tensor.flags.c_contiguous or tensor.flags.f_contiguous
    return not contiguous or tensor.dtype != working_precision(tensor, precision)


def check_form(tensor: NDArray[Any]) -> None:
    """Refuse by type and shape alone, without reading an entry."""
    if isinstance(tensor, np.ma.MaskedArray):
        raise InvalidInput("tensor", "is a masked array", "fill the missing entries first")
    if tensor.dtype.kind not in "fiub":
        remedy = "pass real numbers: a float, integer or bool array"
        raise InvalidInput("tensor", f"has dtype {tensor.dtype}", remedy)
    if not MIN_ORDER <= tensor.ndim <= MAX_ORDER:
        remedy = f"pass an array with {MIN_ORDER} to {MAX_ORDER} modes"
        raise InvalidInput("tensor", f"has order {tensor.ndim}", remedy)
    if 0 in tensor.shape:
        empty = tensor.shape.index(0) + 1
        raise InvalidInput("tensor", f"mode {empty} is empty", "give every mode a length of 1 or more")


def scan(tensor: NDArray[Any], threads: Threads) -> Scan:
    """Minimum, maximum, norm and faults of a contiguous tensor, chunk by chunk and without copying it."""
    order: Literal["C", "F"] = "C" if tensor.flags.c_contiguous else "F"
    flat = tensor.reshape(-1, order=order)

    def look(chunk: slice) -> tuple[float, float, float]:
        entries = flat[chunk]
        with np.errstate(over="ignore", invalid="ignore"):
            exact = entries.astype(np.float64, copy=False)
            return float(entries.min()), float(entries.max()), float(exact @ exact)

    chunks = list(slabs(flat.size, -(-flat.size // CHUNK)))
    looks = threads.each(look, chunks)
    suspects = [
        chunk for chunk, (low, high, _) in zip(chunks, looks, strict=True) if not (low >= 0 and math.isfinite(high))
    ]
    minima, maxima, squares = np.array(looks).T
    return Scan(
        minimum=float(minima.min()),
        maximum=float(maxima.max()),
        norm=math.sqrt(math.fsum(squares)) if np.isfinite(squares).all() else math.inf,
        faults=_faults(flat, suspects, tensor.shape, order) if suspects else None,
    )


def admit(tensor: object, precision: Precision | None, threads: Threads) -> Tensor:
    """Refuse what cannot be decomposed, convert what must be converted (once), leave the caller's array alone."""
    array = _as_array(tensor)
    check_form(array)
    entries = _working_copy(array, precision) if is_copied(array, precision) else array
    found = scan(entries, threads)
    _refuse_faults(found, entries.dtype)
    return Tensor(entries, found.norm, threads)


def clip(tensor: NDArray[Any]) -> NDArray[Any]:
    """A copy with every negative entry set to zero; NaN stays, since nobody knows what it stood for."""
    array = _as_array(tensor)
    clipped: NDArray[Any] = np.maximum(array, array.dtype.type(0))
    return clipped


def _as_array(tensor: object) -> NDArray[Any]:
    """Lists, matrices and memory maps as plain arrays; a mask is kept, to be refused."""
    try:
        return tensor if isinstance(tensor, np.ma.MaskedArray) else np.asarray(tensor)
    except ValueError as fault:
        raise InvalidInput("tensor", "is no array", "pass numbers in a rectangular arrangement") from fault


def _working_copy(array: NDArray[Any], precision: Precision | None) -> Array:
    order: Literal["C", "F"] = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
    with np.errstate(over="ignore"):  # an overflow becomes an infinity, which the scan refuses with its index
        return np.array(array, working_precision(array, precision), order=order)


def _faults(flat: NDArray[Any], suspects: list[slice], shape: tuple[int, ...], order: Literal["C", "F"]) -> Faults:
    not_finite, negative = 0, 0
    first: dict[str, int] = {}
    for chunk in suspects:
        entries = flat[chunk]
        infinite = ~np.isfinite(entries)
        below = (entries < 0) & ~infinite
        not_finite, negative = not_finite + int(infinite.sum()), negative + int(below.sum())
        for kind, found in (("not finite", infinite), ("negative", below)):
            if found.any():
                first.setdefault(kind, chunk.start + int(np.argmax(found)))
    place = first.get("not finite", first.get("negative", 0))
    index = np.unravel_index(place, shape, order=order)
    return Faults(not_finite, negative, tuple(int(i) for i in index))


def _refuse_faults(found: Scan, dtype: np.dtype[Any]) -> None:
    faults = found.faults
    if faults is not None and faults.not_finite:
        problem = f"{faults.not_finite} entries are NaN or infinite in {dtype}, the first at {faults.first}"
        raise InvalidInput("tensor", problem, "replace them before decomposing")
    if faults is not None:
        problem = f"{faults.negative} entries are negative, the first at {faults.first}"
        raise InvalidInput("tensor", problem, "set them to zero with solvers.clip(tensor)")
    if found.maximum == 0:
        raise InvalidInput("tensor", "all entries are zero", "there is nothing to decompose")
    check_norm(found.norm, dtype)


def check_norm(norm: float, dtype: np.dtype[Any]) -> None:
    """Refuse a tensor whose squares would overflow or vanish."""
    largest = LARGEST_NORM[dtype]
    if not 1 / largest < norm < largest:
        problem = f"its norm {norm:.3g} is out of the range of {dtype}"
        raise InvalidInput("tensor", problem, "multiply the tensor by a constant so that its norm is near 1")

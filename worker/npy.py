"""Is this file a tensor? Told from the `.npy` header and one pass over a memory map, never by loading it."""

import ast
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from solvers.door import MAX_ORDER, MIN_ORDER, Faults, Scan, scan
from solvers.parallel import Threads, single_threaded_blas
from worker.errors import BadTensor

MAGIC = b"\x93NUMPY"
# numpy writes a few hundred bytes; a longer header is meant to exhaust the parser.
MAX_HEADER = 64 << 10
SAVE = "save a plain numeric array with numpy.save(path, array)"


@dataclass(frozen=True)
class Header:
    """What the file says of itself, checked against its length."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    offset: int


@dataclass(frozen=True)
class Facts:
    """What is known of a tensor file once it has been admitted."""

    shape: tuple[int, ...]
    dtype: str
    min: float
    max: float
    norm: float


def inspect(path: Path, threads: int | None = None) -> Facts:
    """Refuse anything but a nonnegative tensor; say what it is."""
    tensor = open_array(path)
    with Threads(threads) as pool, single_threaded_blas():
        found = scan(tensor, pool)
    _refuse_faults(found)
    return Facts(tensor.shape, tensor.dtype.name, found.minimum, found.maximum, found.norm)


def open_array(path: Path) -> NDArray[Any]:
    """The file as a read-only memory map."""
    header = read_header(path)
    return np.memmap(path, header.dtype, "r", header.offset, header.shape, header.order)


def read_header(path: Path) -> Header:
    """Magic, version, header and length; no entry is read."""
    with path.open("rb") as file:
        text, offset = _header_text(file)
        size = file.seek(0, 2)
    header = _parse(text, offset)
    expected = offset + math.prod(header.shape) * header.dtype.itemsize
    if size != expected:
        word = "truncated" if size < expected else "padded"
        raise BadTensor("file", f"is {word}: it has {size} bytes, its header asks for {expected}", "upload it again")
    return header


def _header_text(file: BinaryIO) -> tuple[str, int]:
    start = file.read(8)
    if not start.startswith(MAGIC) or len(start) < 8:
        raise BadTensor("file", _what_it_is(start), SAVE)
    major, minor = start[6], start[7]
    if (major, minor) not in {(1, 0), (2, 0), (3, 0)}:
        raise BadTensor("file", f"is .npy version {major}.{minor}", "save it in version 1.0, 2.0 or 3.0")
    width = 2 if major == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    if length > MAX_HEADER:
        raise BadTensor("file", f"has a header of {length} bytes, more than {MAX_HEADER}", SAVE)
    raw = file.read(length)
    if len(raw) < length:
        raise BadTensor("file", "ends inside its header", "upload it again")
    try:
        return raw.decode("utf-8" if major == 3 else "latin-1"), 8 + width + length
    except UnicodeDecodeError as error:
        raise BadTensor("file", "has a header that is not text", SAVE) from error


def _what_it_is(start: bytes) -> str:
    if not start:
        return "is empty"
    if start.startswith(b"PK"):
        return "is a zip or .npz archive, not a .npy file"
    if start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")):
        return "is a pickle, not a .npy file"
    return "is not a .npy file: it does not begin with \\x93NUMPY"


def _parse(text: str, offset: int) -> Header:
    fields = _literal(text)
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise BadTensor("file", "has a header without exactly descr, fortran_order and shape", SAVE)
    shape, fortran = fields["shape"], fields["fortran_order"]
    if type(fortran) is not bool:
        raise BadTensor("file", "has a fortran_order that is neither True nor False", SAVE)
    dtype = _dtype(fields["descr"])
    return Header(_shape(shape), dtype, "F" if fortran else "C", offset)


def _literal(text: str) -> object:
    """Python literals only: no call, no name, no attribute is ever evaluated."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        raise BadTensor("file", "has a header that cannot be read", SAVE) from error


def _dtype(descr: object) -> np.dtype[Any]:
    remedy = "save real numbers: a float, integer or bool array"
    if not isinstance(descr, str):
        raise BadTensor("file", "has a structured dtype", remedy)
    try:
        dtype = np.dtype(descr)
    except (TypeError, ValueError, SyntaxError) as error:
        raise BadTensor("file", f"has an unknown dtype {descr[:40]!r}", remedy) from error
    if dtype.hasobject:
        raise BadTensor("file", "holds pickled Python objects, which are never loaded", remedy)
    if dtype.kind not in "fiub":
        raise BadTensor("file", f"has dtype {dtype}", remedy)
    return dtype


def _shape(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, tuple) or not all(type(length) is int and length >= 0 for length in shape):
        raise BadTensor("file", "has a shape that is not a tuple of lengths", SAVE)
    if not MIN_ORDER <= len(shape) <= MAX_ORDER:
        remedy = f"save an array with {MIN_ORDER} to {MAX_ORDER} modes"
        raise BadTensor("file", f"has order {len(shape)}", remedy)
    if 0 in shape:
        empty = shape.index(0) + 1
        raise BadTensor("file", f"mode {empty} is empty", "give every mode a length of 1 or more")
    return shape


def _refuse_faults(found: Scan) -> None:
    if found.faults is not None:
        _refuse_entries(found.faults)
    if found.maximum == 0:
        raise BadTensor("file", "all entries are zero", "there is nothing to decompose")
    if not math.isfinite(found.norm):
        raise BadTensor("file", "its norm overflows", "multiply the tensor by a constant so that its norm is near 1")


def _refuse_entries(faults: Faults) -> None:
    negative = f"{faults.negative} entries are negative"
    if faults.not_finite:
        problem = f"{faults.not_finite} entries are NaN or infinite"
        problem += f" and {negative}" if faults.negative else ""
        remedy = "replace them first, for example numpy.maximum(numpy.nan_to_num(x, posinf=0.0), 0)"
    else:
        problem, remedy = negative, "set them to zero with numpy.maximum(x, 0)"
    raise BadTensor("file", f"{problem}, the first at index {list(faults.first)} (modes from 0)", remedy)

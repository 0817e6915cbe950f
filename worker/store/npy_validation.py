"""Validation of an uploaded `.npy` file: its header, then one pass over a memory map; it is never loaded."""

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from sparse_ncp.solvers.runtime import MAX_ORDER, MIN_ORDER, Scan, Threads, contiguous_runs, scan, single_threaded_blas
from sparse_ncp.worker.errors import BadTensor

MAGIC = b"\x93NUMPY"
# How much of a file is read to recognise its format.
START_BYTES = 512
# numpy writes a few hundred bytes; a longer header is meant to exhaust the parser.
MAX_HEADER = 64 << 10
# Of a mode; a number of thousands of digits could not even be printed.
LONGEST = (1 << 63) - 1
SAVE = "save a plain numeric array with numpy.save(path, array)"
STRIPPED = "has lost its line ends and NUL bytes on the way, as curl -d does to a file"
SEND_RAW = "send it with curl -X POST -T tensor.npy"
SAVE_FROM = 'read it and save the array: numpy.save("tensor.npy", {})'
# What other files begin with: what they are, and what to do.
KNOWN_FILES: Mapping[bytes, tuple[str, str]] = {
    b"MATLAB 5.0 MAT-file": ("a MATLAB .mat file", SAVE_FROM.format('scipy.io.loadmat("file.mat")["X"]')),
    b"MATLAB 7.3 MAT-file": (
        "a MATLAB .mat file of version 7.3, which is HDF5",
        SAVE_FROM.format('h5py.File("file.mat")["X"][()].T'),
    ),
    b"\x89HDF\r\n\x1a\n": ("an HDF5 file", SAVE_FROM.format('h5py.File("file.h5")["X"][()]')),
    b"CDF": ("a NetCDF file", SAVE_FROM.format('xarray.open_dataset("file.nc")["X"].values')),
    b"\x1f\x8b": ("compressed with gzip", "unpack it first, with gunzip"),
    b"BZh": ("compressed with bzip2", "unpack it first, with bunzip2"),
    b"\xfd7zXZ": ("compressed with xz", "unpack it first, with unxz"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "unpack it first, with unzstd"),
    b"PK": ("a zip or .npz archive", SAVE_FROM.format('numpy.load("file.npz")["X"]') + "; unpack other archives first"),
    b"%93NUMPY": ("encoded for a form", SEND_RAW),
    b"II*\0": ("a TIFF image", SAVE_FROM.format('tifffile.imread("file.tif")')),
    b"MM\0*": ("a TIFF image", SAVE_FROM.format('tifffile.imread("file.tif")')),
    b"PAR1": ("a Parquet table", SAVE_FROM.format('pandas.read_parquet("file").to_numpy()')),
    **{bytes([0x80, version]): ("a pickle", SAVE) for version in range(2, 6)},
}


@dataclass(frozen=True)
class Header:
    """The header of a `.npy` file, checked against the length of the file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    offset: int


@dataclass(frozen=True)
class Facts:
    """Properties of a tensor file that has been checked."""

    shape: tuple[int, ...]
    dtype: str
    min: float
    max: float
    norm: float
    missing: int
    negative: int


def inspect(tensor: NDArray[Any], threads: int | None = None) -> tuple[Facts, Scan]:
    """Scan a tensor, and describe it, with how many entries are NaN or negative. BadTensor if no job could use it."""
    with Threads(threads) as pool, single_threaded_blas():
        found = scan(tensor, pool, runs=contiguous_runs)
    _check_entries(found)
    facts = Facts(
        shape=tensor.shape,
        dtype=tensor.dtype.name,
        min=found.minimum,
        max=found.maximum,
        norm=found.norm,
        missing=found.nan.count,
        negative=found.negative.count,
    )
    return facts, found


def open_array(path: Path) -> NDArray[Any]:
    """Open the file as a read-only memory map."""
    with path.open("rb") as file:
        header = read_header(file)
    return np.memmap(path, header.dtype, "r", header.offset, header.shape, header.order)


def load_array(file: BinaryIO) -> NDArray[Any]:
    """Read the whole file into a read-only array."""
    header = read_header(file)
    file.seek(header.offset)
    return np.frombuffer(file.read(), header.dtype).reshape(header.shape, order=header.order)


def read_header(file: BinaryIO) -> Header:
    """Check magic, version, header and length; no entry is read."""
    text, offset = _header_text(file)
    size = file.seek(0, 2)
    header = _parse(text, offset)
    expected = offset + math.prod(header.shape) * header.dtype.itemsize
    if size < expected and not text.endswith("\n"):  # numpy ends it so
        raise BadTensor("file", STRIPPED, SEND_RAW)
    if size != expected:
        word = "truncated" if size < expected else "padded"
        raise BadTensor("file", f"is {word}: it has {size} bytes, its header asks for {expected}", "upload it again")
    return header


def _header_text(file: BinaryIO) -> tuple[str, int]:
    start = file.read(START_BYTES)
    if not start.startswith(MAGIC) or len(start) < 8:
        raise BadTensor("file", *_description(start))
    major, minor = start[6], start[7]
    if (major, minor) not in {(1, 0), (2, 0), (3, 0)}:
        if minor:  # no version has one: the NUL that was here is gone
            raise BadTensor("file", STRIPPED, SEND_RAW)
        raise BadTensor("file", f"is .npy version {major}.{minor}", "save it in version 1.0, 2.0 or 3.0")
    width = 2 if major == 1 else 4
    file.seek(8)
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


def _description(start: bytes) -> tuple[str, str]:
    """Recognise another format by the first bytes of a file; return what it is and what to do."""
    if not start:
        return "is empty", SEND_RAW
    if start.startswith(MAGIC):
        return STRIPPED, SEND_RAW
    for magic, (kind, remedy) in KNOWN_FILES.items():
        if start.startswith(magic):
            return f"is {kind}, not a .npy file", remedy
    if _is_text(start):
        return _text_description(start)
    return "is not a .npy file: it does not begin with \\x93NUMPY", SAVE


def _is_text(start: bytes) -> bool:
    """Whether it has no control characters and is nearly all ASCII: a table may be in any encoding."""
    if any(byte < 32 and byte not in b"\t\n\r\f" for byte in start):
        return False
    return sum(byte > 126 for byte in start) <= len(start) / 10


def _text_description(start: bytes) -> tuple[str, str]:
    line = start.split(b"\n")[0].strip()
    if line == start.strip() and (line.startswith((b"@", b"file=")) or line.endswith(b".npy")):
        return "is the name of a file, not a .npy file", SEND_RAW
    if line.startswith((b"{", b"[")):
        return "is JSON, not a .npy file", SAVE_FROM.format('numpy.array(json.load(open("file.json")))')
    read = 'numpy.loadtxt("file.csv", delimiter=",").reshape(lengths)'
    return "is text, such as CSV, not a .npy file", SAVE_FROM.format(read)


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
    """Parse Python literals only: no call, name or attribute is ever evaluated."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError) as error:
        if "'shape'" in text and not text.endswith("\n"):
            raise BadTensor("file", STRIPPED, SEND_RAW) from error
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
    if max(shape) > LONGEST:
        raise BadTensor("file", f"mode {shape.index(max(shape)) + 1} is longer than any file", SAVE)
    if 0 in shape:
        empty = shape.index(0) + 1
        raise BadTensor("file", f"mode {empty} is empty", "give every mode a length of 1 or more")
    return shape


def _check_entries(found: Scan) -> None:
    """Refuse what no job could decompose, however it treats missing and negative entries."""
    if found.infinite.count:
        problem = (
            f"{found.infinite.counted('infinite')}, the first at index {list(found.infinite.first)} (modes from 0)"
        )
        raise BadTensor("file", problem, "replace them, with NaN where the reading is missing")
    if found.observed == 0:
        raise BadTensor("file", "all entries are NaN", "there is nothing to decompose")
    if found.minimum == found.maximum == 0:
        raise BadTensor("file", "all entries are zero", "there is nothing to decompose")
    if not math.isfinite(found.norm):
        raise BadTensor("file", "its norm overflows", "multiply the tensor by a constant so that its norm is near 1")

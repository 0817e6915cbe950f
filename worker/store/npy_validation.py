"""Validation of an uploaded `.npy` file: its header, then one pass over a memory map; it is never loaded."""

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from numpy.typing import NDArray

from ncp_client.formats import UnreadableFile, Variable, check_tensor, find_format, join_blocks, map_array, npy
from sparse_ncp.solvers.runtime import Scan, Threads, contiguous_runs, scan, single_threaded_blas
from sparse_ncp.worker.errors import BadTensor


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
    """Scan a tensor and return its properties. Raises BadTensor if no job could use it."""
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
    return map_array(path, header)


def load_array(file: BinaryIO) -> NDArray[Any]:
    """Read the whole file into a read-only array."""
    header = read_header(file)
    array = join_blocks(npy.blocks(file, header), header)
    array.flags.writeable = False
    return array


def check_start(start: bytes) -> None:
    """Raise BadTensor if a file that begins like this is of no known format, before more of it is received."""
    if len(start) < len(npy.MAGIC):
        return
    try:
        find_format(io.BytesIO(start))
    except UnreadableFile as error:
        raise BadTensor("file", error.problem, error.remedy) from error


def read_header(file: BinaryIO) -> Variable:
    """Check magic, version, header and length; no entry is read."""
    try:
        header = npy.read_header(file)
        check_tensor(header)
    except UnreadableFile as error:
        raise BadTensor("file", error.problem, error.remedy) from error
    return header


def _check_entries(found: Scan) -> None:
    """Raise BadTensor for entries that no job could decompose, whatever its settings."""
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

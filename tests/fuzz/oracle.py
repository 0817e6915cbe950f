"""What numpy says of the same bytes: a second opinion on whether they are a tensor that can be decomposed."""

import io
import math
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

MAX_HEADER = 64 << 10


def tensor_in(content: bytes) -> "np.ndarray[Any, Any] | None":
    """The array, if the file is one from its first byte to its last and a server has no reason to refuse it."""
    found = _read(content)
    if found is None or not found.size:
        return None
    exact = observed(found)
    with np.errstate(all="ignore"):
        squares = float(exact @ exact)
    sound = bool(not np.isinf(found).any() and exact.any())
    return found if sound and math.isfinite(squares) else None


def observed(array: "np.ndarray[Any, Any]") -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The entries that are not NaN, in double precision."""
    with np.errstate(all="ignore"):
        exact = array.ravel().astype(np.float64)
    return exact[~np.isnan(exact)]


def _read(content: bytes) -> "np.ndarray[Any, Any] | None":
    """Through numpy's own header reader, which allocates nothing; the entries only if there are as many as it says."""
    file = io.BytesIO(content)
    try:
        version = npy_format.read_magic(file)
        if version not in ((1, 0), (2, 0), (3, 0)):
            return None
        reader = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = reader(file, max_header_size=MAX_HEADER)
    except Exception:  # numpy fails in many ways on such headers; each is its no
        return None
    if not 2 <= len(shape) <= 8 or any(type(length) is not int or length < 0 for length in shape):
        return None
    if dtype.kind not in "fiub" or file.tell() + math.prod(shape) * dtype.itemsize != len(content):
        return None
    return np.frombuffer(content, dtype, offset=file.tell()).reshape(shape, order="F" if fortran else "C")

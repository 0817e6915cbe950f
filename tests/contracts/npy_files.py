"""Files that a reader of `.npy` refuses: other kinds, odd headers, and headers made to exhaust it."""

import gzip
import io
import pickle
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest
import scipy.io

from ncp_client.formats import npy
from tests.support.jobs import npy as saved


def header(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    raw = text.encode("latin-1" if version[0] < 3 else "utf-8")
    size = struct.pack("<H" if version[0] == 1 else "<I", len(raw) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + raw


def described(
    descr: str = "'<f8'", order: str = "False", shape: str = "(2, 2)", version: tuple[int, int] = (1, 0)
) -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n", version)


class Trap:
    """Unpickling this would be seen."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", saved(np.ones((2, 2))))
    return buffer.getvalue()


def matlab() -> bytes:
    buffer = io.BytesIO()
    scipy.io.savemat(cast(Any, buffer), {"X": np.ones((2, 2))})
    return buffer.getvalue()


def sent_with_curl_d(content: bytes) -> tuple[bytes, bytes]:
    """As curl 8 does it, which leaves out the three bytes, and as older ones do, which lose the line after a NUL."""
    lines = content.splitlines(keepends=True)
    older = b"".join(line.partition(b"\0")[0].strip(b"\r\n") for line in lines)
    return content.translate(None, b"\0\r\n"), older


TENSOR = saved(np.random.default_rng(0).random((5, 4)))
OTHER_FILES: dict[str, tuple[bytes, str, str]] = {
    "mat 5": (matlab(), "MATLAB .mat file,", "scipy.io.loadmat"),
    "mat 7.3": (b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF\r\n\x1a\n", "version 7.3", "h5py"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(500), "HDF5", "h5py"),
    "netcdf": (b"CDF\x02" + bytes(100), "NetCDF", "xarray"),
    "gzip": (gzip.compress(TENSOR), "gzip", "gunzip"),
    "bzip2": (b"BZh91AY&SY", "bzip2", "bunzip2"),
    "xz": (b"\xfd7zXZ\0", "xz", "unxz"),
    "zstd": (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
    "tiff": (b"II*\0" + bytes(100), "TIFF", "tifffile"),
    "big-endian tiff": (b"MM\0*" + bytes(100), "TIFF", "tifffile"),
    "parquet": (b"PAR1" + bytes(100), "Parquet", "pandas"),
    "npz": (zipped(), "zip or .npz", 'numpy.load("file.npz")'),
    "csv": (b"time;250;251\n1,5;2,5;3\n", "text, such as CSV", "numpy.loadtxt"),
    "latin csv": ("Länge,1,2,3,4,5,6,7,8\n".encode("latin-1"), "text, such as CSV", "numpy.loadtxt"),
    "json": (b"[[1, 2], [3, 4]]", "JSON", "json.load"),
    "a name": (b"tensor.npy", "name of a file", "-T tensor.npy"),
    "a form's name": (b"file=@tensor.npy", "name of a file", "-T tensor.npy"),
    "urlencoded": (b"%93NUMPY%01%00v%00", "encoded for a form", "-T tensor.npy"),
    "curl -d": (sent_with_curl_d(TENSOR)[0], "lost its line ends", "-T tensor.npy"),
    "old curl -d": (sent_with_curl_d(TENSOR)[1], "lost its line ends", "-T tensor.npy"),
    "curl -d of zeros": (sent_with_curl_d(saved(np.zeros((5, 4))))[1], "lost its line ends", "-T tensor.npy"),
    "line ends": (TENSOR.replace(b"\n", b""), "lost its line ends", "-T tensor.npy"),
    "nothing": (b"", "is empty", "-T tensor.npy"),
    "noise": (bytes(range(256)), "does not begin with", "numpy.save"),
    "pickle": (pickle.dumps(Trap()), "is a pickle", "numpy.save"),
}
HUGE = f"({10**12}, {10**12})"
REFUSALS: dict[str, tuple[bytes, str]] = {
    "short magic": (b"\x93NUM", "not a .npy file"),
    "objects": (saved(np.array([[Trap(), Trap()]], dtype=object)), "pickled Python objects"),
    "objects by name": (described("'object'"), "pickled Python objects"),
    "strings of any length": (described("'T'") + bytes(64), "pickled Python objects"),
    "version": (header("{}", version=(9, 0)), "version 9.0"),
    "truncated": (saved(np.ones((3, 4)))[:-1], "truncated"),
    "padded": (saved(np.ones((3, 4))) + b"\0", "padded"),
    "header bomb": (header("{}", (2, 0), length=2**32 - 1), f"more than {npy.MAX_HEADER}"),
    "header ends": (header("{'descr'", length=400), "ends inside its header"),
    "header calls": (header("__import__('os').getcwd()"), "cannot be read"),
    "header calls in it": (described("__import__('os').getcwd()"), "cannot be read"),
    "header is not text": (b"\x93NUMPY\3\0\2\0\0\0\xff\xff", "not text"),
    "missing field": (header("{'descr': '<f8', 'shape': (2, 2)}"), "exactly descr"),
    "another field": (
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), 'more': 1}\n"),
        "exactly descr",
    ),
    "field twice": (
        header("{'descr': '|O', 'descr': '<f8', 'fortran_order': False, 'shape': (2, 2)}\n"),
        "exactly descr",
    ),
    "fortran": (described(order="'yes'") + bytes(32), "fortran_order"),
    "fortran as a number": (described(order="1") + bytes(32), "fortran_order"),
    "fortran in quotes": (described(order="'True'") + bytes(32), "fortran_order"),
    "shape of floats": (described(shape="(2.0, 2)") + bytes(32), "tuple of lengths"),
    "negative shape": (described(shape="(-2, -2)") + bytes(32), "tuple of lengths"),
    "number for a shape": (described(shape="(4)") + bytes(32), "tuple of lengths"),
    "list for a shape": (described(shape="[2, 2]") + bytes(32), "tuple of lengths"),
    "string for a shape": (described(shape="'(2, 2)'") + bytes(32), "tuple of lengths"),
    "gap in a shape": (described(shape="(2, , 2)") + bytes(32), "tuple of lengths"),
    "leading zero": (described(shape="(02, 2)") + bytes(32), "tuple of lengths"),
    "digits of another script": (described(shape="(٢, 2)", version=(3, 0)) + bytes(32), "tuple of lengths"),
    "Python 2 in version 3": (described(shape="(2L, 2L)", version=(3, 0)) + bytes(32), "tuple of lengths"),
    "endless shape": (described(shape=f"({'9' * 60_000}, 2)") + bytes(32), "mode 1 is longer than any file"),
    "longer than an index": (described(shape=f"(0, {2**63})"), "mode 2 is longer than any file"),
    "huge shape": (described(shape=HUGE) + bytes(32), "truncated"),
    "unknown dtype": (described("'<q9'") + bytes(32), "unknown dtype"),
    "no name of a dtype": (described("'<f8,<f8'") + bytes(64), "unknown dtype"),
    "expression for a dtype": (described("'(__import__,)<f8'") + bytes(32), "unknown dtype"),
    "no dtype": (described("None") + bytes(32), "unknown dtype"),
    "dtype without a size": (described("'<U0'", shape=HUGE), "without a size"),
    "structured": (described("[('a', '<f8')]") + bytes(32), "structured"),
    "nested structure": (described("[('a', [('b', '<f8')])]") + bytes(32), "structured"),
    "saved structure": (saved(np.zeros((2, 2), [("a", "<f8"), ("b", "<i4", 3)])), "structured"),
    "dtype with a shape": (described("('<f8', (2,))") + bytes(64), "structured"),
    "complex": (saved(np.ones((2, 2), complex)), "complex128"),
    "text dtype": (saved(np.array([["a", "b"]])), "dtype <U1"),
    "dates": (saved(np.zeros((2, 2), "M8[s]")), "datetime64"),
    "vector": (saved(np.ones(3)), "order 1"),
    "scalar": (saved(np.array(1.0)), "order 0"),
    "order nine": (saved(np.ones((1,) * 9)), "order 9"),
    "order 10,000": (described(shape=f"({'1, ' * 10_000})") + bytes(8), "order 10000"),
    "empty mode": (saved(np.ones((2, 0, 3))), "mode 2 is empty"),
}
BOMBS: Mapping[str, str] = {
    "nested tuples": "(" * 60_000,
    "nested dictionaries": "{'a': " * 10_000,
    "nested lists": "{'a': " + "[" * 60_000,
    "spaces": "{'descr':" + " " * 60_000,
    "spaces between": "{'a': 1" + " " * 30_000 + "x" + " " * 30_000,
    "a long word": "{'a': " + "a" * 60_000,
    "a long string": "{'a': '" + "a" * 60_000,
    "many quotes": "{" + "'" * 60_000,
    "many entries": "{" + "'a': 1, " * 8000,
    "a long type": "{'descr': '" + "f" * 60_000 + "', 'fortran_order': False, 'shape': (2, 2)}",
    "minus signs": "-" * 60_000 + "1",
    "sums": "1" + " + 1" * 15_000,
    "a long length": "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 60_000 + " 2)}",
    "many lengths": "{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1, " * 20_000 + "x)}",
}

"""A file is taken or refused by its header and one pass over its entries; it is never loaded."""

import gzip
import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import scipy.io
from numpy.typing import NDArray

from sparse_ncp.worker.errors import BadTensor
from sparse_ncp.worker.store.npy_validation import MAX_HEADER, inspect, open_array
from tests.support.jobs import npy


def written(folder: Path, content: bytes) -> Path:
    path = folder / "tensor.npy"
    path.write_bytes(content)
    return path


def header(text: str, version: tuple[int, int] = (1, 0), length: int | None = None) -> bytes:
    raw = text.encode("latin-1")
    size = struct.pack("<H" if version[0] == 1 else "<I", len(raw) if length is None else length)
    return b"\x93NUMPY" + bytes(version) + size + raw


def described(descr: str = "'<f8'", order: str = "False", shape: str = "(2, 2)") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "<f2", "<i4", ">i4", ">u2", "|u1", "|b1", "<i8"])
def test_real_numbers_of_any_type_byte_order_and_layout_are_measured(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(24).reshape(2, 3, 4) % 5, dtype=dtype, order=order)
    facts, _ = inspect(open_array(written(tmp_path, npy(array))), threads=1)
    exact = array.astype(np.float64)
    assert facts.shape == (2, 3, 4)
    assert (facts.min, facts.max) == (exact.min(), exact.max())
    assert facts.norm == pytest.approx(np.linalg.norm(exact), rel=1e-15)
    assert np.array_equal(open_array(tmp_path / "tensor.npy"), array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ones((2, 3)), version=version)
    assert inspect(open_array(written(tmp_path, buffer.getvalue())))[0].shape == (2, 3)


class Trap:
    """Unpickling this would be seen."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", npy(np.ones((2, 2))))
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


TENSOR = npy(np.random.default_rng(0).random((5, 4)))
OTHER_FILES: dict[str, tuple[bytes, str, str]] = {
    "mat 5": (matlab(), "MATLAB .mat file,", "scipy.io.loadmat"),
    "mat 7.3": (b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512) + b"\x89HDF\r\n\x1a\n", "version 7.3", "h5py"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(500), "HDF5", "h5py"),
    "netcdf": (b"CDF\x02" + bytes(100), "NetCDF", "xarray"),
    "gzip": (gzip.compress(TENSOR), "gzip", "gunzip"),
    "npz": (zipped(), "zip or .npz", 'numpy.load("file.npz")'),
    "csv": (b"time;250;251\n1,5;2,5;3\n", "text, such as CSV", "numpy.loadtxt"),
    "latin csv": ("Länge,1,2,3,4,5,6,7,8\n".encode("latin-1"), "text, such as CSV", "numpy.loadtxt"),
    "json": (b"[[1, 2], [3, 4]]", "JSON", "json.load"),
    "a name": (b"tensor.npy", "name of a file", "-T tensor.npy"),
    "a form's name": (b"file=@tensor.npy", "name of a file", "-T tensor.npy"),
    "urlencoded": (b"%93NUMPY%01%00v%00", "encoded for a form", "-T tensor.npy"),
    "curl -d": (sent_with_curl_d(TENSOR)[0], "lost its line ends", "-T tensor.npy"),
    "old curl -d": (sent_with_curl_d(TENSOR)[1], "lost its line ends", "-T tensor.npy"),
    "curl -d of zeros": (sent_with_curl_d(npy(np.zeros((5, 4))))[1], "lost its line ends", "-T tensor.npy"),
    "line ends": (TENSOR.replace(b"\n", b""), "lost its line ends", "-T tensor.npy"),
    "nothing": (b"", "is empty", "-T tensor.npy"),
    "noise": (bytes(range(256)), "does not begin with", "numpy.save"),
}


@pytest.mark.parametrize("name", OTHER_FILES)
def test_a_file_of_another_kind_is_recognised_and_the_remedy_named(tmp_path: Path, name: str) -> None:
    content, problem, remedy = OTHER_FILES[name]
    with pytest.raises(BadTensor) as raised:
        inspect(open_array(written(tmp_path, content)))
    assert raised.value.field == "file"
    assert problem in raised.value.problem
    assert remedy in raised.value.remedy


HUGE = f"({10**12}, {10**12})"
REFUSALS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "text": (b"1,2,3\n4,5,6\n", "not a .npy file"),
    "short magic": (b"\x93NUM", "not a .npy file"),
    "pickle": (pickle.dumps(Trap()), "is a pickle"),
    "objects": (npy(np.array([[Trap(), Trap()]], dtype=object)), "pickled Python objects"),
    "zip": (zipped(), "zip or .npz"),
    "version": (header("{}", version=(9, 0)), "version 9.0"),
    "truncated": (npy(np.ones((3, 4)))[:-1], "truncated"),
    "padded": (npy(np.ones((3, 4))) + b"\0", "padded"),
    "header bomb": (header("{}", (2, 0), length=2**32 - 1), f"more than {MAX_HEADER}"),
    "nested header": (header("(" * 30_000), "cannot be read"),
    "header ends": (header("{'descr'", length=400), "ends inside its header"),
    "header calls": (header("__import__('os').getcwd()"), "cannot be read"),
    "missing field": (header("{'descr': '<f8', 'shape': (2, 2)}"), "exactly descr"),
    "fortran": (described(order="'yes'") + bytes(32), "fortran_order"),
    "shape of floats": (described(shape="(2.0, 2)") + bytes(32), "tuple of lengths"),
    "negative shape": (described(shape="(-2, -2)") + bytes(32), "tuple of lengths"),
    "endless shape": (described(shape=f"(0x{'f' * 60_000}, 2)") + bytes(32), "mode 1 is longer than any file"),
    "huge shape": (described(shape=HUGE) + bytes(32), "truncated"),
    "unknown dtype": (described("'<q9'") + bytes(32), "unknown dtype"),
    "structured": (described("[('a', '<f8')]") + bytes(32), "structured"),
    "complex": (npy(np.ones((2, 2), complex)), "complex128"),
    "text dtype": (npy(np.array([["a", "b"]])), "dtype <U1"),
    "dates": (npy(np.zeros((2, 2), "M8[s]")), "datetime64"),
    "vector": (npy(np.ones(3)), "order 1"),
    "scalar": (npy(np.array(1.0)), "order 0"),
    "order nine": (npy(np.ones((1,) * 9)), "order 9"),
    "empty mode": (npy(np.ones((2, 0, 3))), "mode 2 is empty"),
    "all zero": (npy(np.zeros((2, 2))), "all entries are zero"),
    "all missing": (npy(np.full((2, 2), np.nan)), "all entries are NaN"),
    "overflow": (npy(np.full((2, 2), 1e300)), "norm overflows"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_no_tensor_is_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    content, reason = REFUSALS[case]
    with pytest.raises(BadTensor) as refusal:
        inspect(open_array(written(tmp_path, content)))
    assert reason in refusal.value.problem
    assert refusal.value.remedy


@pytest.mark.parametrize("dtype", ["<f8", ">f4", ">i4", "<i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_negative_entries_are_kept_and_counted(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.ones((3, 4, 5), dtype, order=order)
    array[1, 2, 3] = array[2, 3, 4] = -2
    facts, _ = inspect(open_array(written(tmp_path, npy(array))))
    assert (facts.negative, facts.missing, facts.min, facts.max) == (2, 0, -2, 1)
    assert facts.norm == pytest.approx(np.linalg.norm(array), rel=1e-15)


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_missing_entries_are_kept_and_counted_and_the_rest_is_measured(tmp_path: Path, dtype: str, order: Any) -> None:
    array = np.asarray(1 + np.arange(60).reshape(3, 4, 5) % 7, dtype, order=order)
    array[1, 2, 3] = array[2, 3] = np.nan
    array[0, 0, 0] = -3
    facts, _ = inspect(open_array(written(tmp_path, npy(array))))
    assert (facts.missing, facts.negative, facts.min, facts.max) == (6, 1, -3, 7)
    assert facts.norm == pytest.approx(np.sqrt(np.nansum(np.square(array.astype(float)))), rel=1e-15)


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinite_entries_are_counted_and_located(tmp_path: Path, bad: float) -> None:
    array: NDArray[Any] = np.ones((3, 40_000))
    array[2, 39_999] = bad
    array[0, 0] = np.nan
    with pytest.raises(BadTensor, match=r"1 entry is infinite, the first at index \[2, 39999\]"):
        inspect(open_array(written(tmp_path, npy(array))))

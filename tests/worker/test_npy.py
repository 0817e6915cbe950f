"""A file is taken or refused by its header and one pass over its entries; it is never loaded."""

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.worker.lab import npy
from worker.errors import BadTensor
from worker.npy import MAX_HEADER, inspect, open_array


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
    facts = inspect(written(tmp_path, npy(array)), threads=1)
    exact = array.astype(np.float64)
    assert facts.shape == (2, 3, 4)
    assert (facts.min, facts.max) == (exact.min(), exact.max())
    assert facts.norm == pytest.approx(np.linalg.norm(exact), rel=1e-15)
    assert np.array_equal(open_array(tmp_path / "tensor.npy"), array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ones((2, 3)), version=version)
    assert inspect(written(tmp_path, buffer.getvalue())).shape == (2, 3)


class Trap:
    """Unpickling this would be seen."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was loaded",))


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", npy(np.ones((2, 2))))
    return buffer.getvalue()


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
    "overflow": (npy(np.full((2, 2), 1e300)), "norm overflows"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_no_tensor_is_refused_with_the_reason(tmp_path: Path, case: str) -> None:
    content, reason = REFUSALS[case]
    with pytest.raises(BadTensor) as refusal:
        inspect(written(tmp_path, content))
    assert reason in refusal.value.problem
    assert refusal.value.remedy


@pytest.mark.parametrize("dtype", ["<f8", ">f4", ">i4", "<i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_negative_entries_are_counted_located_and_the_answer_says_how_to_clip(
    tmp_path: Path, dtype: str, order: Any
) -> None:
    array = np.ones((3, 4, 5), dtype, order=order)
    array[1, 2, 3] = array[2, 3, 4] = -1
    with pytest.raises(BadTensor) as refusal:
        inspect(written(tmp_path, npy(array)))
    assert "2 entries are negative, the first at index [1, 2, 3]" in refusal.value.problem
    assert "numpy.maximum(x, 0)" in refusal.value.remedy


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_entries_that_are_not_finite_are_counted_and_located(tmp_path: Path, bad: float) -> None:
    array: NDArray[Any] = np.ones((3, 40_000))
    array[2, 39_999] = bad
    with pytest.raises(BadTensor, match=r"1 entries are NaN or infinite, the first at index \[2, 39999\]"):
        inspect(written(tmp_path, npy(array)))

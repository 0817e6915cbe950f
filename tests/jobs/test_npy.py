"""A file is accepted or refused by its header and one pass over its entries; it is never loaded.

Headers are tested in `tests/contracts/test_readers.py`.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.worker.errors import BadTensor
from sparse_ncp.worker.store.npy_validation import inspect, load_array, open_array
from tests.support.jobs import npy


def written(folder: Path, content: bytes) -> Path:
    path = folder / "tensor.npy"
    path.write_bytes(content)
    return path


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


REFUSALS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "text": (b"1,2,3\n4,5,6\n", "not a .npy file"),
    "truncated": (npy(np.ones((3, 4)))[:-1], "truncated"),
    "padded": (npy(np.ones((3, 4))) + b"\0", "padded"),
    "complex": (npy(np.ones((2, 2), complex)), "complex128"),
    "vector": (npy(np.ones(3)), "order 1"),
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
    assert refusal.value.field == "file"
    assert reason in refusal.value.problem
    assert refusal.value.remedy


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_tensor_is_also_read_from_a_file_without_a_path(order: Any) -> None:
    array = np.asarray(np.arange(24.0).reshape(2, 3, 4), order=order)
    loaded = load_array(io.BytesIO(npy(array)))
    assert np.array_equal(loaded, array)
    assert not loaded.flags.writeable
    with pytest.raises(BadTensor, match="truncated"):
        load_array(io.BytesIO(npy(array)[:-1]))


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

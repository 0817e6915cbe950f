"""Promises of the readers of files. A format inherits `ReaderContract`, and provides a way to write its files."""

import ast
import io
import math
import pickle
import random
import re
import threading
import time
import tracemalloc
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ncp_client.formats import (
    FORMATS,
    MAX_ORDER,
    MIN_ORDER,
    Format,
    UnreadableFile,
    check_tensor,
    find_format,
    join_blocks,
    map_array,
    npy,
)
from ncp_client.formats.npz import read_npz
from sparse_ncp.solvers import runtime
from tests.contracts.npy_files import BOMBS, OTHER_FILES, REFUSALS, Trap, described, header
from tests.fuzz.contents import DAMAGE, content
from tests.fuzz.oracle import read_plainly
from tests.support.jobs import npy as saved

DTYPES = ["<f8", ">f8", "<f4", ">f4", "<f2", "<i4", ">i4", ">u2", "|i1", "|u1", "|b1", "<i8", ">u8", np.longdouble]
MEGABYTE = 1 << 20
MUTATIONS = 5000
# Of processor time, for a header that is meant to exhaust the parser; 64 KiB of them take a few hundredths.
BOMB_SECONDS = 1.0


def read(file: BinaryIO) -> NDArray[Any]:
    """Return the only array of a file, as a client and a server read it."""
    format = find_format(file)
    (variable,) = format.variables(file)
    check_tensor(variable)
    return join_blocks(format.blocks(file, variable), variable)


def read_or_refusal(content: bytes) -> NDArray[Any] | UnreadableFile:
    """Return the only array of a file, or its refusal; another exception is an error."""
    try:
        return read(io.BytesIO(content))
    except UnreadableFile as error:
        return error


def refused(content: bytes) -> UnreadableFile:
    """Return the refusal of a file, which says what is wrong and what to do."""
    with pytest.raises(UnreadableFile) as raised:
        read(io.BytesIO(content))
    error = raised.value
    assert error.problem
    assert error.remedy
    assert str(error) == f"{error.problem}; {error.remedy}"
    copied = pickle.loads(pickle.dumps(error))
    assert (copied.problem, copied.remedy) == (error.problem, error.remedy)
    return error


class CountingFile(io.BytesIO):
    """A file that counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size)
        self.count += len(found)
        return found


class ReaderContract:
    """The suite for files with one array. `name` is that of the format in the registry."""

    name: str

    def written(self, array: NDArray[Any]) -> bytes:
        """Return a file with an array."""
        raise NotImplementedError

    def sparse(self, path: Path) -> tuple[int, ...]:
        """Write a file of 64 GB or more that takes no space, with a number in its last entry; return its shape."""
        raise NotImplementedError

    @pytest.fixture
    def format(self) -> Format:
        return FORMATS[self.name]

    def test_its_files_are_recognised(self, format: Format) -> None:
        file = io.BytesIO(self.written(np.ones((2, 3))))
        assert find_format(file) is format
        assert file.tell() == 0

    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (1, 1), (3, 1, 2, 1, 2, 1, 2, 3)], ids=str)
    def test_an_array_comes_back_as_it_was(
        self, format: Format, shape: tuple[int, ...], dtype: Any, order: Any, tmp_path: Path
    ) -> None:
        numbers = np.random.default_rng(0).integers(0, 2 if dtype == "|b1" else 100, shape)
        array = np.asarray(numbers, dtype, order=order)
        path = tmp_path / f"x{format.suffixes[0]}"
        path.write_bytes(self.written(array))
        with path.open("rb") as file:
            (variable,) = format.variables(file)
            check_tensor(variable)
            loaded = join_blocks(format.blocks(file, variable), variable)
        assert (variable.shape, variable.dtype, variable.nbytes) == (shape, array.dtype, array.nbytes)
        for found in (loaded, map_array(path, variable)):
            assert (found.shape, found.dtype) == (shape, array.dtype)
            assert np.array_equal(found, array)
            assert found.flags.f_contiguous if variable.order == "F" else found.flags.c_contiguous

    def test_the_header_is_read_and_nothing_else(self, format: Format) -> None:
        file = CountingFile(self.written(np.ones((100, 100, 100))))
        format.variables(file)
        assert file.count < 1 << 17

    def test_entries_come_in_small_pieces(self, format: Format) -> None:
        array = np.random.default_rng(0).random((100, 100, 100))
        file = io.BytesIO(self.written(array))
        (variable,) = format.variables(file)
        pieces = list(format.blocks(file, variable))
        assert max(map(len, pieces)) <= MEGABYTE
        assert b"".join(pieces) == array.tobytes(variable.order)

    def test_a_file_larger_than_memory_is_mapped(self, format: Format, tmp_path: Path) -> None:
        shape = self.sparse(tmp_path / "x")
        tracemalloc.start()
        try:
            with (tmp_path / "x").open("rb") as file:
                (variable,) = format.variables(file)
            array = map_array(tmp_path / "x", variable)
            last = array[(-1,) * array.ndim]
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert array.nbytes >= 64 << 30
        assert array.shape == shape
        assert not array.flags.writeable
        assert last != 0
        assert peak < MEGABYTE

    def test_a_truncated_file_is_refused(self) -> None:
        whole = self.written(np.random.default_rng(0).random((5, 4)))
        for length in range(len(whole)):
            refused(whole[:length])

    def test_a_file_that_shrinks_while_it_is_read_is_refused(self, format: Format) -> None:
        file = io.BytesIO(self.written(np.ones((5, 4))))
        (variable,) = format.variables(file)
        file.truncate(len(file.getvalue()) - 1)
        with pytest.raises(UnreadableFile, match="truncated"):
            join_blocks(format.blocks(file, variable), variable)

    @pytest.mark.parametrize("more", [b"\0", b"\n", bytes(4096)], ids=["a NUL", "a line end", "a page"])
    def test_a_padded_file_is_refused(self, more: bytes) -> None:
        refused(self.written(np.ones((5, 4))) + more)

    def test_damage_anywhere_is_refused_or_harmless(self) -> None:
        """A damaged file is refused, or read as an array of the right length; it never raises another error."""
        whole = self.written(np.random.default_rng(0).random((5, 4)))
        choice = random.Random(1)
        for _ in range(MUTATIONS):
            spoilt = choice.choice(DAMAGE)(whole, choice)
            found = read_or_refusal(spoilt)
            if isinstance(found, UnreadableFile):
                assert found.remedy
            else:
                assert found.nbytes < len(spoilt)
                assert MIN_ORDER <= found.ndim <= MAX_ORDER

    def test_threads_may_read_at_the_same_time(self) -> None:
        arrays = [np.full((2, 3 + turn), float(turn)) for turn in range(8)]
        files = [self.written(array) for array in arrays]
        begin = threading.Barrier(len(files))

        def check(turn: int) -> bool:
            begin.wait()
            return all(np.array_equal(read(io.BytesIO(files[turn])), arrays[turn]) for _ in range(200))

        with ThreadPoolExecutor(len(files)) as pool:
            assert all(pool.map(check, range(len(files))))

    def test_pythons_own_parser_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """CPython 3.11 fails now and then if several threads use it."""
        forbid_python_parser(monkeypatch)
        assert np.array_equal(read(io.BytesIO(self.written(np.ones((2, 3))))), np.ones((2, 3)))


def forbid_python_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*_: object, **__: object) -> NoReturn:
        raise AssertionError("Python's parser was used")

    monkeypatch.setattr(ast, "parse", used)
    monkeypatch.setattr(ast, "literal_eval", used)


# The format `.npy`


class TestNpy(ReaderContract):
    name = "npy"

    def written(self, array: NDArray[Any]) -> bytes:
        return saved(array)

    def sparse(self, path: Path) -> tuple[int, ...]:
        shape = (1 << 16, 1 << 10, 1 << 7)
        with path.open("wb") as file:
            start = described(shape=str(shape))
            file.write(start)
            file.seek(len(start) + math.prod(shape) * 8 - 8)
            file.write(np.float64(1).tobytes())
        return shape

    @pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
    def test_every_version_is_read(self, version: tuple[int, int]) -> None:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.ones((2, 3)), version=version)
        buffer.seek(0)
        assert read(buffer).shape == (2, 3)

    @pytest.mark.parametrize(
        "text",
        [
            "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }          \n",  # numpy
            "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2, ), }\n",  # cnpy, in C++
            "{'shape': (2, 2), 'fortran_order': False, 'descr': '<f8'}\n",  # in another order
            "{'descr':'<f8','fortran_order':False,'shape':(2,2)}\n",
            '{"descr": "<f8", "fortran_order": False, "shape": (2, 2)}\n',
            " {\n'descr':\t'<f8',\n 'fortran_order' : False , 'shape': ( 2 ,2 )\n}\n\n",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (2L, 2L), }\n",  # numpy in Python 2
            "{'descr': 'float64', 'fortran_order': False, 'shape': (2, 2)}\n",
        ],
    )
    @pytest.mark.parametrize("version", [(1, 0), (2, 0)])
    @pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
    def test_headers_of_other_writers_are_read(self, text: str, version: tuple[int, int]) -> None:
        whole = header(text, version) + np.arange(4.0).tobytes()
        found = read(io.BytesIO(whole))
        assert np.array_equal(found, np.arange(4.0).reshape(2, 2))
        assert np.array_equal(np.load(io.BytesIO(whole)), found)

    def test_a_long_header_is_read(self) -> None:
        padded = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 2), }" + " " * 60_000 + "\n"
        found = read(io.BytesIO(header(padded, (2, 0)) + np.arange(4.0).tobytes()))
        assert np.array_equal(found, np.arange(4.0).reshape(2, 2).T)

    @pytest.mark.parametrize("name", OTHER_FILES)
    def test_a_file_of_another_kind_is_recognised_and_the_remedy_named(self, name: str) -> None:
        content, problem, remedy = OTHER_FILES[name]
        error = refused(content)
        assert problem in error.problem
        assert remedy in error.remedy

    @pytest.mark.parametrize("name", OTHER_FILES)
    def test_the_reader_alone_refuses_it_in_the_same_words(self, name: str) -> None:
        content = OTHER_FILES[name][0]
        with pytest.raises(UnreadableFile, match=re.escape(str(refused(content)))):
            npy.read_header(io.BytesIO(content))

    @pytest.mark.parametrize("case", REFUSALS)
    def test_what_is_no_tensor_is_refused_with_the_reason(self, case: str) -> None:
        content, reason = REFUSALS[case]
        assert reason in refused(content).problem

    @pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
    @pytest.mark.parametrize("bomb", BOMBS)
    def test_a_header_that_is_meant_to_exhaust_the_parser_is_refused_soon(
        self, bomb: str, version: tuple[int, int]
    ) -> None:
        whole = header(BOMBS[bomb], version) + bytes(32)
        begun = time.process_time()
        refused(whole)
        assert time.process_time() - begun < BOMB_SECONDS

    def test_a_damaged_file_is_refused_or_read_as_numpy_reads_it(self) -> None:
        choice = random.Random(2)
        count = sum(self.is_read_as_by_numpy(content(choice)) for _ in range(MUTATIONS))
        assert MUTATIONS / 20 < count < MUTATIONS * 19 / 20

    @given(
        st.sampled_from(["<f8", ">f4", "|b1", "<i2"]),
        st.lists(st.integers(1, 4), min_size=2, max_size=5),
        st.booleans(),
        st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), max_size=6),
    )
    def test_a_header_with_other_bytes_is_refused_or_read_as_numpy_reads_it(
        self, dtype: str, shape: list[int], fortran: bool, changes: list[tuple[int, int]]
    ) -> None:
        spoilt = bytearray(saved(np.ones(shape, dtype, order="F" if fortran else "C")))
        for place, byte in changes:
            spoilt[place] = byte
        assert self.is_read_as_by_numpy(bytes(spoilt)) or changes

    @given(st.text(alphabet="{}()[]'\":,. \n0123456789-+LTrueFals<>|=f8descrfortran_ordershape", max_size=120))
    def test_any_text_is_refused_or_read_as_numpy_reads_it(self, text: str) -> None:
        self.is_read_as_by_numpy(header(text) + bytes(32))
        self.is_read_as_by_numpy(header("{" + text + ", 'shape': (2, 2)}\n") + bytes(32))

    def is_read_as_by_numpy(self, content: bytes) -> bool:
        """Whether a file is read; if so, it must be as numpy does, and if not, numpy must have no plain array in it."""
        expected = read_plainly(content)
        found = read_or_refusal(content)
        if isinstance(found, UnreadableFile):
            assert found.remedy
            assert expected is None or not expected.size, (content, found)
            return False
        assert expected is not None, content
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.tobytes() == expected.tobytes()
        return True


# The registry, and archives of arrays


def test_a_suffix_belongs_to_one_format() -> None:
    suffixes = [suffix for format in FORMATS.values() for suffix in format.suffixes]
    assert len({suffix.lower() for suffix in suffixes}) == len(suffixes)
    assert all(re.fullmatch(r"\.[a-z0-9.]+", suffix) for suffix in suffixes)


def test_a_tensor_has_as_many_modes_as_the_solver_takes() -> None:
    assert (MIN_ORDER, MAX_ORDER) == (runtime.MIN_ORDER, runtime.MAX_ORDER)


ARRAYS: Mapping[str, NDArray[Any]] = {
    "A1": np.random.default_rng(0).random((40, 3)),
    "A2": np.asfortranarray(np.random.default_rng(1).random((50, 3))).astype(">f4"),
    "scalar": np.array(2.5),
    "text": np.array("Länge"),
    "list": np.array(["a", "bc"]),
    "none": np.zeros((0, 5)),
    "flag": np.array(True),
    "complex": np.array([1j]),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_has_its_arrays(save: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    save(buffer, **ARRAYS)
    forbid_python_parser(monkeypatch)
    found = read_npz(buffer)
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable


def test_an_archive_with_objects_is_refused() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, A1=np.ones((2, 2)), trap=np.array([Trap()], object))
    with pytest.raises(UnreadableFile, match="pickled Python objects"):
        read_npz(buffer)


def test_a_damaged_archive_is_refused() -> None:
    buffer = io.BytesIO()
    np.savez(buffer, A1=np.random.default_rng(0).random((40, 3)))
    whole = buffer.getvalue()
    for place in range(200, 1000, 50):  # among the entries
        spoilt = bytearray(whole)
        spoilt[place] ^= 1
        with pytest.raises(zipfile.BadZipFile, match="CRC"):
            read_npz(io.BytesIO(spoilt))

"""A large tensor is read once to check that it is intact, and any later change of its file is detected."""

import hashlib
import itertools
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.solvers import Settings
from sparse_ncp.solvers.tensor.scan import CHUNK, CHUNKS_PER_RUN, Scan, scan
from sparse_ncp.solvers.tensor.threads import Threads, single_threaded_blas
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim
from sparse_ncp.worker.errors import CorruptFile
from sparse_ncp.worker.execution.inputs import Inputs, StorageRetry
from sparse_ncp.worker.store import local_blobs, tensors, verification
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.store.local_blobs import SETTLED_NANOSECONDS
from sparse_ncp.worker.store.tensors import LARGE_CHUNK
from sparse_ncp.worker.store.verification import Verified
from tests.support.jobs import npy, random_tensor


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """One that remembers small tensors too."""
    monkeypatch.setattr(tensors, "LEAST_BYTES", 0)
    return LocalStore(tmp_path)


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The digests of the files that were read."""
    seen: list[str] = []
    real = verification.verify

    def counted(file: BinaryIO, tensor: NDArray[Any], sha256: str, *rest: Any) -> Scan | None:
        seen.append(sha256)
        return real(file, tensor, sha256, *rest)

    monkeypatch.setattr(tensors, "verify", counted)
    return seen


def kept(store: LocalStore, array: NDArray[Any]) -> str:
    """A tensor that was stored a while ago, by a server that remembered nothing."""
    with store.upload() as upload:
        upload.write(npy(array))
        sha256, _ = upload.keep()
    note(store, sha256).unlink(missing_ok=True)
    set_back(store.tensor_path(sha256))
    return sha256


def set_back(path: Path) -> None:
    past = time.time_ns() - 2 * SETTLED_NANOSECONDS
    os.utime(path, ns=(past, past))


def note(store: LocalStore, sha256: str) -> Path:
    return store.root / "tensors" / sha256 / "verified.json"


def scanned(array: NDArray[Any]) -> Scan:
    with Threads(1) as pool, single_threaded_blas():
        return scan(array, pool)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float64", "float32", ">f4", "int16", "bool"])
def test_the_file_is_read_once_and_what_it_holds_is_what_a_scan_finds(
    store: LocalStore, readings: list[str], dtype: str, order: Any
) -> None:
    """Over several contiguous runs; with entries that are missing and negative where the type has them."""
    array = (9 * random_tensor(3, 5, CHUNK * CHUNKS_PER_RUN // 7) - 1).astype(dtype, order=order)
    if array.dtype.kind == "f":
        array[1, 2, 3] = np.nan
    sha256, shares = kept(store, array), list[float]()
    first = store.verify_tensor(sha256, 2, shares.append)
    assert first == store.verify_tensor(sha256, 1, shares.append) == scanned(array)
    assert readings == [sha256]
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0


def alter(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-9, os.SEEK_END)
        file.write(b"\x01")


def alter_and_set_back(path: Path) -> None:
    """Change a file and restore its time; this is detected, since the time of the inode cannot be set."""
    before = path.stat()
    alter(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def spoil_the_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\x00")


def replace_it(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy2(path, other)
    alter_and_set_back(other)
    other.replace(path)


@pytest.mark.parametrize("damage", [alter, alter_and_set_back, cut, spoil_the_header, replace_it])
def test_a_file_that_was_changed_after_it_was_checked_is_noticed(
    store: LocalStore, damage: Callable[[Path], None]
) -> None:
    sha256 = kept(store, random_tensor(4, 5, 6))
    store.verify_tensor(sha256)
    assert note(store, sha256).exists()
    damage(store.tensor_path(sha256))
    with pytest.raises(CorruptFile):
        store.verify_tensor(sha256)


def test_a_restored_file_is_read_again_and_then_believed(store: LocalStore, readings: list[str]) -> None:
    sha256 = kept(store, random_tensor(4, 5, 6))
    store.verify_tensor(sha256)
    path = store.tensor_path(sha256)
    shutil.copy2(path, path.with_name("restored"))
    path.with_name("restored").replace(path)
    for _ in range(2):
        store.verify_tensor(sha256)
    assert readings == [sha256] * 2


def test_a_damaged_note_or_anothers_is_not_believed(store: LocalStore, readings: list[str]) -> None:
    ours, other = kept(store, random_tensor(4, 5, 6)), kept(store, random_tensor(6, 5, 4, seed=1))
    for sha256 in (ours, other):
        store.verify_tensor(sha256)
    content = note(store, ours).read_bytes()
    for spoiled in (
        b"",
        content[:-1],
        content.replace(b'"minimum": 0', b'"minimum": 1'),
        note(store, other).read_bytes(),
    ):
        assert spoiled != content
        note(store, ours).write_bytes(spoiled)
        readings.clear()
        assert store.verify_tensor(ours) == scanned(random_tensor(4, 5, 6))
        assert readings == [ours]


@pytest.mark.parametrize(("age", "read"), [(3540, False), (3600, True), (-60, True)])
def test_a_file_is_read_again_after_a_while(store: LocalStore, readings: list[str], age: float, read: bool) -> None:
    """And where the clock has been set back since."""
    sha256 = kept(store, random_tensor(4, 5, 6))
    store.verify_tensor(sha256)
    found = Verified.from_bytes(note(store, sha256).read_bytes(), sha256)
    assert found is not None
    note(store, sha256).write_bytes(replace(found, checked_at=time.time() - age).to_bytes(sha256))
    readings.clear()
    store.verify_tensor(sha256, valid_seconds=3600)
    assert readings == [sha256] * read


@pytest.mark.parametrize(("days", "readings_expected"), [(7, 1), (0, 2)])
def test_an_attempt_checks_again_after_the_configured_days(
    store: LocalStore, readings: list[str], days: float, readings_expected: int
) -> None:
    sha256 = kept(store, random_tensor(4, 5, 6))
    claim = Claim(
        job_id="job", owner="local", request_id=None, fence=1, attempt=1, sha256=sha256, initial_job_id=None,
        mask_sha256=None, fixed=None, settings=Settings(rank=1, method="als"), checkpoint=None, published=None,
        spent_seconds=0,
    )  # fmt: skip
    retry = StorageRetry("job", lambda: True, 0.01)
    inputs = Inputs(claim, store, Configuration(verify_days=days), retry)
    for _ in range(2):
        assert inputs.verify(lambda _: None) == scanned(random_tensor(4, 5, 6))
    assert len(readings) == readings_expected


def test_what_another_kind_of_machine_scanned_is_scanned_again_but_not_hashed(
    store: LocalStore, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last bits may differ; the digest does not."""
    sha256 = kept(store, random_tensor(4, 5, 6))
    store.verify_tensor(sha256)
    monkeypatch.setattr(verification, "machine_signature", lambda: "another")
    assert store.verify_tensor(sha256) is None
    assert readings == [sha256]


def test_a_file_that_was_changed_a_moment_ago_is_not_remembered(store: LocalStore) -> None:
    """A change within the same tick of the file system's clock would not show."""
    sha256 = kept(store, random_tensor(4, 5, 6))
    for past in (time.time_ns() + 10**9, 10**18):  # now, and by a file system that counts in whole seconds
        os.utime(store.tensor_path(sha256), ns=(past, past))
        store.verify_tensor(sha256)
        assert not note(store, sha256).exists()


def test_the_note_goes_with_its_tensor(store: LocalStore) -> None:
    sha256 = kept(store, random_tensor(4, 5, 6))
    store.verify_tensor(sha256)
    assert not store.remove_tensor(sha256, lambda _: False)
    assert note(store, sha256).exists()
    assert store.remove_tensor(sha256, lambda _: True)
    assert list((store.root / "tensors").iterdir()) == []


def test_a_small_tensor_is_checked_every_time(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    sha256 = kept(store, random_tensor(4, 5, 6))
    assert store.verify_tensor(sha256) is None
    assert not note(store, sha256).exists()
    alter(store.tensor_path(sha256))
    with pytest.raises(CorruptFile):
        store.verify_tensor(sha256)


def test_an_upload_is_remembered_as_it_was_received(
    store: LocalStore, readings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes were hashed and scanned on arrival, so no attempt reads them again for that."""
    monkeypatch.setattr(local_blobs, "SETTLED_NANOSECONDS", 0)
    array = random_tensor(4, 5, 6)
    with store.upload() as upload:
        upload.write(npy(array))
        sha256, _ = upload.keep()
    assert store.verify_tensor(sha256) == scanned(array)
    assert readings == []
    alter(store.tensor_path(sha256))
    with pytest.raises(CorruptFile):
        store.verify_tensor(sha256)


def test_a_large_upload_in_pieces_of_any_size_has_the_digest_of_its_bytes(store: LocalStore) -> None:
    """Large pieces are hashed beside the write, small ones after it."""
    content = npy(random_tensor(3, 400, 500))
    sizes = itertools.cycle([1, LARGE_CHUNK - 1, LARGE_CHUNK, 3 * LARGE_CHUNK, 7])
    with store.upload() as upload:
        place = 0
        while place < len(content):
            size = next(sizes)
            buffer = bytearray(content[place : place + size])
            upload.write(memoryview(buffer))
            buffer[:] = bytes(len(buffer))  # the caller's again
            place += size
        sha256, _ = upload.keep()
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert store.tensor_path(sha256).read_bytes() == content

"""The store on every implementation of `Blobs`, and data folders that earlier releases wrote."""

import hashlib
import json
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sparse_ncp.worker.contract import Export
from sparse_ncp.worker.errors import NoFactorsYet, NotFound, StoreUnavailable
from sparse_ncp.worker.store import copies, tensors
from sparse_ncp.worker.store.blobs import StoredItem
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.store.store import Store
from tests.contracts import record
from tests.contracts.memory_blobs import MemoryBlobs
from tests.support.jobs import npy, random_tensor

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.tar.gz"))
SHA256 = hashlib.sha256(npy(record.TENSOR)).hexdigest()


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store that notes that small tensors are intact, too."""
    monkeypatch.setattr(tensors, "LEAST_BYTES", 0)
    blobs = MemoryBlobs()
    return LocalStore(tmp_path) if request.param == "local" else Store(blobs, blobs)


def keep(store: Store, content: bytes) -> str:
    with store.upload() as upload:
        upload.write(content)
        sha256, _ = upload.keep()
    return sha256


def assert_recorded(store: Store) -> None:
    """All that is promised to stay readable."""
    for array in (record.TENSOR, record.GAPS):
        sha256 = hashlib.sha256(npy(array)).hexdigest()
        assert np.array_equal(store.open_tensor(sha256), array, equal_nan=True)
        with store.open_content(sha256).file as file:
            assert file.read() == npy(array)
        store.verify_tensor(sha256)
    for name in ("ended", "run"):
        job = store.job(name)
        assert job.history() == record.ROWS
        assert job.history(after=2, count=3) == record.ROWS[2:5]
        assert job.history(after=10**18) == []
        assert job.changes() == record.CHANGES
        for file_name in ("A1.npy", "factors.npz", "factors.mat"):
            opened = job.open_factors(file_name)
            with opened.file as file:
                assert hashlib.sha256(file.read()).hexdigest() == opened.sha256
            assert opened.iteration == 5
        content, iteration = job.export(Export(format="csv"))
        assert content
        assert iteration == 5


def test_what_is_stored_comes_back(store: Store) -> None:
    record.fill(store)
    assert_recorded(store)
    assert store.summary(SHA256) == record.SUMMARY
    assert store.job("interrupted").last_checkpoint("gone") is not None
    expected = [hashlib.sha256(A.tobytes()).hexdigest() for A in record.states()[-1].factors]
    assert record.digests(store)["ended"] == expected


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_data_folder_of_an_earlier_release_is_read(path: Path, tmp_path: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    store, expected = LocalStore(tmp_path), json.loads((tmp_path / "expected.json").read_text())
    assert_recorded(store)
    interrupted = store.job("interrupted")
    if path.name.startswith("unversioned"):  # its checkpoints are ignored: the job starts again from its seed
        assert interrupted.last_checkpoint("checkpoint-1-3") is None
        with pytest.raises(NoFactorsYet):
            interrupted.factors()
        del expected["interrupted"]
    for name, digests in expected.items():
        assert [hashlib.sha256(A.tobytes()).hexdigest() for A in store.job(name).factors()] == digests


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_a_data_folder_of_an_earlier_release_is_added_to_and_emptied(path: Path, tmp_path: Path) -> None:
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    store = LocalStore(tmp_path)
    assert keep(store, npy(record.TENSOR)) == SHA256
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)
    for array in (record.TENSOR, record.GAPS):
        assert store.remove_tensor(hashlib.sha256(npy(array)).hexdigest(), lambda _: True)
    for job in ("ended", "run", "interrupted"):
        store.remove_job(job)
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left <= {"expected.json", "tensors/.lock"}


def test_the_same_bytes_are_stored_once(store: Store) -> None:
    keep(store, npy(record.TENSOR))
    once = store.stored_bytes()["tensors"]
    assert keep(store, npy(record.TENSOR)) == SHA256
    assert store.stored_bytes()["tensors"] == once


def test_a_tensor_that_is_uploaded_again_while_it_is_removed_stays(store: Store) -> None:
    """The removal notices the upload, or the upload writes its own bytes. A set stands for the records."""
    content, records, done = npy(random_tensor(3, 4)), set[int](), threading.Event()
    sha256 = hashlib.sha256(content).hexdigest()

    def upload(turn: int) -> None:
        with store.upload() as one:
            one.write(content)
            one.keep()
            records.add(turn)
        assert np.array_equal(store.open_tensor(sha256), random_tensor(3, 4))
        records.discard(turn)

    def remove() -> None:
        while not done.is_set():
            store.remove_tensor(sha256, lambda _: not records)

    with ThreadPoolExecutor(4) as pool:
        removers = [pool.submit(remove) for _ in range(2)]
        try:
            list(map(upload, range(25)))
        finally:
            done.set()
        for remover in removers:
            remover.result()
    store.remove_tensor(sha256, lambda _: True)
    with pytest.raises(NotFound):
        store.open_tensor(sha256)
    assert store.stored_bytes() == {"tensors": 0, "jobs": 0, "uploads": 0}


def test_a_removal_that_was_cut_short_hides_nothing_and_is_undone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(store, npy(record.TENSOR))
    asked: list[str] = []

    def die_at_the_second_question(sha256: str) -> bool:
        asked.append(sha256)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        store.remove_tensor(SHA256, die_at_the_second_question)
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)
    assert keep(store, npy(record.TENSOR)) == SHA256
    monkeypatch.setattr(copies, "ABANDONED_SECONDS", -1.0)
    assert not store.remove_tensor(SHA256, lambda _: False)
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)
    assert {item.name for item in store.abandoned_uploads()} == set()
    assert store.remove_tensor(SHA256, lambda _: True)
    assert store.stored_bytes()["tensors"] == 0


def test_bytes_that_no_manifest_names_are_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, npy(record.TENSOR))
    with store.upload() as upload:
        upload.write(npy(random_tensor(3, 4)))
        upload._writer.commit()  # and dies
        monkeypatch.setattr(copies, "ABANDONED_SECONDS", -1.0)
        (item,) = store.abandoned_uploads()
        store.remove_leftover(item)
        assert store.abandoned_uploads() == []
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)


def test_bytes_that_no_manifest_names_are_found_beside_a_manifest_without_bytes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a power cut, which brings back what was deleted. The next upload replaces the bytes."""
    keep(store, npy(record.TENSOR))
    keep(store, npy(record.GAPS))
    (lost, _), (brought_back, _) = (copy_names(store, array) for array in (record.TENSOR, record.GAPS))
    store._blobs.delete(lost)
    store._blobs.delete(copy_names(store, record.GAPS)[1])
    monkeypatch.setattr(copies, "ABANDONED_SECONDS", -1.0)
    assert [item.name for item in store.abandoned_uploads()] == [brought_back]
    keep(store, npy(record.TENSOR))
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)
    assert copy_names(store, record.TENSOR)[0] != lost


def copy_names(store: Store, array: NDArray[Any]) -> tuple[str, ...]:
    """Return the names of the bytes of a tensor, and of the only manifest."""
    (copy,) = copies.Copies(store._blobs).find_all(hashlib.sha256(npy(array)).hexdigest())
    return copy.blob, *copy.manifests


def test_the_next_upload_replaces_a_copy_that_a_removal_has_marked_too_late(store: Store) -> None:
    keep(store, npy(record.TENSOR))
    marked, answers = copy_names(store, record.TENSOR), iter([True, False])
    assert not store.remove_tensor(SHA256, lambda _: next(answers))
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)
    keep(store, npy(record.TENSOR))
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)
    assert copy_names(store, record.TENSOR) != marked


def test_an_upload_that_outlives_its_pin_has_its_own_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, npy(record.TENSOR))
    monkeypatch.setattr(copies, "ABANDONED_SECONDS", -1.0)
    with store.upload() as upload:
        upload.write(npy(record.TENSOR))
        upload.keep()
        assert store.remove_tensor(SHA256, lambda _: True)
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)


def test_an_upload_whose_bytes_were_cleaned_up_is_not_accepted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took longer than uploads live. What it left is found once more, and is not in the way of the next one."""
    publish = copies.Copies.publish

    def late(self: copies.Copies, sha256: str, token: str, nbytes: int) -> bool:
        store.remove_leftover(StoredItem(f"tensors/{token}.npy", nbytes))
        return publish(self, sha256, token, nbytes)

    monkeypatch.setattr(copies.Copies, "publish", late)
    with pytest.raises(StoreUnavailable):
        keep(store, npy(record.TENSOR))
    monkeypatch.setattr(copies.Copies, "publish", publish)
    keep(store, npy(record.TENSOR))
    assert np.array_equal(store.open_tensor(SHA256), record.TENSOR)
    monkeypatch.setattr(copies, "ABANDONED_SECONDS", -1.0)
    assert [item.sha256 for item in store.abandoned_uploads()] == [SHA256]


def test_of_a_result_that_was_never_published_nothing_is_seen(store: Store) -> None:
    state = record.states()[-1]
    store.job("j").save_checkpoint(1, state)
    store._blobs.put("jobs/j/factors-2/A1.npy", b"half")
    assert np.array_equal(store.job("j").factors()[0], state.factors[0])
    store.job("j").tidy()
    assert "jobs/j/factors-2/A1.npy" not in [blob.name for blob in store._blobs.list("jobs/")]

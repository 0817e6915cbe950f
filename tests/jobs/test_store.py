"""Files are whole or absent, private, and stored once."""

import ast
import hashlib
import io
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import scipy.io

from sparse_ncp.solvers import Settings, State, Stop, sweeps
from sparse_ncp.worker.contract import Event, Export, JobResult, Source
from sparse_ncp.worker.errors import BadTensor, CorruptFile, NoFactorsYet, NotFound, StoreFull
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.store.blobs import Blobs, OpenFile
from sparse_ncp.worker.store.files import remove
from sparse_ncp.worker.store.local import LocalStore
from sparse_ncp.worker.store.manifests import Manifest
from sparse_ncp.worker.store.results import open_result, write_factors
from tests.support.jobs import npy, put, random_tensor, row, same_bits


def files_in(store: LocalStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file() and path.name != ".lock"]


def manifest_path(store: LocalStore, sha256: str) -> Path:
    (path,) = (store.root / "tensors" / sha256).glob("manifest-*.json")
    return path


def keep(store: LocalStore, content: bytes, sha256: str | None = None) -> None:
    with store.upload() as upload:
        upload.write(content)
        upload.keep(sha256)


def left_long_ago(store: LocalStore, name: str) -> None:
    path = store.root / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.utime(path, (0, 0))


def states(count: int) -> list[State]:
    settings = Settings(rank=2, method="apg", stop=Stop(max_iterations=count, tolerance=0))
    return list(sweeps(random_tensor(4, 5, 6), settings))


@contextmanager
def room_for(nbytes: int) -> Iterator[None]:
    """No file may grow beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


def test_an_upload_is_kept_under_its_digest(store: LocalStore) -> None:
    content = npy(random_tensor(4, 5, 6))
    with store.upload() as upload:
        upload.write(content[:100])
        upload.write(content[100:])
        sha256, facts = upload.keep(hashlib.sha256(content).hexdigest())
    assert sha256 == hashlib.sha256(content).hexdigest()
    assert facts.shape == (4, 5, 6)
    assert np.array_equal(store.open_tensor(sha256), random_tensor(4, 5, 6))
    assert set(files_in(store)) == {store.tensor_path(sha256), manifest_path(store, sha256)}


def test_everything_is_private(store: LocalStore) -> None:
    with store.upload() as upload:
        upload.write(npy(random_tensor(4, 5)))
        upload.keep()
    store.job("j").save_checkpoint(1, states(1)[0])
    for path in [store.root, *store.root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize("content", [npy(np.full((3, 3), np.inf)), b"no tensor", b""])
def test_a_refused_upload_leaves_nothing_behind(store: LocalStore, content: bytes) -> None:
    with pytest.raises(BadTensor):
        keep(store, content)
    assert files_in(store) == []


def test_a_wrong_digest_leaves_nothing_behind(store: LocalStore) -> None:
    with pytest.raises(BadTensor, match="does not match"):
        keep(store, npy(random_tensor(3, 3)), "0" * 64)
    assert files_in(store) == []


def test_an_abandoned_upload_leaves_nothing_behind(store: LocalStore) -> None:
    with store.upload() as upload:
        upload.write(b"half")
        assert len(files_in(store)) == 1
    assert files_in(store) == []


def test_a_full_disk_is_reported_and_leaves_nothing_behind(store: LocalStore) -> None:
    with room_for(1000), pytest.raises(StoreFull), store.upload() as upload:
        upload.write(bytes(2000))
    assert files_in(store) == []
    with room_for(1000), pytest.raises(StoreFull):
        store.job("j").save_checkpoint(1, states(1)[0])
    assert files_in(store) == []


def test_uploads_of_the_dead_are_removed_those_of_the_living_stay(store: LocalStore, tensors: TensorOperations) -> None:
    left_long_ago(store, "uploads/left")
    with store.upload() as upload:
        upload.write(npy(random_tensor(3, 3)))
        for path in (store.root / "uploads").iterdir():
            os.utime(path, (0, 0))
        assert tensors.remove_abandoned_uploads() == 1
        upload.keep()
        assert tensors.remove_abandoned_uploads() == 0
    assert len(files_in(store)) == 2


def test_bytes_stay_while_any_record_names_them(
    records: ExecutionRecords, store: LocalStore, tensors: TensorOperations
) -> None:
    first, second = put(records, store, random_tensor(3, 4), "ann"), put(records, store, random_tensor(3, 4), "bob")
    assert first.sha256 == second.sha256
    tensors.delete("ann", first.id)
    tensors.remove_content(first.sha256)
    assert len(files_in(store)) == 2
    assert np.array_equal(store.open_tensor(second.sha256), random_tensor(3, 4))
    tensors.delete("bob", second.id)
    assert files_in(store) == []


def test_bytes_whose_record_was_never_added_are_removed_and_no_others(
    records: ExecutionRecords, store: LocalStore, tensors: TensorOperations
) -> None:
    """The server died between the two. A Redis that has forgotten everything is no reason to remove anything else."""
    keep(store, npy(random_tensor(3, 4)))
    kept = set(files_in(store))
    lost, needed = npy(random_tensor(5, 6)), put(records, store, random_tensor(7, 8))
    keep(store, lost)
    for sha256 in (hashlib.sha256(lost).hexdigest(), needed.sha256):
        left_long_ago(store, f"tensors/{sha256}/pin-0123456789abcdef")
    assert tensors.remove_abandoned_uploads() == 2
    assert np.array_equal(store.open_tensor(needed.sha256), random_tensor(7, 8))
    expected = {*kept, store.tensor_path(needed.sha256), manifest_path(store, needed.sha256)}
    assert set(files_in(store)) == expected


def test_a_checkpoint_comes_back_bit_for_bit_and_a_damaged_one_not_at_all(store: LocalStore) -> None:
    state = states(3)[-1]
    name = store.job("j").save_checkpoint(2, state)
    loaded = store.job("j").load_checkpoint(name)
    assert loaded is not None
    assert loaded.to_bytes() == state.to_bytes()
    path = store.root / "jobs" / "j" / name / "state"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert store.job("j").load_checkpoint(name) is None
    assert store.job("j").load_checkpoint("checkpoint-1-1-" + "0" * 16) is None


def test_the_last_two_checkpoints_stay(store: LocalStore) -> None:
    folder = store.job("j")
    names = [folder.save_checkpoint(1, state) for state in states(3)]
    folder.drop_checkpoints(keep=names[2])
    assert [folder.load_checkpoint(name) is not None for name in names] == [False, True, True]


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(store: LocalStore) -> None:
    folder, (first, second) = store.job("j"), states(2)
    folder.save_checkpoint(1, first)
    last = folder.save_checkpoint(1, second)
    (store.root / "jobs" / "j" / last / "state").write_bytes(b"spoilt")
    found = folder.last_checkpoint(last)
    assert found is not None
    assert found.to_bytes() == first.to_bytes()


def found(store: LocalStore, name: str) -> OpenFile:
    return store.job("j").open_factors(name)


def test_factors_are_those_of_the_last_checkpoint_and_in_the_end_the_final_ones(store: LocalStore) -> None:
    folder, (first, second, last) = store.job("j"), states(3)
    with pytest.raises(NoFactorsYet):
        found(store, "factors.npz")
    for state in (first, second):
        folder.save_checkpoint(1, state)
        assert same_bits(folder.factors(), list(state.factors))
    folder.save_factors(1, last, JobResult.from_state(last))
    assert same_bits(folder.factors(), list(last.factors))


def test_every_download_holds_the_same_factors_and_its_digest_is_known(store: LocalStore) -> None:
    last = states(3)[-1]
    result = JobResult.from_state(last)
    store.job("j").save_factors(1, last, result)
    contents: dict[str, bytes] = {}
    for name in ("factors.npz", "factors.mat", "A1.npy", "A2.npy", "A3.npy"):
        opened = found(store, name)
        with opened.file as file:
            content = contents[name] = file.read()
        assert (opened.sha256, opened.nbytes) == (hashlib.sha256(content).hexdigest(), len(content))
    with np.load(io.BytesIO(contents["factors.npz"])) as arrays:
        assert same_bits([arrays[f"A{mode}"] for mode in (1, 2, 3)], list(last.factors))
    single = [np.load(io.BytesIO(contents[f"A{mode}.npy"])) for mode in (1, 2, 3)]
    assert same_bits(single, list(last.factors))
    matlab = scipy.io.loadmat(cast(Any, io.BytesIO(contents["factors.mat"])))
    assert all(np.array_equal(matlab[f"A{mode}"], A) for mode, A in enumerate(last.factors, start=1))
    assert matlab["relative_error"].item() == result.relative_error
    assert matlab["iterations"].item() == 3
    assert matlab["weights"].ravel().tolist() == list(result.weights)
    assert matlab["stop_reason"].item() == "max_iterations"
    with pytest.raises(NotFound):
        found(store, "A4.npy")


def test_factors_of_an_older_version_are_still_exported(store: LocalStore) -> None:
    """They have nothing beside them that explains them."""
    last = states(3)[-1]
    store.job("j").save_factors(1, last, JobResult.from_state(last))
    path = store.root / "jobs" / "j" / "factors-1" / "factors.npz"
    np.savez(path, **dict[str, Any](zip(("A1", "A2", "A3"), last.factors, strict=True)))
    for format in ("npz", "mat", "csv", "nc"):
        asked = Export.model_validate({"format": format, "scale": "unit", "order": "share", "zeros": "drop"})
        content, _ = store.job("j").export(asked)
        assert content
    assert same_bits(store.job("j").factors(), list(last.factors))


def test_stored_arrays_are_read_without_pythons_parser(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The API reads them in several threads, where that of CPython 3.11 fails now and then."""
    first, last = states(2)
    ended, live, sha256 = store.job("j"), store.job("live"), hashlib.sha256(npy(random_tensor(3, 4))).hexdigest()
    ended.save_factors(1, last, JobResult.from_state(last))
    ended.save_history([row(1), row(2)], [])
    live.save_checkpoint(1, first)
    monkeypatch.setattr(ast, "literal_eval", lambda *_: pytest.fail("Python's parser was used"))
    keep(store, npy(random_tensor(3, 4)))
    assert np.array_equal(store.open_tensor(sha256), random_tensor(3, 4))
    assert same_bits(ended.factors(), list(last.factors))
    assert same_bits(live.factors(), list(first.factors))
    assert ended.history() == [row(1), row(2)]
    content, _ = ended.export(Export(format="csv"))
    assert content


def test_a_history_that_was_cut_short_is_noticed(store: LocalStore) -> None:
    store.job("j").save_history([row(1), row(2)], [])
    (path,) = store.root.rglob("rows.npy")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match="the stored history is truncated"):
        store.job("j").history()


def test_an_export_leaves_nothing_in_the_folder(store: LocalStore) -> None:
    last = states(3)[-1]
    store.job("j").save_factors(1, last, JobResult.from_state(last))
    before = files_in(store)
    content, iteration = store.job("j").export(Export(format="csv"))
    assert content
    assert files_in(store) == before
    assert iteration == 3


def test_a_later_attempt_counts_for_the_final_factors(store: LocalStore) -> None:
    folder, (first, second) = store.job("j"), states(2)
    folder.save_factors(1, first.cancelled(), JobResult.from_state(first.cancelled()))
    folder.save_factors(2, second, JobResult.from_state(second))
    assert same_bits(folder.factors(), list(second.factors))


def test_a_start_from_another_job_stays_the_same_however_far_that_job_gets(store: LocalStore) -> None:
    other, (first, second) = store.job("other"), states(2)
    other.save_checkpoint(1, first)
    assert same_bits(store.job("j").freeze_initial(other), list(first.factors))
    other.save_factors(1, second, JobResult.from_state(second))
    assert same_bits(store.job("j").freeze_initial(other), list(first.factors))


def test_history_and_changes_come_back_exactly(store: LocalStore) -> None:
    compressed, single = (row(n + 1).model_copy(update={"phase": ("compressed", "single")[n]}) for n in range(2))
    rows, change = [compressed, single, row(3)], Event(id="0-1", kind="state", payload="{}")
    later = Event(id="3-1", kind="state", payload="{}")
    files = store.job("j")
    files.collect_history(rows[:2], [change])
    assert files.history() == []
    assert files.collected_length() == 2
    files.collect_history(rows[1:], [change, later])  # by another, who began in the middle of that
    files.collect_history(rows[2:], [change, later])
    files.complete_history()
    files.collect_history(rows[2:], [change, later])  # by one who comes too late
    files.complete_history()
    assert store.job("j").history() == rows
    assert store.job("j").history(after=1, count=1) == rows[1:2]
    assert store.job("j").changes() == [change, later]
    assert {path.name for path in (store.root / "jobs" / "j").iterdir()} == {"history"}


def test_an_ended_job_keeps_its_factors_and_nothing_that_only_a_run_needs(store: LocalStore) -> None:
    folder, (first, last) = store.job("j"), states(2)
    checkpoint = folder.save_checkpoint(1, first)
    folder.factors()
    folder.tidy()
    assert folder.load_checkpoint(checkpoint) is not None
    half = store.root / "jobs" / "j" / "factors-1"
    half.mkdir()
    (half / "A1.npy").write_bytes(b"half")
    folder.save_factors(2, last, JobResult.from_state(last))
    folder.tidy()
    assert [path.name for path in (store.root / "jobs" / "j").iterdir()] == ["factors-2"]


def test_factors_that_vanish_under_a_reader_are_looked_for_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the worker replaces the checkpoint between finding its files and opening them."""
    folder, (first, second) = store.job("j"), states(2)
    names = [folder.save_checkpoint(1, first)]

    def late(*found: Any) -> OpenFile:
        if len(names) == 1:
            names.append(folder.save_checkpoint(1, second))
            folder.drop_checkpoints(keep=names[1])
        return open_result(*found)

    monkeypatch.setattr("sparse_ncp.worker.store.job_files.open_result", late)
    with folder.open_factors("A1.npy").file as file:
        assert np.array_equal(np.load(file), second.factors[0])


def test_a_reader_that_comes_late_leaves_nothing_in_a_job_that_has_ended(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends, and is tidied, while a reader still unpacks the last checkpoint."""
    folder, (first, last) = store.job("j"), states(2)
    folder.save_checkpoint(1, first)

    def slowly(blobs: Blobs, path: str, state: State, source: Source | None) -> Manifest:
        write_factors(blobs, "jobs/j/factors-1", last, JobResult.from_state(last))
        folder.tidy()
        return write_factors(blobs, path, state, source=source)

    monkeypatch.setattr("sparse_ncp.worker.store.job_files.write_factors", slowly)
    assert same_bits(folder.factors(), list(last.factors))
    assert [path.name for path in (store.root / "jobs" / "j").iterdir()] == ["factors-1"]


def test_a_reader_does_not_bring_back_a_deleted_job(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = store.job("j")
    folder.save_checkpoint(1, states(1)[0])

    def late(blobs: Blobs, path: str, state: State, source: Source | None) -> Manifest:
        store.remove_job("j")
        return write_factors(blobs, path, state, source=source)

    monkeypatch.setattr("sparse_ncp.worker.store.job_files.write_factors", late)
    with pytest.raises(NoFactorsYet):
        folder.factors()
    assert files_in(store) == []
    assert not (store.root / "jobs" / "j").exists()


def test_a_folder_may_appear_just_when_it_is_removed(tmp_path: Path) -> None:
    """As when two readers unpack the same checkpoint of a job that has ended meanwhile."""
    path, done = tmp_path / "partial-1", threading.Event()

    def appear() -> None:
        for turn in range(2000):
            with suppress(FileExistsError):
                path.mkdir()
            (tmp_path / f"{turn}").touch()
        done.set()

    appearing = threading.Thread(target=appear)
    appearing.start()
    while not done.is_set():
        remove(path)
    appearing.join()
    remove(path)
    assert {file.name for file in tmp_path.iterdir()} == {f"{turn}" for turn in range(2000)}


def test_removing_a_job_twice_is_fine(store: LocalStore) -> None:
    store.job("j").collect_history([row(1)], [])
    store.remove_job("j")
    store.remove_job("j")
    assert files_in(store) == []

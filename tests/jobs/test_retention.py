"""Retention removes expired records with all their files, and keeps those in use."""

import os
import threading
from pathlib import Path

import pytest

from sparse_ncp.solvers import sweeps
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Job, JobResult, TensorRecord
from sparse_ncp.worker.errors import NotFound
from sparse_ncp.worker.operations.cleanup import Cleanup, Removed
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from tests.support.jobs import put, queue_job, random_tensor, request
from tests.support.stack import wait_for, worker

LAPSED = 2 * 86_400_000
# Counters, totals of owners, and notes of deletions outlive what they describe.
STANDING = (
    keys.SEQUENCE,
    keys.SERVING,
    keys.SERVED,
    keys.OWNERS,
    keys.usage(""),
    keys.share(""),
    keys.FLOOR,
    keys.COUNTS,
    keys.DISCARDED,
)


def tidied(configuration: Configuration, dry_run: bool = False, **kept: float) -> list[Removed]:
    """One round, with these times to keep things."""
    asked = configuration.model_copy(update=kept)
    return list(Cleanup(ExecutionRecords.of(asked), LocalStore(asked.data), asked, dry_run).run())


def names(removed: list[Removed]) -> set[tuple[str, str]]:
    return {(one.kind, one.name) for one in removed}


def finished(jobs: JobOperations, records: ExecutionRecords, tensor: TensorRecord, key: str | None = None) -> Job:
    """A job that ended without having run."""
    job, _ = queue_job(records, tensor.owner, request(tensor), key)
    records.jobs.cancel(tensor.owner, job.id)
    jobs.settle(job.id)
    return records.jobs.get(tensor.owner, job.id)


def two_days_pass(configuration: Configuration) -> None:
    """For everything that is there now: its times are moved back."""
    with connect(configuration) as client:
        for pattern, name in (("ncp:job:*", "finished_at"), ("ncp:tensor:*", "used_at")):
            for key in client.scan_iter(pattern):
                if client.hexists(key, name):
                    client.hincrby(key, name, -LAPSED)
        for member, _ in client.zrange(keys.DISCARDED, 0, -1, withscores=True):
            client.zincrby(keys.DISCARDED, -LAPSED, member)


def keys_left(configuration: Configuration) -> set[str]:
    with connect(configuration) as client:
        return {str(key) for key in client.scan_iter() if not str(key).startswith(STANDING)}


def files_left(store: LocalStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file() and path.name not in (".lock", "format")]


def test_nothing_is_removed_unless_a_time_is_set(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, jobs: JobOperations
) -> None:
    tensor = put(records, store, random_tensor(3, 4))
    job = finished(jobs, records, tensor)
    two_days_pass(configuration)
    assert tidied(configuration) == []
    assert records.jobs.get("local", job.id).state == "cancelled"
    assert records.tensors.get("local", tensor.id) == tensor


def test_an_ended_job_goes_after_its_time_with_files_events_and_key(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, jobs: JobOperations
) -> None:
    tensor = put(records, store, random_tensor(3, 4))
    before, files = keys_left(configuration), files_left(store)
    job = finished(jobs, records, tensor, "a key")
    assert tidied(configuration, keep_jobs_days=1) == []
    two_days_pass(configuration)
    assert names(tidied(configuration, keep_jobs_days=1)) == {("job", job.id)}
    with pytest.raises(NotFound):
        records.jobs.get("local", job.id)
    assert keys_left(configuration) == before
    assert files_left(store) == files


def test_an_unused_tensor_goes_after_its_time_with_its_bytes(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore
) -> None:
    tensor = put(records, store, random_tensor(3, 4))
    assert tidied(configuration, keep_tensors_days=1) == []
    two_days_pass(configuration)
    (removed,) = tidied(configuration, keep_tensors_days=1)
    assert (removed.kind, removed.name, removed.nbytes) == ("tensor", tensor.id, tensor.nbytes)
    assert keys_left(configuration) == set()
    assert files_left(store) == []


def test_the_bytes_stay_while_another_owner_has_them(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore
) -> None:
    old = put(records, store, random_tensor(3, 4), "ann")
    two_days_pass(configuration)
    new = put(records, store, random_tensor(3, 4), "bob")
    assert names(tidied(configuration, keep_tensors_days=1)) == {("tensor", old.id)}
    assert store.tensor_path(new.sha256).is_file()


def test_a_tensor_stays_while_a_live_job_needs_it_and_its_time_begins_at_the_jobs_end(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore
) -> None:
    tensor = put(records, store, random_tensor(3, 4))
    job, _ = queue_job(records, "local", request(tensor))
    two_days_pass(configuration)
    assert tidied(configuration, keep_tensors_days=1, keep_jobs_days=1) == []
    records.jobs.cancel("local", job.id)
    assert tidied(configuration, keep_tensors_days=1, keep_jobs_days=1) == []
    two_days_pass(configuration)
    both = {("tensor", tensor.id), ("job", job.id)}
    assert names(tidied(configuration, keep_tensors_days=1, keep_jobs_days=1)) == both


def test_a_masks_time_begins_at_the_end_of_the_job_that_it_belongs_to(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore
) -> None:
    tensor, mask = put(records, store, random_tensor(3, 4)), put(records, store, random_tensor(1, 4) >= 0)
    job, _ = queue_job(records, "local", request(tensor, mask={"tensor_id": mask.id}))
    two_days_pass(configuration)
    assert tidied(configuration, keep_tensors_days=1) == []
    records.jobs.cancel("local", job.id)
    assert tidied(configuration, keep_tensors_days=1) == []
    two_days_pass(configuration)
    assert names(tidied(configuration, keep_tensors_days=1)) == {("tensor", tensor.id), ("tensor", mask.id)}


@pytest.mark.parametrize("use", ["initial", "fixed"])
def test_a_job_stays_while_a_live_one_needs_its_factors(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, jobs: JobOperations, use: str
) -> None:
    tensor = put(records, store, random_tensor(3, 4))
    first = finished(jobs, records, tensor)
    modes = {"modes": [1]} if use == "fixed" else {}
    second, _ = queue_job(records, "local", request(tensor, **{use: {"job_id": first.id, **modes}}))
    two_days_pass(configuration)
    assert tidied(configuration, keep_jobs_days=1) == []
    assert records.jobs.get("local", second.id).state == "queued"


def test_a_lookup_by_digest_keeps_the_tensor_that_it_finds(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore
) -> None:
    """Its caller will not upload it again, but name it in a job."""
    tensor = put(records, store, random_tensor(3, 4))
    two_days_pass(configuration)
    assert records.tensors.list("local", sha256=tensor.sha256).items == (tensor,)
    assert tidied(configuration, keep_tensors_days=1) == []


def test_a_submit_and_a_removal_at_the_same_moment_never_leave_a_job_without_its_tensor(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore
) -> None:
    """Either the job is refused, or the tensor stays."""
    outcomes = set()
    for round in range(60):
        tensor = put(records, store, random_tensor(3, 4, seed=round))
        two_days_pass(configuration)
        asked = configuration.model_copy(update={"keep_tensors_days": 1.0})
        start = threading.Barrier(2)

        def remove(asked: Configuration = asked, start: threading.Barrier = start) -> None:
            retention = Cleanup(ExecutionRecords.of(asked), LocalStore(asked.data), asked)
            start.wait()
            list(retention.run())

        thread = threading.Thread(target=remove)
        thread.start()
        start.wait()
        try:
            job, _ = queue_job(records, "local", request(tensor))
        except NotFound:
            outcomes.add("refused")
            thread.join()
            assert not store.tensor_path(tensor.sha256).exists()
        else:
            outcomes.add("taken")
            thread.join()
            assert records.tensors.get("local", tensor.id) == tensor
            assert store.open_tensor(tensor.sha256).shape == (3, 4)
            records.jobs.cancel("local", job.id)
    assert outcomes


def test_a_dry_run_reports_the_same_and_changes_nothing(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, jobs: JobOperations
) -> None:
    tensor = put(records, store, random_tensor(3, 4))
    finished(jobs, records, tensor)
    left = store.root / "jobs" / "gone"
    left.mkdir()
    (left / ".half").write_bytes(bytes(10))
    os.utime(left / ".half", (0, 0))
    two_days_pass(configuration)
    before = keys_left(configuration), sorted(files_left(store))
    reported = tidied(configuration, dry_run=True, keep_jobs_days=1, keep_tensors_days=1)
    assert (keys_left(configuration), sorted(files_left(store))) == before
    assert {one.kind for one in reported} == {"job", "tensor", "file"}
    assert tidied(configuration, keep_jobs_days=1, keep_tensors_days=1) == reported


def test_files_whose_deletion_was_cut_short_go_at_the_next_look(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, jobs: JobOperations
) -> None:
    """The records are deleted, and the one who would have removed the files has died."""
    tensor = put(records, store, random_tensor(3, 4))
    job = finished(jobs, records, tensor)
    records.jobs.delete("local", job.id)
    assert records.tensors.delete("local", tensor.id) == tensor.sha256
    assert len(files_left(store)) > 1
    assert names(tidied(configuration)) == {("file", f"jobs/{job.id}"), ("file", f"tensors/{tensor.sha256}")}
    assert files_left(store) == []


def test_an_empty_redis_removes_nothing(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, jobs: JobOperations
) -> None:
    """A wrong address must not cost a lab its results."""
    finished(jobs, records, put(records, store, random_tensor(3, 4)))
    files = files_left(store)
    with connect(configuration) as client:
        client.flushall()
    assert tidied(configuration, keep_jobs_days=0, keep_tensors_days=0) == []
    assert files_left(store) == files


def test_bytes_uploaded_again_after_a_deletion_stay(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore
) -> None:
    first = put(records, store, random_tensor(3, 4))
    records.tensors.delete("local", first.id)
    again = put(records, store, random_tensor(3, 4))
    assert tidied(configuration) == []
    assert store.open_tensor(again.sha256).shape == (3, 4)


def test_half_written_files_of_a_living_attempt_stay(configuration: Configuration, store: LocalStore) -> None:
    folder = store.root / "jobs" / "running"
    folder.mkdir()
    (folder / ".checkpoint").write_bytes(b"being written")
    assert tidied(configuration) == []
    os.utime(folder / ".checkpoint", (0, 0))
    assert names(tidied(configuration)) == {("file", "jobs/running/.checkpoint")}
    assert files_left(store) == []


@pytest.mark.parametrize("has_ended", [True, False])
def test_late_files_of_a_killed_attempt_go_once_their_job_has_ended(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, jobs: JobOperations, has_ended: bool
) -> None:
    tensor = put(records, store, random_tensor(3, 4))
    job, _ = queue_job(records, "local", request(tensor, stop={"max_iterations": 2}))
    claim = records.claims.claim("worker")
    assert claim is not None
    *_, state = sweeps(random_tensor(3, 4), claim.settings)
    files, result = store.job(job.id), JobResult.from_state(state)
    files.save_factors(2, state, result)
    if has_ended:
        assert records.claims.succeed(claim, result)
        jobs.settle(job.id)
    before = set(files_left(store))
    late = files.save_checkpoint(1, state)
    files.save_factors(1, state, result)
    after = set(files_left(store))
    expected = {("file", f"jobs/{job.id}/{late}"), ("file", f"jobs/{job.id}/factors-1")} if has_ended else set()
    assert names(tidied(configuration, dry_run=True)) == expected
    assert set(files_left(store)) == after
    assert names(tidied(configuration)) == expected
    assert set(files_left(store)) == (before if has_ended else after)


def test_a_worker_tidies_by_itself(configuration: Configuration, records: ExecutionRecords, store: LocalStore) -> None:
    tensor = put(records, store, random_tensor(6, 5, 4))
    kept = {"keep_jobs_days": 0.0, "keep_tensors_days": 0.0, "tidy_seconds": 0.2, "lease_seconds": 3.0}
    queue_job(records, "local", request(tensor, stop={"max_iterations": 5}))
    with worker(configuration.model_copy(update=kept)):
        wait_for(
            lambda: not records.jobs.list("local").items and not records.tensors.list("local").items, what="both to go"
        )
        wait_for(lambda: not files_left(store), what="the files to go")


def test_a_second_worker_leaves_it_to_the_first(records: ExecutionRecords) -> None:
    assert records.expired.acquire_cleanup_turn("one", 30)
    assert not records.expired.acquire_cleanup_turn("another", 30)

"""Usage is counted with every change, and no race exceeds a limit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Axis, JobCounts, JobError, TensorRecord
from sparse_ncp.worker.errors import QuotaReached, StoreFull, TooManyJobs, TooManyLabels
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.reservations import Reservation
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records import uploads
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from tests.support.jobs import put, queue_job, random_tensor, request, row
from tests.support.stack import wait_for

RACERS = 16
FAILURE = JobError(kind="system", message="it failed", remedy="none")


def granted(act: Callable[[int], object], refusal: type[Exception]) -> int:
    """How many of many racing threads got through."""
    together = threading.Barrier(RACERS)

    def attempt(number: int) -> bool:
        together.wait()
        try:
            act(number)
        except refusal:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        return sum(pool.map(attempt, range(RACERS)))


def counted(records: ExecutionRecords) -> JobCounts:
    return records.stats.usage("local").jobs


def test_racing_submissions_never_pass_the_limit_of_live_jobs(records: ExecutionRecords, tensor: TensorRecord) -> None:
    limits = Limits(live_jobs=5)
    assert granted(lambda _: queue_job(records, "local", request(tensor), None, limits), TooManyJobs) == 5
    assert records.claims.claim("w") is not None  # a running job counts as well
    with pytest.raises(TooManyJobs, match="5 jobs"):
        queue_job(records, "local", request(tensor), None, limits)
    assert (counted(records).queued, counted(records).running) == (4, 1)


def test_a_job_that_ends_makes_room_for_another(records: ExecutionRecords, tensor: TensorRecord) -> None:
    limits = Limits(live_jobs=1)
    job, _ = queue_job(records, "local", request(tensor), None, limits)
    with pytest.raises(TooManyJobs):
        queue_job(records, "local", request(tensor), None, limits)
    records.jobs.cancel("local", job.id)
    queue_job(records, "local", request(tensor), None, limits)


def test_the_limit_is_each_owners_own(records: ExecutionRecords, store: LocalStore, tensor: TensorRecord) -> None:
    queue_job(records, "local", request(tensor), None, Limits(live_jobs=1))
    theirs = put(records, store, random_tensor(4, 5), "ann")
    queue_job(records, "ann", request(theirs), None, Limits(live_jobs=1))


def test_a_replay_needs_no_room(records: ExecutionRecords, tensor: TensorRecord) -> None:
    job, _ = queue_job(records, "local", request(tensor), "key", Limits(live_jobs=1))
    again, replayed = queue_job(records, "local", request(tensor), "key", Limits(live_jobs=1, stored_bytes=1))
    assert (again.id, replayed) == (job.id, True)


def test_racing_uploads_never_pass_the_limit_of_bytes(records: ExecutionRecords, tensor: TensorRecord) -> None:
    limits = Limits(stored_bytes=4 * tensor.nbytes)

    def add(number: int) -> None:
        records.tensors.add(tensor.model_copy(update={"id": f"another {number}"}), limits)

    assert granted(add, QuotaReached) == 3
    assert records.stats.usage("local").stored_bytes == 4 * tensor.nbytes
    with pytest.raises(QuotaReached):
        queue_job(records, "local", request(tensor), None, limits)  # there is no room for its result
    records.tensors.delete("local", "another 0") if _has(records, "another 0") else records.tensors.delete(
        "local", tensor.id
    )
    assert records.stats.usage("local").stored_bytes == 3 * tensor.nbytes


def _has(records: ExecutionRecords, id: str) -> bool:
    return id in {record.id for record in records.tensors.list("local").items}


def test_jobs_are_counted_by_state_and_their_seconds_for_good(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    made = [queue_job(records, "local", request(tensor))[0] for _ in range(3)]
    claim = records.claims.claim("w")
    assert claim is not None
    records.claims.publish(claim, [row(1), row(200)])
    assert records.stats.usage("local").computing_seconds == pytest.approx(2.0)
    records.claims.renew(claim, 3.5)  # some of it was lost in an attempt that died
    assert records.stats.usage("local").computing_seconds == pytest.approx(3.5)
    records.claims.fail(claim, FAILURE)
    records.jobs.cancel("local", made[1].id)
    assert counted(records) == JobCounts(queued=1, running=0, succeeded=0, failed=1, cancelled=1)
    for job in made[:2]:
        jobs.settle(job.id)
        records.jobs.delete("local", job.id)
    assert counted(records) == JobCounts(queued=1, running=0, succeeded=0, failed=0, cancelled=0)
    assert records.stats.usage("local").computing_seconds == pytest.approx(3.5)
    assert records.stats.usage("unknown").computing_seconds == 0


def test_results_count_until_they_are_deleted(
    records: ExecutionRecords, store: LocalStore, tensor: TensorRecord, jobs: JobOperations
) -> None:
    job, _ = queue_job(records, "local", request(tensor))
    records.jobs.cancel("local", job.id)
    assert records.stats.usage("local").result_bytes == 0
    for _ in range(2):  # a second time changes nothing
        jobs.settle(job.id)
        usage = records.stats.usage("local")
        assert usage.result_bytes == store.job(job.id).nbytes() > 0
    assert usage.stored_bytes == usage.result_bytes + tensor.nbytes
    records.jobs.delete("local", job.id)
    assert records.stats.usage("local").result_bytes == 0


def test_labels_are_bounded_and_count_as_long_as_a_tensor_or_job_has_them(
    records: ExecutionRecords, store: LocalStore, jobs: JobOperations, tensor: TensorRecord
) -> None:
    def label(record: TensorRecord, name: str) -> int:
        axes = tuple(Axis(name=name * 100, unit=None, values=[*range(length)]) for length in record.shape)
        records.tensors.set_axes("local", record.id, axes, limits)
        return records.stats.usage("local").label_bytes

    limits, other = Limits(label_bytes=1100), put(records, store, random_tensor(4, 5, 6))
    once = label(tensor, "x")
    assert 300 < once < 550
    assert label(other, "x") == once
    job, _ = queue_job(records, "local", request(tensor))
    assert label(tensor, "y") == label(other, "y") == 2 * once  # the job has the former ones
    with pytest.raises(TooManyLabels, match=f"{2 * once} of at most 1100 bytes"):
        label(other, "z")
    records.jobs.cancel("local", job.id)
    jobs.delete("local", job.id)
    assert records.stats.usage("local").label_bytes == once
    assert label(other, "z") == 2 * once
    for id in (tensor.id, other.id):
        records.tensors.delete("local", id)
    assert records.stats.usage("local").label_bytes == 0


def test_a_job_without_a_time_limit_gets_the_ceiling(records: ExecutionRecords, tensor: TensorRecord) -> None:
    limits = Limits(job_seconds=60)
    asked = request(tensor, stop={"max_seconds": 5})
    assert queue_job(records, "local", asked, None, limits)[0].settings.stop.max_seconds == 5
    assert queue_job(records, "local", request(tensor), "key", limits)[0].settings.stop.max_seconds == 60
    again, replayed = queue_job(records, "local", request(tensor), "key", Limits(job_seconds=30))
    assert replayed
    assert again.settings.stop.max_seconds == 60


def test_requests_are_granted_up_to_the_quota_and_again_as_time_passes(records: ExecutionRecords) -> None:
    taken = [records.stats.take_request_token("local", 0.5) for _ in range(6)]
    assert [one.granted for one in taken] == [True] * 5 + [False]
    assert [one.left for one in taken] == [4, 3, 2, 1, 0, 0]
    assert {(one.quota, one.window_seconds) for one in taken} == {(5, 10)}
    assert all(1 <= one.wait_seconds <= 2 for one in taken)
    assert records.stats.take_request_token("ann", 0.5).granted
    assert wait_for(lambda: records.stats.take_request_token("local", 0.5).granted, 10, "another request to be granted")


def test_racing_requests_never_pass_the_quota(records: ExecutionRecords) -> None:
    class Denied(Exception):
        pass

    def ask(_: int) -> None:
        if not records.stats.take_request_token("local", 0.8).granted:
            raise Denied

    assert granted(ask, Denied) == 8


def test_counting_requests_costs_no_write_to_the_disk(records: ExecutionRecords, configuration: Configuration) -> None:
    with connect(configuration) as client:
        records.stats.take_request_token("local", 1000)
        before = client.info("persistence")["aof_current_size"]
        for _ in range(50):
            records.stats.take_request_token("local", 1000)
        assert client.info("persistence")["aof_current_size"] == before
        assert client.pttl("ncp:rate:local") > 0


class SmallDisk(LocalStore):
    free = 100 << 20

    def free_bytes(self) -> int:
        return self.free


def test_uploads_of_several_apis_reserve_the_disk_together(configuration: Configuration) -> None:
    store, megabyte = SmallDisk(configuration.data), 1 << 20
    one, two, late = (
        Reservation(Records.of(configuration), store, owner, UNLIMITED, 10 * megabyte) for owner in ("a", "b", "c")
    )
    one.reserve(60 * megabyte, 0)
    with pytest.raises(StoreFull):
        two.reserve(31 * megabyte, 0)
    two.reserve(20 * megabyte, 0)
    SmallDisk.free -= 40 * megabyte
    one.reserve(60 * megabyte, 40 * megabyte)  # what was written is no longer free, and no longer reserved
    late.reserve(10 * megabyte, 0)
    with pytest.raises(StoreFull):
        late.reserve(11 * megabyte, 0)
    two.release()
    late.reserve(30 * megabyte, 0)


def test_a_reservation_ends_with_the_api_that_held_it(
    configuration: Configuration, records: ExecutionRecords, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "EXPIRY_SECONDS", 0.2)
    limits = Limits(stored_bytes=100)
    Reservation(records, store, "ann", limits, 0).reserve(60, 0)
    other = Reservation(records, store, "ann", limits, 0)

    def is_covered() -> bool:
        try:
            other.reserve(60, 0)
        except QuotaReached:
            return False
        return True

    assert not is_covered()
    wait_for(is_covered, 10, "the first to run out")


def test_an_upload_of_unknown_length_reserves_ahead_and_takes_the_last_byte_of_a_quota(
    records: ExecutionRecords, store: LocalStore
) -> None:
    limits = Limits(stored_bytes=3 << 20)
    chunked = Reservation(records, store, "ann", limits, 0)
    for megabytes in (1, 2, 3):
        chunked.reserve(megabytes << 20, (megabytes - 1) << 20)
    with pytest.raises(QuotaReached):
        chunked.reserve((3 << 20) + 1, 3 << 20)

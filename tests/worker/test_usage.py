"""What owners have taken is counted with every change, and no race overruns a limit."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.stack import wait_for
from tests.worker.lab import put, random_tensor, request, row
from worker.configuration import Configuration
from worker.contract import JobError, TensorRecord
from worker.errors import QuotaReached, TooManyJobs
from worker.limits import JobCounts, Limits
from worker.link import connect
from worker.records import Records
from worker.store import Store

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


def counted(records: Records) -> JobCounts:
    return records.usage("local").jobs


def test_racing_submissions_never_pass_the_limit_of_live_jobs(records: Records, tensor: TensorRecord) -> None:
    limits = Limits(live_jobs=5)
    assert granted(lambda _: records.submit("local", request(tensor), None, limits), TooManyJobs) == 5
    assert records.claim("w") is not None  # a running job counts as well
    with pytest.raises(TooManyJobs, match="5 jobs"):
        records.submit("local", request(tensor), None, limits)
    assert (counted(records).queued, counted(records).running) == (4, 1)


def test_a_job_that_ends_makes_room_for_another(records: Records, tensor: TensorRecord) -> None:
    limits = Limits(live_jobs=1)
    job, _ = records.submit("local", request(tensor), None, limits)
    with pytest.raises(TooManyJobs):
        records.submit("local", request(tensor), None, limits)
    records.cancel("local", job.id)
    records.submit("local", request(tensor), None, limits)


def test_the_limit_is_each_owners_own(records: Records, store: Store, tensor: TensorRecord) -> None:
    records.submit("local", request(tensor), None, Limits(live_jobs=1))
    theirs = put(records, store, random_tensor(4, 5), "ann")
    records.submit("ann", request(theirs), None, Limits(live_jobs=1))


def test_a_replay_needs_no_room(records: Records, tensor: TensorRecord) -> None:
    job, _ = records.submit("local", request(tensor), "key", Limits(live_jobs=1))
    again, replayed = records.submit("local", request(tensor), "key", Limits(live_jobs=1, stored_bytes=1))
    assert (again.id, replayed) == (job.id, True)


def test_racing_uploads_never_pass_the_limit_of_bytes(records: Records, tensor: TensorRecord) -> None:
    limits = Limits(stored_bytes=4 * tensor.nbytes)

    def add(number: int) -> None:
        records.add_tensor(tensor.model_copy(update={"id": f"another {number}"}), limits)

    assert granted(add, QuotaReached) == 3
    assert records.usage("local").stored_bytes == 4 * tensor.nbytes
    with pytest.raises(QuotaReached):
        records.submit("local", request(tensor), None, limits)  # there is no room for its result
    records.delete_tensor("local", "another 0") if _has(records, "another 0") else records.delete_tensor(
        "local", tensor.id
    )
    assert records.usage("local").stored_bytes == 3 * tensor.nbytes


def _has(records: Records, id: str) -> bool:
    return id in {record.id for record in records.tensors("local").items}


def test_jobs_are_counted_by_state_and_their_seconds_for_good(records: Records, tensor: TensorRecord) -> None:
    jobs = [records.submit("local", request(tensor))[0] for _ in range(3)]
    claim = records.claim("w")
    assert claim is not None
    records.publish(claim, [row(1), row(200)])
    assert records.usage("local").computing_seconds == pytest.approx(2.0)
    records.renew(claim, 3.5)  # some of it was lost in an attempt that died
    assert records.usage("local").computing_seconds == pytest.approx(3.5)
    records.fail(claim, FAILURE)
    records.cancel("local", jobs[1].id)
    assert counted(records) == JobCounts(queued=1, running=0, succeeded=0, failed=1, cancelled=1)
    for job in jobs[:2]:
        records.settle(job.id)
        records.delete_job("local", job.id)
    assert counted(records) == JobCounts(queued=1, running=0, succeeded=0, failed=0, cancelled=0)
    assert records.usage("local").computing_seconds == pytest.approx(3.5)
    assert records.usage("nobody").computing_seconds == 0


def test_results_count_until_they_are_deleted(records: Records, store: Store, tensor: TensorRecord) -> None:
    job, _ = records.submit("local", request(tensor))
    records.cancel("local", job.id)
    assert records.usage("local").result_bytes == 0
    for _ in range(2):  # a second time changes nothing
        records.settle(job.id)
        usage = records.usage("local")
        assert usage.result_bytes == store.job(job.id).nbytes() > 0
    assert usage.stored_bytes == usage.result_bytes + tensor.nbytes
    records.delete_job("local", job.id)
    assert records.usage("local").result_bytes == 0


def test_a_job_without_a_time_limit_gets_the_ceiling(records: Records, tensor: TensorRecord) -> None:
    limits = Limits(job_seconds=60)
    asked = request(tensor, stop={"max_seconds": 5})
    assert records.submit("local", asked, None, limits)[0].settings.stop.max_seconds == 5
    assert records.submit("local", request(tensor), "key", limits)[0].settings.stop.max_seconds == 60
    again, replayed = records.submit("local", request(tensor), "key", Limits(job_seconds=30))
    assert replayed
    assert again.settings.stop.max_seconds == 60


def test_requests_are_granted_up_to_the_quota_and_again_as_time_passes(records: Records) -> None:
    taken = [records.take_request("local", 0.5) for _ in range(6)]
    assert [one.granted for one in taken] == [True] * 5 + [False]
    assert [one.left for one in taken] == [4, 3, 2, 1, 0, 0]
    assert {(one.quota, one.window_seconds) for one in taken} == {(5, 10)}
    assert all(1 <= one.wait_seconds <= 2 for one in taken)
    assert records.take_request("ann", 0.5).granted
    assert wait_for(lambda: records.take_request("local", 0.5).granted, 10, "another request to be granted")


def test_racing_requests_never_pass_the_quota(records: Records) -> None:
    class Denied(Exception):
        pass

    def ask(_: int) -> None:
        if not records.take_request("local", 0.8).granted:
            raise Denied

    assert granted(ask, Denied) == 8


def test_counting_requests_costs_no_write_to_the_disk(records: Records, configuration: Configuration) -> None:
    with connect(configuration) as client:
        records.take_request("local", 1000)
        before = client.info("persistence")["aof_current_size"]
        for _ in range(50):
            records.take_request("local", 1000)
        assert client.info("persistence")["aof_current_size"] == before
        assert client.pttl("ncp:rate:local") > 0

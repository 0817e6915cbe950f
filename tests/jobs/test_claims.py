"""Claims: one at a time for each job, in a fair order; only the newest one can write, and no job ends twice."""

import json
from collections.abc import Callable
from functools import partial

import pytest

from sparse_ncp.solvers.metrics import NonzeroComponents, Sparsity
from sparse_ncp.worker.broker import QUEUE, TASK, pending_wakeups, wake_worker
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Axis, Claim, Job, JobError, JobResult, Preparation, TensorRecord
from sparse_ncp.worker.execution import sinks
from sparse_ncp.worker.execution.heartbeat import Heartbeat
from sparse_ncp.worker.execution.reaper import Reaper
from sparse_ncp.worker.execution.sinks import LiveSink
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection, connect
from sparse_ncp.worker.store.local import LocalStore
from tests.support.jobs import calm_reaper, put, queue_job, random_tensor, request, row
from tests.support.stack import wait_for

ERROR = JobError(kind="input", message="no", remedy="yes")
RESULT = JobResult(
    objective=1.0,
    relative_error=0.1,
    fit=0.9,
    iterations=3,
    seconds=0.5,
    stop_reason="tolerance",
    sparsity=Sparsity(per_mode=(0.5,), relative_per_mode=(0.5,)),
    nonzero_components=NonzeroComponents(per_mode=(1,), all_modes=1),
    weights=(1.0,),
    warnings=(),
)


def claimed(records: ExecutionRecords) -> Claim:
    claim = records.claims.claim("worker")
    assert claim is not None
    return claim


def now(records: ExecutionRecords, job: Job) -> Job:
    return records.jobs.get(job.owner, job.id)


@pytest.fixture
def job(records: ExecutionRecords, tensor: TensorRecord) -> Job:
    return queue_job(records, "local", request(tensor))[0]


@pytest.fixture
def short_lease_records(configuration: Configuration) -> ExecutionRecords:
    """Leases of a few milliseconds."""
    return ExecutionRecords.of(configuration.model_copy(update={"lease_seconds": 0.02}))


def test_every_attempt_has_the_labels_of_when_the_job_was_submitted(
    records: ExecutionRecords, tensor: TensorRecord
) -> None:
    first, later = (
        tuple(Axis(name=f"{word} {mode}", values=tuple(range(length))) for mode, length in enumerate(tensor.shape))
        for word in ("first", "later")
    )
    records.tensors.set_axes("local", tensor.id, first)
    queue_job(records, "local", request(tensor))
    records.tensors.set_axes("local", tensor.id, later)
    claim = claimed(records)
    assert claim.axes == first
    assert records.claims.hand_back(claim)
    assert claimed(records).axes == first


def test_a_job_is_claimed_once(records: ExecutionRecords, job: Job) -> None:
    claim = claimed(records)
    assert (claim.job_id, claim.fence, claim.attempt) == (job.id, 1, 1)
    assert records.claims.claim("another") is None
    running = now(records, job)
    assert (running.state, running.attempt) == ("running", 1)
    assert running.started_at is not None


def test_a_running_job_publishes_its_phase(records: ExecutionRecords, job: Job) -> None:
    assert now(records, job).phase is None
    claim = claimed(records)
    assert now(records, job).phase == "preparing"
    records.claims.publish(claim, [row(1).model_copy(update={"phase": "start"})])
    assert now(records, job).phase == "start"
    assert records.claims.publish_diagnosing(claim)
    assert now(records, job).phase == "diagnosing"
    records.claims.hand_back(claim)
    assert now(records, job).phase is None
    assert not records.claims.publish_diagnosing(claim)
    again = claimed(records)
    assert now(records, job).phase == "start"
    records.claims.succeed(again, RESULT)
    assert now(records, job).phase is None


def test_owners_share_one_worker(records: ExecutionRecords, store: LocalStore) -> None:
    """The owner with the lower account is next: after the first job of each, a millisecond decides."""
    tensors = {owner: put(records, store, random_tensor(3, 3), owner) for owner in ("ann", "bob")}
    for owner in ("ann", "ann", "ann", "bob", "bob"):
        queue_job(records, owner, request(tensors[owner]))
    served = []
    for _ in range(5):
        lowest = next(share.owner for share in records.owners.shares() if share.queued)
        claim = claimed(records)
        assert claim.owner == lowest
        served.append(claim.owner)
        records.claims.succeed(claim, RESULT)
    assert sorted(served[:2]) == ["ann", "bob"]
    assert sorted(served) == ["ann", "ann", "ann", "bob", "bob"]


def test_the_owner_with_fewer_running_jobs_comes_first(records: ExecutionRecords, store: LocalStore) -> None:
    tensors = {owner: put(records, store, random_tensor(3, 3), owner) for owner in ("ann", "bob")}
    for owner in ("ann", "ann", "ann"):
        queue_job(records, owner, request(tensors[owner]))
    assert [claimed(records).owner for _ in range(2)] == ["ann", "ann"]
    queue_job(records, "bob", request(tensors["bob"]))
    assert [claimed(records).owner for _ in range(2)] == ["bob", "ann"]


def test_higher_priority_then_age_decide_within_an_owner(records: ExecutionRecords, tensor: TensorRecord) -> None:
    jobs = {p: queue_job(records, "local", request(tensor, priority=p))[0].id for p in (0, -10, 10)}
    late = queue_job(records, "local", request(tensor))[0].id
    assert [claimed(records).job_id for _ in range(4)] == [jobs[10], jobs[0], late, jobs[-10]]


WRITES: dict[str, Callable[[ExecutionRecords, Claim], object]] = {
    "renew": lambda records, claim: records.claims.renew(claim) != "lost",
    "publish": lambda records, claim: records.claims.publish(claim, [row(1)]) != "lost",
    "checkpointed": lambda records, claim: records.claims.save_checkpoint(claim, "name", 1),
    "diagnosing": lambda records, claim: records.claims.publish_diagnosing(claim),
    "succeed": lambda records, claim: records.claims.succeed(claim, RESULT),
    "cancelled": lambda records, claim: records.claims.cancel(claim, RESULT),
    "fail": lambda records, claim: records.claims.fail(claim, ERROR),
    "hand_back": lambda records, claim: records.claims.hand_back(claim),
    "crashed": lambda records, claim: records.claims.crash(claim, "it was killed"),
}


@pytest.mark.parametrize("write", WRITES)
def test_an_older_claim_changes_nothing(records: ExecutionRecords, job: Job, write: str, jobs: JobOperations) -> None:
    old = claimed(records)
    records.claims.hand_back(old)
    assert not WRITES[write](records, old)
    claimed(records)
    before, events = now(records, job), jobs.events_after(job.id)
    assert not WRITES[write](records, old)
    assert now(records, job) == before
    assert jobs.events_after(job.id) == events


@pytest.mark.parametrize("end", ["succeed", "cancelled", "fail"])
@pytest.mark.parametrize("write", WRITES)
def test_the_end_is_the_end(records: ExecutionRecords, job: Job, end: str, write: str, jobs: JobOperations) -> None:
    claim = claimed(records)
    assert WRITES[end](records, claim)
    before, events = now(records, job), jobs.events_after(job.id)
    WRITES[write](records, claim)
    assert now(records, job) == before
    assert records.jobs.cancel("local", job.id) == before
    assert jobs.events_after(job.id) == events
    assert records.leases.reap(everything=True) == []
    assert records.claims.claim("worker") is None


def test_the_same_end_may_be_reported_twice(records: ExecutionRecords, job: Job) -> None:
    claim = claimed(records)
    assert records.claims.succeed(claim, RESULT)
    assert records.claims.succeed(claim, RESULT)
    assert now(records, job).result == RESULT


def test_a_running_job_learns_that_it_was_cancelled(records: ExecutionRecords, job: Job) -> None:
    claim = claimed(records)
    assert records.claims.renew(claim) == "held"
    asked = records.jobs.cancel("local", job.id)
    assert (asked.state, asked.cancel_requested) == ("running", True)
    assert records.claims.renew(claim) == "cancel_requested"
    assert records.claims.publish(claim, []) == "cancel_requested"
    assert records.claims.cancel(claim, RESULT)
    assert now(records, job).state == "cancelled"


def test_handing_back_costs_no_attempt(records: ExecutionRecords, job: Job) -> None:
    first = claimed(records)
    records.claims.save_checkpoint(first, "name", 7)
    assert records.claims.hand_back(first)
    assert (now(records, job).state, now(records, job).attempt) == ("queued", 0)
    second = claimed(records)
    assert (second.fence, second.attempt, second.checkpoint) == (2, 1, "name")


def test_a_cancelled_job_that_is_handed_back_or_dies_ends(records: ExecutionRecords, tensor: TensorRecord) -> None:
    for leave in (records.claims.hand_back, lambda claim: records.claims.crash(claim, "it was killed")):
        job, _ = queue_job(records, "local", request(tensor))
        claim = claimed(records)
        records.jobs.cancel("local", job.id)
        leave(claim)
        assert now(records, job).state == "cancelled"


def test_a_silent_worker_loses_its_job_and_a_renewed_lease_does_not(
    short_lease_records: ExecutionRecords, records: ExecutionRecords, job: Job
) -> None:
    claim = claimed(short_lease_records)
    assert records.claims.renew(claim) == "held"  # a long lease now
    assert records.leases.reap() == []
    assert short_lease_records.claims.renew(claim) == "held"
    assert wait_for(records.leases.reap) == [job.id]
    assert now(records, job).state == "queued"
    assert records.claims.renew(claim) == "lost"
    assert claimed(records).attempt == 2


def test_a_job_that_dies_three_times_without_advancing_fails(records: ExecutionRecords, job: Job) -> None:
    for _ in range(3):
        assert now(records, job).state == "queued"
        records.claims.crash(claimed(records), "its process was killed by SIGKILL")
    failed = now(records, job)
    assert (failed.state, failed.attempt) == ("failed", 3)
    assert failed.error is not None
    assert failed.error.kind == "system"
    assert "keeps dying" in failed.error.message
    assert "SIGKILL" in failed.error.message


def test_the_number_of_crashes_after_which_a_job_fails_is_a_setting(configuration: Configuration, job: Job) -> None:
    records = ExecutionRecords.of(configuration.model_copy(update={"max_crashes": 1}))
    records.claims.crash(claimed(records), "its process was killed by SIGKILL")
    assert now(records, job).state == "failed"


def test_a_crash_after_a_long_attempt_counts_as_a_third(configuration: Configuration, job: Job) -> None:
    records = ExecutionRecords.of(configuration.model_copy(update={"max_crashes": 1, "long_attempt_seconds": 2.0}))
    for attempt in range(1, 4):
        assert now(records, job).state == "queued"
        claim = claimed(records)
        records.claims.renew(claim, 3.0 * attempt)
        records.claims.crash(claim, "its process was killed by SIGKILL")
    assert now(records, job).state == "failed"


def test_a_job_that_advances_may_die_often(records: ExecutionRecords, job: Job) -> None:
    for iteration in range(1, 7):
        claim = claimed(records)
        records.claims.publish(claim, [row(iteration)])
        records.claims.crash(claim, "it was killed")
    assert now(records, job).state == "queued"
    assert now(records, job).attempt == 6


def test_nothing_is_reaped_until_a_lease_after_redis_came_back(
    configuration: Configuration, short_lease_records: ExecutionRecords, records: ExecutionRecords, job: Job
) -> None:
    """A reaper that has not seen this Redis for a whole lease must not act."""
    claimed(short_lease_records)
    patient = Reaper(configuration.model_copy(update={"lease_seconds": 10_000.0}), "patient")
    patient.reap()
    assert now(records, job).state == "running"


def test_a_reaper_that_was_cut_off_waits_for_a_lease(
    configuration: Configuration, records: ExecutionRecords, job: Job
) -> None:
    """As after an outage of Redis, or a machine that slept: those who live renew first."""
    short = configuration.model_copy(update={"lease_seconds": 0.5})
    reaper = calm_reaper(short)
    claimed(ExecutionRecords.of(short))
    wait_for(lambda: ExecutionRecords.of(short).workers.live_count() == 0, what="the lease to run out")
    reaper.reap()
    assert now(records, job).state == "running"

    def taken_back() -> bool:
        reaper.reap()
        return now(records, job).state == "queued"

    wait_for(taken_back)


def test_a_clock_that_was_set_back_delays_jobs_by_a_few_leases_at_most(
    configuration: Configuration, short_lease_records: ExecutionRecords, records: ExecutionRecords, job: Job
) -> None:
    """The lease was given by the time of before; then its worker died."""
    claimed(records)
    with connect(configuration) as redis:
        redis.zincrby("ncp:leases", 3_600_000, job.id)
    assert short_lease_records.leases.reap() == []
    assert wait_for(short_lease_records.leases.reap) == [job.id]


def test_a_clock_that_was_set_forward_takes_no_job_from_a_living_worker(
    configuration: Configuration, records: ExecutionRecords, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All leases seem to have run out at once: those who live renew first."""
    short = configuration.model_copy(update={"lease_seconds": 1.0})
    reaper = calm_reaper(short)
    claim = claimed(ExecutionRecords.of(short))
    reaper.reap()
    heartbeat = reaper._records.leases.heartbeat
    monkeypatch.setattr(reaper._records.leases, "heartbeat", lambda *worker: heartbeat(*worker) + 3_600_000)
    reaper.reap()
    assert now(records, job).state == "running"
    assert records.claims.renew(claim) == "held"


def test_a_reaper_repeats_a_lost_call_once_and_settles_ended_jobs(
    configuration: Configuration, records: ExecutionRecords, job: Job, tensor: TensorRecord
) -> None:
    gone, _ = queue_job(records, "local", request(tensor))
    records.jobs.cancel("local", gone.id)
    reaper = Reaper(configuration, "reaper")
    reaper.reap()
    reaper.reap()
    assert pending_wakeups(configuration) == 1
    assert records.jobs.unsettled() == []
    assert records.workers.live_count() == 1
    reaper.end()
    assert records.workers.live_count() == 0


@pytest.mark.usefixtures("job")
def test_the_next_claim_knows_what_the_last_one_has_spent(records: ExecutionRecords) -> None:
    """The larger of the times of its last heartbeat and of its last iteration counts."""
    first = claimed(records)
    assert first.spent_seconds == 0
    records.claims.renew(first, 7.5)
    records.claims.renew(first, 7.0)
    records.claims.crash(first, "killed")
    second = claimed(records)
    assert second.spent_seconds == 7.5
    records.claims.publish(second, [row(900)])
    records.claims.crash(second, "killed")
    assert claimed(records).spent_seconds == row(900).seconds


def test_a_claim_can_be_looked_at_without_renewing_it(
    records: ExecutionRecords, short_lease_records: ExecutionRecords, job: Job
) -> None:
    claim = short_lease_records.claims.claim("worker")
    assert claim is not None
    assert records.claims.status(claim) == "held"
    records.jobs.cancel("local", job.id)
    assert records.claims.status(claim) == "cancel_requested"
    wait_for(short_lease_records.leases.reap, what="the lease to run out")
    assert records.claims.status(claim) == "lost"


def _prepares(records: ExecutionRecords, job: Job, step: Preparation) -> bool:
    return now(records, job).preparing == step


def test_a_preparation_is_published_while_it_lasts(
    configuration: Configuration, records: ExecutionRecords, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its end at once, also where no iteration is published: a later attempt repeats what readers have seen."""
    monkeypatch.setattr(sinks, "PREPARATION_SECONDS", 0.0)
    claim = claimed(records)
    heartbeat = Heartbeat(records.claims, claim, configuration)
    with LiveSink(records.claims, claim, heartbeat) as publisher:
        for step in (Preparation(step="check", share=0.5), Preparation(step="sweep", share=0.0)):
            publisher.publish_preparation(step)
            wait_for(partial(_prepares, records, job, step), what="the step")
            assert now(records, job).phase == "preparing"
        publisher.publish_preparation(None)
        wait_for(lambda: now(records, job).preparing is None, what="its end")


def test_a_preparation_ends_with_its_attempt(records: ExecutionRecords, job: Job) -> None:
    claim = claimed(records)
    assert records.claims.publish_preparation(claim, Preparation(step="check", share=0.5))
    assert records.claims.fail(claim, ERROR)
    assert not records.claims.publish_preparation(claim, Preparation(step="check", share=0.6))
    assert (now(records, job).preparing, now(records, job).phase) == (None, None)


def test_neither_messages_nor_records_name_a_module(
    configuration: Configuration, records: ExecutionRecords, job: Job
) -> None:
    """A later release, whose modules may have other names, reads them."""
    redis = RedisConnection.of(configuration)
    wake_worker(configuration)
    (message,) = redis.command("LRANGE", keys.BROKER + QUEUE, 0, -1)
    assert json.loads(message)["headers"]["task"] == TASK
    claim = claimed(records)
    records.claims.publish(claim, [row(1)])
    assert records.claims.succeed(claim, RESULT)
    stored = json.dumps([message, redis.command("HGETALL", keys.job(job.id))])
    assert [name for name in ("sparse_ncp", "solvers.", "worker.", "app.") if name in stored] == []

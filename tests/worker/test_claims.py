"""A job is run by one claim at a time, fairly; only the newest claim can write, and the end is the end."""

from collections.abc import Callable

import pytest

from tests.stack import wait_for
from tests.worker.lab import put, random_tensor, request, row
from worker.configuration import Configuration
from worker.contract import Claim, ComponentCounts, Job, JobError, JobResult, SparsityShares, TensorRecord
from worker.reaper import Reaper
from worker.records import Records
from worker.store import Store
from worker.wake import calls_waiting

ERROR = JobError(kind="input", message="no", remedy="yes")
RESULT = JobResult(
    objective=1.0,
    relative_error=0.1,
    fit=0.9,
    iterations=3,
    seconds=0.5,
    stop_reason="tolerance",
    sparsity=SparsityShares(per_mode=(0.5,), relative_per_mode=(0.5,)),
    nonzero_components=ComponentCounts(per_mode=(1,), all_modes=1),
    weights=(1.0,),
    warnings=(),
)


def claimed(records: Records) -> Claim:
    claim = records.claim("worker")
    assert claim is not None
    return claim


def now(records: Records, job: Job) -> Job:
    return records.job(job.owner, job.id)


@pytest.fixture
def job(records: Records, tensor: TensorRecord) -> Job:
    return records.submit("local", request(tensor))[0]


@pytest.fixture
def hasty(configuration: Configuration) -> Records:
    """Leases of a few milliseconds."""
    return Records.of(configuration.model_copy(update={"lease_seconds": 0.02}))


def test_a_job_is_claimed_once(records: Records, job: Job) -> None:
    claim = claimed(records)
    assert (claim.job_id, claim.fence, claim.attempt) == (job.id, 1, 1)
    assert records.claim("another") is None
    running = now(records, job)
    assert (running.state, running.attempt) == ("running", 1)
    assert running.started_at is not None


def test_owners_take_turns_on_one_worker(records: Records, store: Store) -> None:
    tensors = {owner: put(records, store, random_tensor(3, 3), owner) for owner in ("ann", "bob")}
    for owner in ("ann", "ann", "ann", "bob", "bob"):
        records.submit(owner, request(tensors[owner]))
    served = []
    for _ in range(5):
        claim = claimed(records)
        served.append(claim.owner)
        records.succeed(claim, RESULT)
    assert sorted(served[:2]) == ["ann", "bob"]
    assert sorted(served[2:4]) == ["ann", "bob"]
    assert served[4] == "ann"


def test_the_owner_with_fewer_running_jobs_comes_first(records: Records, store: Store) -> None:
    tensors = {owner: put(records, store, random_tensor(3, 3), owner) for owner in ("ann", "bob")}
    for owner in ("ann", "ann", "ann"):
        records.submit(owner, request(tensors[owner]))
    assert [claimed(records).owner for _ in range(2)] == ["ann", "ann"]
    records.submit("bob", request(tensors["bob"]))
    assert [claimed(records).owner for _ in range(2)] == ["bob", "ann"]


def test_higher_priority_then_age_decide_within_an_owner(records: Records, tensor: TensorRecord) -> None:
    jobs = {p: records.submit("local", request(tensor, priority=p))[0].id for p in (0, -10, 10)}
    late = records.submit("local", request(tensor))[0].id
    assert [claimed(records).job_id for _ in range(4)] == [jobs[10], jobs[0], late, jobs[-10]]


WRITES: dict[str, Callable[[Records, Claim], object]] = {
    "renew": lambda records, claim: records.renew(claim) != "lost",
    "publish": lambda records, claim: records.publish(claim, [row(1)]) != "lost",
    "checkpointed": lambda records, claim: records.checkpointed(claim, "name", 1),
    "succeed": lambda records, claim: records.succeed(claim, RESULT),
    "cancelled": lambda records, claim: records.cancelled(claim, RESULT),
    "fail": lambda records, claim: records.fail(claim, ERROR),
    "hand_back": lambda records, claim: records.hand_back(claim),
    "crashed": lambda records, claim: records.crashed(claim, "it was killed"),
}


@pytest.mark.parametrize("write", WRITES)
def test_an_older_claim_changes_nothing(records: Records, job: Job, write: str) -> None:
    old = claimed(records)
    records.hand_back(old)
    assert not WRITES[write](records, old)
    claimed(records)
    before, events = now(records, job), records.events_after(job.id)
    assert not WRITES[write](records, old)
    assert now(records, job) == before
    assert records.events_after(job.id) == events


@pytest.mark.parametrize("end", ["succeed", "cancelled", "fail"])
@pytest.mark.parametrize("write", WRITES)
def test_the_end_is_the_end(records: Records, job: Job, end: str, write: str) -> None:
    claim = claimed(records)
    assert WRITES[end](records, claim)
    before, events = now(records, job), records.events_after(job.id)
    WRITES[write](records, claim)
    assert now(records, job) == before
    assert records.cancel("local", job.id) == before
    assert records.events_after(job.id) == events
    assert records.reap(everything=True) == []
    assert records.claim("worker") is None


def test_the_same_end_may_be_told_twice(records: Records, job: Job) -> None:
    claim = claimed(records)
    assert records.succeed(claim, RESULT)
    assert records.succeed(claim, RESULT)
    assert now(records, job).result == RESULT


def test_a_running_job_is_told_of_its_cancellation(records: Records, job: Job) -> None:
    claim = claimed(records)
    assert records.renew(claim) == "kept"
    asked = records.cancel("local", job.id)
    assert (asked.state, asked.cancel_requested) == ("running", True)
    assert records.renew(claim) == "cancel"
    assert records.publish(claim, []) == "cancel"
    assert records.cancelled(claim, RESULT)
    assert now(records, job).state == "cancelled"


def test_handing_back_costs_no_attempt(records: Records, job: Job) -> None:
    first = claimed(records)
    records.checkpointed(first, "name", 7)
    assert records.hand_back(first)
    assert (now(records, job).state, now(records, job).attempt) == ("queued", 0)
    second = claimed(records)
    assert (second.fence, second.attempt, second.checkpoint) == (2, 1, "name")


def test_a_cancelled_job_that_is_handed_back_or_dies_ends(records: Records, tensor: TensorRecord) -> None:
    for leave in (records.hand_back, lambda claim: records.crashed(claim, "it was killed")):
        job, _ = records.submit("local", request(tensor))
        claim = claimed(records)
        records.cancel("local", job.id)
        leave(claim)
        assert now(records, job).state == "cancelled"


def test_a_silent_worker_loses_its_job_and_a_renewed_lease_does_not(hasty: Records, records: Records, job: Job) -> None:
    claim = claimed(hasty)
    assert records.renew(claim) == "kept"  # a long lease now
    assert records.reap() == []
    assert hasty.renew(claim) == "kept"
    assert wait_for(records.reap) == [job.id]
    assert now(records, job).state == "queued"
    assert records.renew(claim) == "lost"
    assert claimed(records).attempt == 2


def test_a_job_that_dies_three_times_without_advancing_fails(records: Records, job: Job) -> None:
    for _ in range(3):
        assert now(records, job).state == "queued"
        records.crashed(claimed(records), "its process was killed by SIGKILL")
    failed = now(records, job)
    assert (failed.state, failed.attempt) == ("failed", 3)
    assert failed.error is not None
    assert failed.error.kind == "system"
    assert "3 times in a row" in failed.error.message
    assert "SIGKILL" in failed.error.message


def test_a_job_that_advances_may_die_often(records: Records, job: Job) -> None:
    for iteration in range(1, 7):
        claim = claimed(records)
        records.publish(claim, [row(iteration)])
        records.crashed(claim, "it was killed")
    assert now(records, job).state == "queued"
    assert now(records, job).attempt == 6


def test_nothing_is_reaped_until_a_lease_after_redis_came_back(
    configuration: Configuration, hasty: Records, records: Records, job: Job
) -> None:
    """The test's Redis is young compared with this lease, so the reaper must not act."""
    claimed(hasty)
    patient = Reaper(configuration.model_copy(update={"lease_seconds": 10_000.0}), "patient")
    patient.look()
    assert now(records, job).state == "running"


def test_a_reaper_that_was_cut_off_waits_for_a_lease(configuration: Configuration, records: Records, job: Job) -> None:
    """As after an outage of Redis, or a machine that slept: those who live renew first."""
    short = configuration.model_copy(update={"lease_seconds": 0.5})
    wait_for(lambda: records.uptime_seconds() > 2)
    claimed(Records.of(short))
    reaper = Reaper(short, "reaper")
    reaper.look()
    wait_for(lambda: Records.of(short).live_workers() == 0, what="the lease to run out")
    reaper.look()
    assert now(records, job).state == "running"

    def taken_back() -> bool:
        reaper.look()
        return now(records, job).state == "queued"

    wait_for(taken_back)


def test_a_reaper_repeats_a_lost_call_once_and_settles_ended_jobs(
    configuration: Configuration, records: Records, job: Job, tensor: TensorRecord
) -> None:
    gone, _ = records.submit("local", request(tensor))
    records.cancel("local", gone.id)
    reaper = Reaper(configuration, "reaper")
    reaper.look()
    reaper.look()
    assert calls_waiting(configuration) == 1
    assert records.unsettled() == []
    assert records.live_workers() == 1
    reaper.end()
    assert records.live_workers() == 0


@pytest.mark.usefixtures("job")
def test_the_next_claim_knows_what_the_last_one_has_spent(records: Records) -> None:
    """By its last sign of life, or by what it published, whichever is more."""
    first = claimed(records)
    assert first.spent_seconds == 0
    records.renew(first, 7.5)
    records.renew(first, 7.0)
    records.crashed(first, "killed")
    second = claimed(records)
    assert second.spent_seconds == 7.5
    records.publish(second, [row(900)])
    records.crashed(second, "killed")
    assert claimed(records).spent_seconds == row(900).seconds


def test_a_claim_can_be_looked_at_without_renewing_it(records: Records, hasty: Records, job: Job) -> None:
    claim = hasty.claim("worker")
    assert claim is not None
    assert records.standing(claim) == "kept"
    records.cancel("local", job.id)
    assert records.standing(claim) == "cancel"
    wait_for(hasty.reap, what="the lease to run out")
    assert records.standing(claim) == "lost"

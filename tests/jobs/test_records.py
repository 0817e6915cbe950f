"""Tensors and jobs as the API sees them."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sparse_ncp.worker.broker import MAX_PENDING, pending_wakeups
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Job, TensorRecord
from sparse_ncp.worker.errors import (
    IdempotencyKeyReused,
    InUse,
    InvalidJob,
    JobNotFinished,
    NotFound,
    QuotaReached,
    TooManyJobs,
    Unavailable,
)
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.jobs import Submission, Submitted
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import RedisConnection, connect
from sparse_ncp.worker.store.local import LocalStore
from tests.support.jobs import put, queue_job, random_tensor, request


def test_owners_see_only_their_own(records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations) -> None:
    job, _ = queue_job(records, "local", request(tensor))
    for look in (
        lambda: records.tensors.get("eve", tensor.id),
        lambda: records.tensors.delete("eve", tensor.id),
        lambda: queue_job(records, "eve", request(tensor)),
        lambda: records.jobs.get("eve", job.id),
        lambda: records.jobs.cancel("eve", job.id),
        lambda: records.jobs.delete("eve", job.id),
        lambda: jobs.history("eve", job.id),
    ):
        with pytest.raises(NotFound):
            look()
    assert records.tensors.list("eve").items == ()
    assert records.tensors.list("eve", sha256=tensor.sha256).items == ()
    assert records.jobs.list("eve").items == ()


def test_a_job_starts_queued_with_every_setting_filled_in(records: ExecutionRecords, tensor: TensorRecord) -> None:
    asked = request(tensor, name="first", priority=3, preset="recommended")
    job, replayed = queue_job(records, "local", asked)
    assert not replayed
    assert (job.state, job.queue_position, job.attempt, job.name, job.priority) == ("queued", 1, 0, "first", 3)
    assert job.settings == asked.settings()
    assert job.settings.stop.patience == 5
    assert records.jobs.get("local", job.id) == job


def test_the_same_key_and_body_give_the_same_job(records: ExecutionRecords, tensor: TensorRecord) -> None:
    job, first = queue_job(records, "local", request(tensor), "key")
    again, second = queue_job(records, "local", request(tensor, seed=0), "key")
    assert (first, second) == (False, True)
    assert again.id == job.id
    assert records.jobs.replay("local", request(tensor), "key") == job
    assert len(records.jobs.list("local").items) == 1
    with pytest.raises(IdempotencyKeyReused):
        queue_job(records, "local", request(tensor, seed=1), "key")
    with pytest.raises(IdempotencyKeyReused):
        records.jobs.replay("local", request(tensor, seed=1), "key")


def test_a_key_belongs_to_its_owner(records: ExecutionRecords, store: LocalStore, tensor: TensorRecord) -> None:
    theirs = put(records, store, random_tensor(4, 5, 6), "ann")
    mine, _ = queue_job(records, "local", request(tensor), "key")
    other, replayed = queue_job(records, "ann", request(theirs), "key")
    assert not replayed
    assert other.id != mine.id


def test_a_key_is_forgotten_with_its_job(records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations) -> None:
    job, _ = queue_job(records, "local", request(tensor), "key")
    records.jobs.cancel("local", job.id)
    records.jobs.delete("local", job.id)
    again, replayed = queue_job(records, "local", request(tensor), "key")
    assert not replayed
    assert again.id != job.id


def test_a_queued_job_is_cancelled_at_once_and_never_runs(records: ExecutionRecords, tensor: TensorRecord) -> None:
    job, _ = queue_job(records, "local", request(tensor))
    ended = records.jobs.cancel("local", job.id)
    assert ended.state == "cancelled"
    assert ended.finished_at is not None
    assert records.jobs.cancel("local", job.id) == ended
    assert records.claims.claim("worker") is None


def test_only_an_ended_job_can_be_deleted(records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations) -> None:
    job, _ = queue_job(records, "local", request(tensor))
    with pytest.raises(JobNotFinished):
        records.jobs.delete("local", job.id)
    assert records.claims.claim("worker") is not None
    with pytest.raises(JobNotFinished):
        records.jobs.delete("local", job.id)
    other, _ = queue_job(records, "local", request(tensor))
    records.jobs.cancel("local", other.id)
    records.jobs.delete("local", other.id)
    with pytest.raises(NotFound):
        records.jobs.get("local", other.id)


def test_what_a_live_job_needs_cannot_be_deleted(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    first, _ = queue_job(records, "local", request(tensor))
    records.jobs.cancel("local", first.id)
    second, _ = queue_job(records, "local", request(tensor, initial={"job_id": first.id}))
    with pytest.raises(InUse):
        records.tensors.delete("local", tensor.id)
    with pytest.raises(InUse):
        records.jobs.delete("local", first.id)
    records.jobs.cancel("local", second.id)
    records.jobs.delete("local", first.id)
    assert records.tensors.delete("local", tensor.id) == tensor.sha256


def test_nor_can_its_mask_or_the_model_that_it_keeps(
    records: ExecutionRecords, store: LocalStore, tensor: TensorRecord
) -> None:
    mask = put(records, store, random_tensor(4, 1, 6) > 0.1)
    model, _ = queue_job(records, "local", request(tensor))
    records.jobs.cancel("local", model.id)
    fixed = {"job_id": model.id, "modes": [2, 3]}
    job, _ = queue_job(records, "local", request(tensor, mask={"tensor_id": mask.id}, fixed=fixed))
    assert job.mask is not None
    assert job.fixed is not None
    assert (job.mask.tensor_id, job.fixed.modes) == (mask.id, (2, 3))
    with pytest.raises(InUse):
        records.tensors.delete("local", mask.id)
    with pytest.raises(InUse):
        records.jobs.delete("local", model.id)
    records.jobs.cancel("local", job.id)
    records.jobs.delete("local", model.id)
    assert records.tensors.delete("local", mask.id) == mask.sha256
    assert records.jobs.get("local", job.id).mask == job.mask


@pytest.mark.parametrize(
    "named",
    [
        {"initial": {"job_id": "nowhere"}},
        {"fixed": {"job_id": "nowhere", "modes": [1]}},
        {"mask": {"tensor_id": "nowhere"}},
    ],
)
def test_a_job_cannot_name_what_is_not_there(
    records: ExecutionRecords, tensor: TensorRecord, named: dict[str, Any]
) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        queue_job(records, "local", request(tensor, **named))


def test_the_record_of_a_tensor_from_an_older_version_is_read(
    configuration: Configuration, records: ExecutionRecords, tensor: TensorRecord
) -> None:
    """It had neither missing nor negative entries: those were refused."""
    old = tensor.model_dump_json(exclude={"missing", "negative"})
    with connect(configuration) as client:
        client.hset(keys.tensor(tensor.id), "record", old)
    assert records.tensors.get("local", tensor.id) == tensor


def test_pages_show_every_job_once_newest_first(records: ExecutionRecords, tensor: TensorRecord) -> None:
    ids = [queue_job(records, "local", request(tensor))[0].id for _ in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = records.jobs.list("local", limit=3, cursor=cursor)
        seen += [job.id for job in page.items]
        if page.next is None:
            break
        cursor = page.next
        queue_job(records, "local", request(tensor))  # what comes in meanwhile does not disturb
    assert seen == ids[::-1]


def test_pages_of_tensors_too(records: ExecutionRecords, store: LocalStore) -> None:
    ids = [put(records, store, random_tensor(2, 3, seed=seed)).id for seed in range(5)]
    first = records.tensors.list("local", limit=2)
    second = records.tensors.list("local", limit=3, cursor=first.next)
    assert [record.id for record in (*first.items, *second.items)] == ids[::-1]
    assert second.next is None


def test_filters_combine(records: ExecutionRecords, store: LocalStore, tensor: TensorRecord) -> None:
    other = put(records, store, random_tensor(3, 3))
    wanted, _ = queue_job(records, "local", request(tensor, method="mu"))
    queue_job(records, "local", request(tensor, method="als"))
    queue_job(records, "local", request(other, method="mu"))
    gone, _ = queue_job(records, "local", request(tensor, method="mu"))
    records.jobs.cancel("local", gone.id)
    found = records.jobs.list("local", state="queued", method="mu", tensor_id=tensor.id)
    assert [job.id for job in found.items] == [wanted.id]


def test_the_queue_position_counts_priority_age_and_other_owners(records: ExecutionRecords, store: LocalStore) -> None:
    mine, theirs = put(records, store, random_tensor(3, 3)), put(records, store, random_tensor(3, 3), "ann")
    jobs = [queue_job(records, "local", request(mine))[0] for _ in range(2)]
    urgent, _ = queue_job(records, "local", request(mine, priority=1))
    queue_job(records, "ann", request(theirs))
    positions = [records.jobs.get("local", job.id).queue_position for job in (urgent, *jobs)]
    assert positions == [1, 3, 4]
    claim = records.claims.claim("worker")
    assert claim is not None
    assert records.jobs.get(claim.owner, claim.job_id).queue_position is None


def test_health_has_durability_and_live_workers(records: ExecutionRecords) -> None:
    assert records.ping().durable
    assert records.ping().live_workers == 0
    records.leases.heartbeat("worker")
    assert records.ping().live_workers == 1


def test_an_absent_redis_is_unavailable(configuration: Configuration) -> None:
    away = ExecutionRecords.of(configuration.model_copy(update={"redis_url": "unix:///nowhere/redis.sock"}))
    assert not away.ping().reachable
    with pytest.raises(Unavailable):
        away.jobs.list("local")


@pytest.mark.parametrize("count", [1, 20])
def test_submissions_made_together_ask_redis_twice_and_wait_for_no_message(
    configuration: Configuration, store: LocalStore, tensor: TensorRecord, count: int
) -> None:
    """Every answer of Redis waits for the flush of what others write meanwhile: that is what a submission takes."""

    class Counted(RedisConnection):
        asked = 0

        def __getattribute__(self, name: str) -> Any:
            Counted.asked += name in ("script", "script_calls", "command", "commands")
            return super().__getattribute__(name)

    jobs = JobOperations(ExecutionRecords(Counted.of(configuration)), store, configuration)
    submissions = [Submission("local", request(tensor), key=f"mine {number}") for number in range(count)]
    outcomes = made(jobs.submit_many(submissions))
    assert Counted.asked == 2
    assert [job.queue_position for job, _ in outcomes] == list(range(1, count + 1))
    jobs.close()


def made(outcomes: Sequence[Submitted | Exception]) -> list[Submitted]:
    """None was refused."""
    jobs = [outcome for outcome in outcomes if isinstance(outcome, Submitted)]
    assert len(jobs) == len(outcomes), outcomes
    return jobs


def test_submissions_made_together_are_each_made_or_refused_as_if_alone(
    records: ExecutionRecords, store: LocalStore, jobs: JobOperations, tensor: TensorRecord
) -> None:
    theirs = put(records, store, random_tensor(4, 5, 6, seed=2), "ann")
    earlier, _ = jobs.submit("local", request(tensor, name="earlier"), "earlier")
    two_jobs, small_rank = Limits(live_jobs=2), Limits(rank=2)
    outcomes = jobs.submit_many(
        [
            Submission("local", request(tensor), "one"),
            Submission("local", request(theirs)),
            Submission("ann", request(theirs)),
            Submission("local", request(tensor, rank=3), limits=small_rank),
            Submission("local", request(tensor), "one"),
            Submission("local", request(tensor, seed=1), "one"),
            Submission("local", request(tensor, name="earlier"), "earlier", small_rank),
            Submission("ann", request(theirs), limits=two_jobs),
            Submission("ann", request(theirs), limits=two_jobs),
            Submission("ann", request(theirs), limits=Limits(stored_bytes=1)),
        ]
    )
    refusals = [NotFound, InvalidJob, IdempotencyKeyReused, TooManyJobs, QuotaReached]
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, Exception)] == refusals
    first, anns, again, replayed, second = (outcome for outcome in outcomes if isinstance(outcome, Submitted))
    assert (first.replayed, again.replayed, replayed.replayed) == (False, True, True)
    assert (again.job.id, replayed.job.id) == (first.job.id, earlier.id)
    assert [job.id for job in records.jobs.list("local").items] == [first.job.id, earlier.id]
    assert [job.id for job in records.jobs.list("ann").items] == [second.job.id, anns.job.id]


def test_a_redis_that_has_forgotten_the_scripts_is_sent_them_again(
    configuration: Configuration, jobs: JobOperations, tensor: TensorRecord
) -> None:
    """As after its restart."""
    with connect(configuration) as client:
        client.script_flush()
    outcomes = made(jobs.submit_many([Submission("local", request(tensor))] * 3))
    assert [job.queue_position for job, _ in outcomes] == [1, 2, 3]


def test_many_submissions_at_once_leave_no_more_messages_than_workers_could_take(
    configuration: Configuration, jobs: JobOperations, tensor: TensorRecord
) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda _: jobs.submit("local", request(tensor))[0].id, range(40)))
    jobs.close()
    assert 1 <= pending_wakeups(configuration) <= MAX_PENDING
    positions = sorted(job.queue_position or 0 for job in jobs_of(configuration, ids))
    assert positions == list(range(1, 41))


def jobs_of(configuration: Configuration, ids: list[str]) -> list[Job]:
    records = ExecutionRecords.of(configuration)
    return [records.jobs.get("local", id) for id in ids]

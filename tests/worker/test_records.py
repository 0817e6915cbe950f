"""Tensors and jobs as the API sees them."""

import pytest

from tests.worker.lab import put, random_tensor, request
from worker.configuration import Configuration
from worker.contract import TensorRecord
from worker.errors import InUse, KeyReused, NotFound, StillLive, Unavailable
from worker.records import Records
from worker.store import Store


def test_owners_see_only_their_own(records: Records, tensor: TensorRecord) -> None:
    job, _ = records.submit("local", request(tensor))
    for look in (
        lambda: records.tensor("eve", tensor.id),
        lambda: records.delete_tensor("eve", tensor.id),
        lambda: records.submit("eve", request(tensor)),
        lambda: records.job("eve", job.id),
        lambda: records.cancel("eve", job.id),
        lambda: records.delete_job("eve", job.id),
        lambda: records.history("eve", job.id),
    ):
        with pytest.raises(NotFound):
            look()
    assert records.tensors("eve").items == ()
    assert records.tensors("eve", sha256=tensor.sha256).items == ()
    assert records.jobs("eve").items == ()


def test_a_job_starts_queued_with_every_setting_filled_in(records: Records, tensor: TensorRecord) -> None:
    asked = request(tensor, name="first", priority=3, preset="recommended")
    job, replayed = records.submit("local", asked)
    assert not replayed
    assert (job.state, job.queue_position, job.attempt, job.name, job.priority) == ("queued", 1, 0, "first", 3)
    assert job.settings == asked.settings()
    assert job.settings.stop.patience == 5
    assert records.job("local", job.id) == job


def test_the_same_key_and_body_give_the_same_job(records: Records, tensor: TensorRecord) -> None:
    job, first = records.submit("local", request(tensor), "key")
    again, second = records.submit("local", request(tensor, seed=0), "key")
    assert (first, second) == (False, True)
    assert again.id == job.id
    assert records.replay("local", request(tensor), "key") == job
    assert len(records.jobs("local").items) == 1
    with pytest.raises(KeyReused):
        records.submit("local", request(tensor, seed=1), "key")
    with pytest.raises(KeyReused):
        records.replay("local", request(tensor, seed=1), "key")


def test_a_key_belongs_to_its_owner(records: Records, store: Store, tensor: TensorRecord) -> None:
    theirs = put(records, store, random_tensor(4, 5, 6), "ann")
    mine, _ = records.submit("local", request(tensor), "key")
    other, replayed = records.submit("ann", request(theirs), "key")
    assert not replayed
    assert other.id != mine.id


def test_a_key_is_forgotten_with_its_job(records: Records, tensor: TensorRecord) -> None:
    job, _ = records.submit("local", request(tensor), "key")
    records.cancel("local", job.id)
    records.delete_job("local", job.id)
    again, replayed = records.submit("local", request(tensor), "key")
    assert not replayed
    assert again.id != job.id


def test_a_queued_job_is_cancelled_at_once_and_never_runs(records: Records, tensor: TensorRecord) -> None:
    job, _ = records.submit("local", request(tensor))
    ended = records.cancel("local", job.id)
    assert ended.state == "cancelled"
    assert ended.finished_at is not None
    assert records.cancel("local", job.id) == ended
    assert records.claim("worker") is None


def test_only_an_ended_job_can_be_deleted(records: Records, tensor: TensorRecord) -> None:
    job, _ = records.submit("local", request(tensor))
    with pytest.raises(StillLive):
        records.delete_job("local", job.id)
    assert records.claim("worker") is not None
    with pytest.raises(StillLive):
        records.delete_job("local", job.id)
    other, _ = records.submit("local", request(tensor))
    records.cancel("local", other.id)
    records.delete_job("local", other.id)
    with pytest.raises(NotFound):
        records.job("local", other.id)


def test_what_a_live_job_needs_cannot_be_deleted(records: Records, tensor: TensorRecord) -> None:
    first, _ = records.submit("local", request(tensor))
    records.cancel("local", first.id)
    second, _ = records.submit("local", request(tensor, initial={"job_id": first.id}))
    with pytest.raises(InUse):
        records.delete_tensor("local", tensor.id)
    with pytest.raises(InUse):
        records.delete_job("local", first.id)
    records.cancel("local", second.id)
    records.delete_job("local", first.id)
    assert records.delete_tensor("local", tensor.id) == tensor.sha256


def test_a_job_cannot_start_from_one_that_is_not_there(records: Records, tensor: TensorRecord) -> None:
    with pytest.raises(NotFound, match="job nowhere"):
        records.submit("local", request(tensor, initial={"job_id": "nowhere"}))


def test_pages_show_every_job_once_newest_first(records: Records, tensor: TensorRecord) -> None:
    ids = [records.submit("local", request(tensor))[0].id for _ in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = records.jobs("local", limit=3, cursor=cursor)
        seen += [job.id for job in page.items]
        if page.next is None:
            break
        cursor = page.next
        records.submit("local", request(tensor))  # what comes in meanwhile does not disturb
    assert seen == ids[::-1]


def test_pages_of_tensors_too(records: Records, store: Store) -> None:
    ids = [put(records, store, random_tensor(2, 3, seed=seed)).id for seed in range(5)]
    first = records.tensors("local", limit=2)
    second = records.tensors("local", limit=3, cursor=first.next)
    assert [record.id for record in (*first.items, *second.items)] == ids[::-1]
    assert second.next is None


def test_filters_combine(records: Records, store: Store, tensor: TensorRecord) -> None:
    other = put(records, store, random_tensor(3, 3))
    wanted, _ = records.submit("local", request(tensor, method="mu"))
    records.submit("local", request(tensor, method="als"))
    records.submit("local", request(other, method="mu"))
    gone, _ = records.submit("local", request(tensor, method="mu"))
    records.cancel("local", gone.id)
    found = records.jobs("local", state="queued", method="mu", tensor_id=tensor.id)
    assert [job.id for job in found.items] == [wanted.id]


def test_the_queue_position_counts_priority_age_and_other_owners(records: Records, store: Store) -> None:
    mine, theirs = put(records, store, random_tensor(3, 3)), put(records, store, random_tensor(3, 3), "ann")
    jobs = [records.submit("local", request(mine))[0] for _ in range(2)]
    urgent, _ = records.submit("local", request(mine, priority=1))
    records.submit("ann", request(theirs))
    positions = [records.job("local", job.id).queue_position for job in (urgent, *jobs)]
    assert positions == [1, 3, 4]
    claim = records.claim("worker")
    assert claim is not None
    assert records.job(claim.owner, claim.job_id).queue_position is None


def test_health_tells_durability_and_live_workers(records: Records) -> None:
    assert records.ping().durable
    assert records.ping().live_workers == 0
    records.tick("worker")
    assert records.ping().live_workers == 1


def test_an_absent_redis_is_unavailable(configuration: Configuration) -> None:
    away = Records.of(configuration.model_copy(update={"redis_url": "unix:///nowhere/redis.sock"}))
    assert not away.ping().reachable
    with pytest.raises(Unavailable):
        away.jobs("local")

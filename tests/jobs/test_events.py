"""Every reader sees the same events with the same ids, no matter when it connects."""

import json
from typing import Any

import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, Event, Job, Progress, TensorRecord, parse_event_id
from sparse_ncp.worker.execution.reaper import Reaper
from sparse_ncp.worker.operations import jobs as operations
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis.connection import connect
from sparse_ncp.worker.store.local import LocalStore
from tests.jobs.test_claims import RESULT, claimed
from tests.support.jobs import queue_job, request, row


def eventful(records: ExecutionRecords, tensor: TensorRecord) -> Job:
    """Two attempts, five iterations, an end."""
    job, _ = queue_job(records, "local", request(tensor))
    first = claimed(records)
    records.claims.publish(first, [row(1), row(2)])
    records.claims.publish(first, [row(3)])
    records.claims.hand_back(first)
    second = claimed(records)
    records.claims.publish(second, [row(iteration) for iteration in (2, 3, 4, 5)])
    records.claims.succeed(second, RESULT)
    return records.jobs.get("local", job.id)


def test_iterations_come_once_and_in_order_though_an_attempt_repeats_them(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    events = jobs.events_after(eventful(records, tensor).id)
    assert [event.id for event in events if event.kind == "progress"] == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    states = [json.loads(event.payload)["state"] for event in events if event.kind == "state"]
    assert states == ["queued", "running", "queued", "running", "succeeded"]
    assert [event.kind for event in events].index("end") == len(events) - 1
    ids = [parse_event_id(event.id) for event in events]
    assert ids == sorted(set(ids))


def test_the_stored_events_are_the_live_ones(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    job = eventful(records, tensor)
    live = jobs.events_after(job.id)
    jobs.settle(job.id)
    assert jobs.events_after(job.id) == live
    for place, event in enumerate(live):
        assert jobs.events_after(job.id, event.id) == live[place + 1 :]
    assert jobs.events_after(job.id, live[2].id, count=3) == live[3:6]


def test_reading_in_small_steps_loses_nothing(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    job = eventful(records, tensor)
    whole = jobs.events_after(job.id)
    for settled in (False, True):
        if settled:
            jobs.settle(job.id)
        seen: list[Event] = []
        while step := jobs.events_after(job.id, seen[-1].id if seen else None, count=2):
            seen += step
        assert seen == whole


def test_the_end_carries_the_job_without_its_owner(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    job = eventful(records, tensor)
    payload = json.loads(jobs.events_after(job.id)[-1].payload)
    assert payload == json.loads(job.model_dump_json(exclude={"owner"}))


def test_the_history_is_the_same_live_and_stored(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    job = eventful(records, tensor)
    live = jobs.history("local", job.id)
    assert live == [row(iteration) for iteration in range(1, 6)]
    jobs.settle(job.id)
    assert jobs.history("local", job.id) == live
    assert jobs.history("local", job.id, after=3) == live[3:]


def test_a_settled_stream_goes_after_a_while(
    configuration: Configuration, records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations
) -> None:
    job = eventful(records, tensor)
    with connect(configuration) as client:
        assert client.ttl(records.events.stream_key(job.id)) == -1
        jobs.settle(job.id)
        assert 0 < int(client.ttl(records.events.stream_key(job.id))) <= configuration.stream_seconds
        client.delete(records.events.stream_key(job.id))
    assert jobs.events_after(job.id)[-1].kind == "end"


def test_settling_a_deleted_job_leaves_no_file(
    records: ExecutionRecords, store: LocalStore, tensor: TensorRecord, jobs: JobOperations
) -> None:
    job = eventful(records, tensor)
    records.jobs.delete("local", job.id)
    jobs.settle(job.id)
    assert not (store.root / "jobs" / job.id).exists()


def test_a_long_history_is_moved_step_by_step_and_nothing_is_lost_between(
    records: ExecutionRecords, tensor: TensorRecord, jobs: JobOperations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call moves one piece here, as one would that has no time left; a process that is killed leaves the same."""
    monkeypatch.setattr(operations, "EVENTS_PER_PIECE", 3)
    job = eventful(records, tensor)
    live, events = jobs.history("local", job.id), jobs.events_after(job.id)
    calls = 0
    while records.jobs.unsettled():
        assert jobs.history("local", job.id) == live
        jobs.settle(job.id, until=0)
        calls += 1
    assert calls > len(events) / 3
    assert jobs.history("local", job.id) == live
    assert jobs.events_after(job.id) == events


def test_settling_takes_no_longer_than_a_third_of_a_lease(
    records: ExecutionRecords, store: LocalStore, tensor: TensorRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "EVENTS_PER_PIECE", 1)
    hurried = records._redis.configuration.model_copy(update={"lease_seconds": 0.003})
    first, second = eventful(records, tensor), eventful(records, tensor)
    calls = 0
    while records.jobs.unsettled():
        JobOperations(records, store, hurried).settle_all()
        calls += 1
    assert calls > 2
    whole = [row(iteration) for iteration in range(1, 6)]
    assert [store.job(job.id).history() for job in (first, second)] == [whole, whole]


class TestLongStreams:
    """A job that runs for ever holds a bounded stream in Redis, and its readers see no gap."""

    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operations, "LIVE_EVENTS", 50)
        monkeypatch.setattr(operations, "KEPT_EVENTS", 20)
        monkeypatch.setattr(operations, "EVENTS_PER_PIECE", 15)

    @pytest.fixture
    def long(self, records: ExecutionRecords, tensor: TensorRecord) -> Claim:
        """The third attempt of a job, after 120 iterations."""
        queue_job(records, "local", request(tensor))
        for iterations in (range(1, 31), range(20, 31), range(31, 121)):
            claim = claimed(records)
            records.claims.publish(claim, [row(iteration) for iteration in iterations])
            if iterations[-1] < 120:
                records.claims.hand_back(claim)
        return claim

    def test_readers_see_the_same_events_before_and_after_they_are_moved(
        self, records: ExecutionRecords, jobs: JobOperations, long: Claim
    ) -> None:
        whole, history = jobs.events_after(long.job_id), jobs.history("local", long.job_id)
        assert len(whole) > 120 == len(history)
        assert records.events.length(long.job_id) == len(whole)
        jobs.collect_long_streams()
        assert records.events.length(long.job_id) == 20
        for place, event in enumerate(whole):
            found = jobs.events_after(long.job_id, event.id, 7)
            assert found == whole[place + 1 : place + 1 + len(found)]
            assert bool(found) == (event != whole[-1])
        assert stepwise(jobs, long.job_id) == whole
        assert jobs.history("local", long.job_id) == history
        for after in (0, 13, 30, 99, 100, 119, 120):
            assert jobs.history("local", long.job_id, after, 7) == history[after : after + 7]

    def test_the_reaper_moves_them_again_and_the_end_completes_them(
        self,
        records: ExecutionRecords,
        jobs: JobOperations,
        store: LocalStore,
        configuration: Configuration,
        long: Claim,
    ) -> None:
        Reaper(configuration, "worker").reap()
        assert records.jobs.with_long_streams(50) == []
        before = stepwise(jobs, long.job_id)
        records.claims.hand_back(long)
        last = claimed(records)
        records.claims.publish(last, [row(iteration) for iteration in range(100, 201)])
        jobs.collect_long_streams()
        assert records.events.length(long.job_id) == 20
        records.claims.succeed(last, RESULT)
        live = stepwise(jobs, long.job_id)
        assert live[: len(before)] == before
        assert [event.id for event in live if event.kind == "progress"] == [f"{n}-0" for n in range(1, 201)]
        jobs.settle(long.job_id)
        assert jobs.events_after(long.job_id) == live
        jobs.collect_long_streams()  # too late
        assert jobs.events_after(long.job_id) == live
        assert not list((store.root / "jobs" / long.job_id / "pieces").glob("*"))

    def test_a_reader_whose_events_are_moved_while_it_reads_misses_none(
        self, records: ExecutionRecords, jobs: JobOperations, long: Claim, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, history = stepwise(jobs, long.job_id), jobs.history("local", long.job_id)
        events, after, of_history = jobs._records.events, jobs._records.events.after, jobs._records.events.history

        def moved_after(*arguments: Any) -> list[Event]:
            jobs.collect_long_streams()
            return after(*arguments)

        def moved_history(*arguments: Any) -> list[Progress]:
            jobs.collect_long_streams()
            return of_history(*arguments)

        monkeypatch.setattr(events, "history", moved_history)
        assert jobs.history("local", long.job_id) == history
        monkeypatch.setattr(events, "after", moved_after)
        assert stepwise(jobs, long.job_id) == whole


def stepwise(jobs: JobOperations, id: str, count: int = 9) -> list[Event]:
    """All events, read in small steps."""
    found: list[Event] = []
    while page := jobs.events_after(id, found[-1].id if found else None, count):
        found += page
    return found

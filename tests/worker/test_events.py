"""Every reader sees the same events with the same ids, whenever it comes."""

import json

from tests.worker.lab import request, row
from tests.worker.test_claims import RESULT, claimed
from worker.configuration import Configuration
from worker.contract import Event, Job, TensorRecord
from worker.event_records import parse_event_id
from worker.link import connect
from worker.records import Records
from worker.store import Store


def eventful(records: Records, tensor: TensorRecord) -> Job:
    """Two attempts, five iterations, an end."""
    job, _ = records.submit("local", request(tensor))
    first = claimed(records)
    records.publish(first, [row(1), row(2)])
    records.publish(first, [row(3)])
    records.hand_back(first)
    second = claimed(records)
    records.publish(second, [row(iteration) for iteration in (2, 3, 4, 5)])
    records.succeed(second, RESULT)
    return records.job("local", job.id)


def test_iterations_come_once_and_in_order_though_an_attempt_repeats_them(
    records: Records, tensor: TensorRecord
) -> None:
    events = records.events_after(eventful(records, tensor).id)
    assert [event.id for event in events if event.kind == "progress"] == ["1-0", "2-0", "3-0", "4-0", "5-0"]
    told = [json.loads(event.payload)["state"] for event in events if event.kind == "state"]
    assert told == ["queued", "running", "queued", "running", "succeeded"]
    assert [event.kind for event in events].index("end") == len(events) - 1
    ids = [parse_event_id(event.id) for event in events]
    assert ids == sorted(set(ids))


def test_the_stored_events_are_the_live_ones(records: Records, tensor: TensorRecord) -> None:
    job = eventful(records, tensor)
    live = records.events_after(job.id)
    records.settle(job.id)
    assert records.events_after(job.id) == live
    for place, event in enumerate(live):
        assert records.events_after(job.id, event.id) == live[place + 1 :]
    assert records.events_after(job.id, live[2].id, count=3) == live[3:6]


def test_reading_in_small_steps_loses_nothing(records: Records, tensor: TensorRecord) -> None:
    job = eventful(records, tensor)
    whole = records.events_after(job.id)
    for settled in (False, True):
        if settled:
            records.settle(job.id)
        seen: list[Event] = []
        while step := records.events_after(job.id, seen[-1].id if seen else None, count=2):
            seen += step
        assert seen == whole


def test_the_end_carries_the_job_without_its_owner(records: Records, tensor: TensorRecord) -> None:
    job = eventful(records, tensor)
    payload = json.loads(records.events_after(job.id)[-1].payload)
    assert payload == json.loads(job.model_dump_json(exclude={"owner"}))


def test_the_history_is_the_same_live_and_stored(records: Records, tensor: TensorRecord) -> None:
    job = eventful(records, tensor)
    live = records.history("local", job.id)
    assert live == [row(iteration) for iteration in range(1, 6)]
    records.settle(job.id)
    assert records.history("local", job.id) == live
    assert records.history("local", job.id, after=3) == live[3:]


def test_a_settled_stream_goes_after_a_while(
    configuration: Configuration, records: Records, tensor: TensorRecord
) -> None:
    job = eventful(records, tensor)
    with connect(configuration) as client:
        assert client.ttl(records.stream_key(job.id)) == -1
        records.settle(job.id)
        assert 0 < int(client.ttl(records.stream_key(job.id))) <= configuration.stream_seconds
        client.delete(records.stream_key(job.id))
    assert records.events_after(job.id)[-1].kind == "end"


def test_settling_a_deleted_job_leaves_no_file(records: Records, store: Store, tensor: TensorRecord) -> None:
    job = eventful(records, tensor)
    records.delete_job("local", job.id)
    records.settle(job.id)
    assert not (store.root / "jobs" / job.id).exists()

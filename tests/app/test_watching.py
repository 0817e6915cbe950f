"""Watching a job while the server, the network or the reader misbehaves."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import httpx
import pytest

from tests.app.api import Api, Sent, api, client, events, planted, refused, submit, upload
from tests.stack import embedded_redis, wait_for
from worker.configuration import Configuration
from worker.contract import Claim, JobError, Progress
from worker.embedded_redis import start_redis, url_of
from worker.process import stop
from worker.records import Records


def row(iteration: int) -> Progress:
    return Progress(iteration=iteration, objective=1 / iteration, relative_error=0.5, fit=0.5, seconds=0.1 * iteration)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Configuration]:
    """A Redis of its own: here the test is the worker."""
    with embedded_redis(tmp_path, event_buffer=50, keep_alive_seconds=0.3, slow_seconds=1) as made:
        yield made


@pytest.fixture
def records(settings: Configuration) -> Records:
    return Records.of(settings)


@pytest.fixture
def running(settings: Configuration) -> Iterator[Api]:
    with api(settings) as made:
        yield made


@pytest.fixture
def caller(running: Api) -> Iterator[httpx.Client]:
    with client(running.address) as made:
        yield made


@pytest.fixture
def claim(caller: httpx.Client, records: Records) -> Claim:
    """A job of the caller's that the test runs."""
    submit(caller, upload(caller, planted(3, 3))["id"])
    found = records.claim("the test")
    assert found is not None
    return found


@contextmanager
def watching(caller: httpx.Client, job_id: str, after: str | None = None) -> Iterator[list[Sent]]:
    """A list that fills while the context lasts; at its end the stream must have ended."""
    seen: list[Sent] = []

    thread = threading.Thread(target=lambda: seen.extend(events(caller, job_id, after)))
    thread.start()
    try:
        yield seen
    finally:
        thread.join(20)
        assert not thread.is_alive()


def iterations(seen: list[Sent]) -> list[int]:
    return [event.content["iteration"] for event in seen if event.kind == "progress"]


def _has(seen: list[Sent], iteration: int) -> bool:
    return iteration in iterations(seen)


def end(records: Records, claim: Claim) -> None:
    """As a worker does that gives up."""
    assert records.fail(claim, JobError(kind="system", message="the test ends it", remedy="none"))


def test_events_arrive_as_they_are_published(caller: httpx.Client, records: Records, claim: Claim) -> None:
    with watching(caller, claim.job_id) as seen:
        for iteration in range(1, 6):
            records.publish(claim, [row(iteration)])
            wait_for(partial(_has, seen, iteration), 2, "the event")
        end(records, claim)
    assert iterations(seen) == [1, 2, 3, 4, 5]
    assert seen[-1].kind == "end"
    assert seen[-1].content["error"]["message"] == "the test ends it"


def test_a_burst_larger_than_the_buffer_arrives_whole(caller: httpx.Client, records: Records, claim: Claim) -> None:
    with watching(caller, claim.job_id) as seen:
        wait_for(lambda: seen, 5, "the stream")
        for start in range(1, 3001, 300):
            records.publish(claim, [row(iteration) for iteration in range(start, start + 300)])
        end(records, claim)
    assert iterations(seen) == list(range(1, 3001))


def test_an_event_stream_outlives_its_settling(caller: httpx.Client, records: Records, claim: Claim) -> None:
    records.publish(claim, [row(iteration) for iteration in range(1, 11)])
    live = list(islice(events(caller, claim.job_id), 12))  # queued, running and ten iterations
    end(records, claim)
    records.settle(claim.job_id)
    stored = list(events(caller, claim.job_id))
    assert stored[:12] == live
    assert list(events(caller, claim.job_id, stored[4].id)) == stored[5:]


def test_silence_is_filled_with_comments(running: Api, claim: Claim) -> None:
    with (
        httpx.Client(base_url=running.address, trust_env=False, timeout=10) as caller,
        caller.stream("GET", f"/v1/jobs/{claim.job_id}/events") as answer,
    ):
        comments = (line for line in answer.iter_lines() if line.startswith(":"))
        assert [next(comments) for _ in range(3)] == [": keep-alive"] * 3


def test_streams_end_at_once_when_the_server_stops(settings: Configuration, records: Records) -> None:
    with api(settings) as running, client(running.address) as caller:
        submit(caller, upload(caller, planted(3, 3))["id"])
        claim = records.claim("the test")
        assert claim is not None
        with watching(caller, claim.job_id) as seen:
            records.publish(claim, [row(1)])
            wait_for(lambda: iterations(seen) == [1], 5, "the event")
            started = time.monotonic()
            running.server.should_exit = True
    assert time.monotonic() - started < 3
    records.publish(claim, [row(2)])
    end(records, claim)
    with api(settings) as running, client(running.address) as caller:
        assert iterations(list(events(caller, claim.job_id, seen[-1].id))) == [2]


def test_a_reader_that_stops_reading_is_closed_and_resumes_where_it_was(
    running: Api, caller: httpx.Client, records: Records, claim: Claim
) -> None:
    address = urlsplit(running.address)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((address.hostname, address.port))
        slow.sendall(f"GET /v1/jobs/{claim.job_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_for(lambda: running.app.state.live.watched == 1, 5, "the reader")
        last = _publish_until_closed(records, claim, running)
        received = _read_all(slow)
    end(records, claim)
    seen = re.findall(r"id: (\S+)\nevent: (\w+)\ndata: .*\n\n", received.decode())
    told = [int(place.split("-")[0]) for place, kind in seen if kind == "progress"]
    assert told[-1] < last
    assert told + iterations(list(events(caller, claim.job_id, seen[-1][0]))) == list(range(1, last + 1))


def _publish_until_closed(records: Records, claim: Claim, running: Api) -> int:
    last = 0

    def closed() -> bool:
        nonlocal last
        records.publish(claim, [row(iteration) for iteration in range(last + 1, last + 501)])
        last += 500
        return bool(running.app.state.live.watched == 0)

    wait_for(closed, 30, "the server to close the slow reader")
    return last


def _read_all(connection: socket.socket) -> bytes:
    connection.settimeout(10)
    chunks = []
    while chunk := connection.recv(1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def test_a_stream_outlives_an_outage_of_redis(tmp_path: Path) -> None:
    folder = tmp_path / "redis"
    with TemporaryDirectory(prefix="ncp-test-") as short:
        address = Path(short) / "redis.sock"
        plain = Configuration(data=tmp_path, keep_alive_seconds=0.3)
        settings = plain.model_copy(update={"redis_url": url_of(address)})
        redis = start_redis(plain, address, folder)
        try:
            with api(settings) as running, client(running.address) as caller:
                submit(caller, upload(caller, planted(3, 3))["id"])
                records = Records.of(settings)
                claim = records.claim("the test")
                assert claim is not None
                with watching(caller, claim.job_id) as seen:
                    records.publish(claim, [row(1)])
                    wait_for(partial(_has, seen, 1), 5, "the first event")
                    redis.kill()
                    redis.wait()
                    refused(caller.get(f"/v1/jobs/{claim.job_id}"), 503, "unavailable")
                    redis = start_redis(plain, address, folder)
                    records.publish(claim, [row(2), row(3)])
                    wait_for(partial(_has, seen, 3), 10, "the events after the outage")
                    end(records, claim)
        finally:
            stop(redis, 10)
    assert iterations(seen) == [1, 2, 3]
    assert seen[-1].kind == "end"

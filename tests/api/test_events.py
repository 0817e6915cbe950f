"""Watching a job: approximate numbers, and failures of the server, the network or the reader."""

import asyncio
import csv
import io
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import httpx
import pytest

from sparse_ncp.app.server.embedded_redis import start_redis, url_of
from sparse_ncp.app.streaming.broadcast import Broadcaster
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, JobError, Preparation, Progress
from sparse_ncp.worker.operations import jobs as operations
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.processes import stop
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.store.job_files import JobFiles
from sparse_ncp.worker.store.local import LocalStore
from tests.support.api import Api, Sent, events, finished, http_client, planted, refused, running_api, submit, upload
from tests.support.raw_http import connected
from tests.support.stack import embedded_redis, wait_for
from tests.support.watcher import is_gapless


def row(iteration: int) -> Progress:
    return Progress(iteration=iteration, objective=1 / iteration, relative_error=0.5, fit=0.5, seconds=0.1 * iteration)


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Configuration]:
    """A Redis of its own: here the test is the worker."""
    with embedded_redis(tmp_path, event_buffer=50, keep_alive_seconds=0.3, slow_seconds=1) as made:
        yield made


@pytest.fixture
def records(settings: Configuration) -> ExecutionRecords:
    return ExecutionRecords.of(settings)


@pytest.fixture
def running(settings: Configuration) -> Iterator[Api]:
    with running_api(settings) as made:
        yield made


@pytest.fixture
def caller(running: Api) -> Iterator[httpx.Client]:
    with http_client(running.address) as made:
        yield made


@pytest.fixture
def claim(caller: httpx.Client, records: ExecutionRecords) -> Claim:
    """A job of the caller's that the test runs."""
    submit(caller, upload(caller, planted(3, 3))["id"])
    found = records.claims.claim("the test")
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


def _steps(seen: list[Sent]) -> list[tuple[str, float]]:
    return [(sent.content["step"], sent.content["share"]) for sent in seen if sent.kind == "preparing"]


def _has(seen: list[Sent], iteration: int) -> bool:
    return iteration in iterations(seen)


def end(records: ExecutionRecords, claim: Claim) -> None:
    """As a worker does that gives up."""
    assert records.claims.fail(claim, JobError(kind="system", message="the test ends it", remedy="none"))


def test_events_arrive_as_they_are_published(caller: httpx.Client, records: ExecutionRecords, claim: Claim) -> None:
    with watching(caller, claim.job_id) as seen:
        for iteration in range(1, 6):
            records.claims.publish(claim, [row(iteration)])
            wait_for(partial(_has, seen, iteration), 2, "the event")
        end(records, claim)
    assert iterations(seen) == [1, 2, 3, 4, 5]
    assert seen[-1].kind == "end"
    assert seen[-1].content["error"]["message"] == "the test ends it"


def test_the_progress_of_a_preparation_reaches_current_watchers(
    caller: httpx.Client, records: ExecutionRecords, claim: Claim
) -> None:
    """Its event has the id of the one before it: a client that connects later gets the recorded events only."""
    path = f"/v1/jobs/{claim.job_id}"
    records.claims.publish_preparation(claim, Preparation(step="check", share=0.25))
    with watching(caller, claim.job_id) as seen:
        wait_for(lambda: _steps(seen), 5, "what it is doing now")
        records.claims.publish_preparation(claim, Preparation(step="scan", share=0.5))
        wait_for(lambda: len(set(_steps(seen))) == 2, 5, "the next step")
        job = caller.get(path).json()
        assert (job["phase"], job["preparing"]) == ("preparing", {"step": "scan", "share": 0.5})
        records.claims.publish(claim, [row(1)])
        wait_for(partial(_has, seen, 1), 5, "the event")
        job = caller.get(path).json()
        assert (job["phase"], job["preparing"]) == ("exact", None)
        end(records, claim)
    assert list(dict.fromkeys(_steps(seen))) == [("check", 0.25), ("scan", 0.5)]
    recorded = [sent for sent in seen if sent.kind != "preparing"]
    assert is_gapless(recorded)
    for before, sent in pairwise(seen):
        assert sent.kind != "preparing" or sent.id == before.id
    assert list(events(caller, claim.job_id)) == recorded


def test_a_later_attempt_prepares_again_and_reports_it(
    caller: httpx.Client, records: ExecutionRecords, claim: Claim
) -> None:
    path = f"/v1/jobs/{claim.job_id}"
    records.claims.publish(claim, [row(1), row(2)])
    records.claims.publish_preparation(claim, Preparation(step="check", share=0.25))
    assert caller.get(path).json()["phase"] == "preparing"
    records.claims.hand_back(claim)
    assert (caller.get(path).json()["phase"], caller.get(path).json()["preparing"]) == (None, None)
    again = records.claims.claim("the test")
    assert again is not None
    assert not records.claims.publish_preparation(claim, Preparation(step="check", share=0.5))
    assert caller.get(path).json()["phase"] == "exact"
    assert records.claims.publish_preparation(again, Preparation(step="compress", share=0.5))
    with watching(caller, claim.job_id, "2-0") as seen:
        wait_for(lambda: _steps(seen) == [("compress", 0.5)], 5, "what it is doing now")
        assert records.claims.publish_preparation(again, None)
        assert caller.get(path).json()["phase"] == "exact"
        end(records, again)
    assert [sent.kind for sent in seen if sent.kind != "preparing"] == ["state"] * 3 + ["end"]


def test_a_burst_larger_than_the_buffer_arrives_whole(
    caller: httpx.Client, records: ExecutionRecords, claim: Claim
) -> None:
    with watching(caller, claim.job_id) as seen:
        wait_for(lambda: seen, 5, "the stream")
        for start in range(1, 3001, 300):
            records.claims.publish(claim, [row(iteration) for iteration in range(start, start + 300)])
        end(records, claim)
    assert iterations(seen) == list(range(1, 3001))


def test_a_watcher_misses_no_event_that_was_moved_to_the_store_before_it_was_sent(
    caller: httpx.Client,
    records: ExecutionRecords,
    claim: Claim,
    settings: Configuration,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "LIVE_EVENTS", 50)
    monkeypatch.setattr(operations, "KEPT_EVENTS", 20)
    read, hold, waits = Broadcaster._read, threading.Event(), threading.Event()

    async def held(broadcaster: Broadcaster) -> None:
        while hold.is_set():
            waits.set()
            await asyncio.sleep(0.01)
        await read(broadcaster)

    monkeypatch.setattr(Broadcaster, "_read", held)
    with watching(caller, claim.job_id) as seen:
        records.claims.publish(claim, [row(n) for n in range(1, 11)])
        wait_for(lambda: _has(seen, 10), 10, "the first events")
        hold.set()
        assert waits.wait(10)
        records.claims.publish(claim, [row(n) for n in range(11, 201)])
        JobOperations(records, LocalStore(settings.data), settings).collect_long_streams()
        assert records.events.length(claim.job_id) == 20
        hold.clear()
        wait_for(lambda: _has(seen, 200), 10, "the last events")
        end(records, claim)
    assert iterations(seen) == list(range(1, 201))


def test_an_event_stream_outlives_its_settling(
    settings: Configuration, caller: httpx.Client, records: ExecutionRecords, claim: Claim
) -> None:
    records.claims.publish(claim, [row(iteration) for iteration in range(1, 11)])
    live = list(islice(events(caller, claim.job_id), 12))  # queued, running and ten iterations
    end(records, claim)
    JobOperations(records, LocalStore(settings.data), settings).settle(claim.job_id)
    stored = list(events(caller, claim.job_id))
    assert stored[:12] == live
    assert list(events(caller, claim.job_id, stored[4].id)) == stored[5:]


@pytest.mark.parametrize("settled", [False, True])
def test_a_history_comes_whole_or_in_pages(
    settings: Configuration, caller: httpx.Client, records: ExecutionRecords, claim: Claim, settled: bool
) -> None:
    for start in range(1, 3001, 500):
        records.claims.publish(claim, [row(iteration) for iteration in range(start, start + 500)])
    end(records, claim)
    if settled:
        JobOperations(records, LocalStore(settings.data), settings).settle(claim.job_id)
    path = f"/v1/jobs/{claim.job_id}/history"
    whole = caller.get(path)
    assert "link" not in whole.headers
    assert whole.json() == [row(iteration).model_dump() for iteration in range(1, 3001)]
    table = list(csv.DictReader(io.StringIO(caller.get(path, params={"format": "csv"}).text)))
    assert [float(line["objective"]) for line in table] == [1 / iteration for iteration in range(1, 3001)]
    rows, address = [], f"{path}?limit=700&after=100"
    while address:
        page = caller.get(address)
        rows += page.json()
        assert len(page.json()) <= 700
        address = page.links["next"]["url"] if "next" in page.links else ""
    assert rows == whole.json()[100:]
    assert caller.get(path, params={"after": 3000}).json() == []
    assert "link" not in caller.get(path, params={"limit": 3000}).headers
    assert caller.head(path).content == b""
    refused(caller.get(path, params={"limit": 0}), 422, "invalid")
    refused(caller.get(path, params={"limit": 10**6}), 422, "invalid")


def test_a_long_history_is_read_no_faster_than_its_client_reads(
    settings: Configuration, running: Api, caller: httpx.Client, records: ExecutionRecords, claim: Claim,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """So it is never in memory as a whole, and others are served meanwhile."""
    count = 200_000
    files, pages = LocalStore(settings.data).job(claim.job_id), list[int]()
    files.collect_history([row(iteration) for iteration in range(1, count + 1)], [])
    files.complete_history()
    end(records, claim)
    assert records.jobs.mark_settled(claim.job_id, files.nbytes())
    read = JobFiles.history

    def counted(self: JobFiles, after: int = 0, count: int | None = None) -> list[Progress]:
        pages.append(after)
        return read(self, after, count)

    monkeypatch.setattr(JobFiles, "history", counted)
    with connected(running, receive_buffer=4096) as connection:
        connection.sendall(f"GET /v1/jobs/{claim.job_id}/history HTTP/1.0\r\nHost: x\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert caller.get("/healthz").status_code == 200
        assert len(pages) < count / 1000 / 2
    answer = caller.get(f"/v1/jobs/{claim.job_id}/history")
    assert [line["iteration"] for line in answer.json()] == list(range(1, count + 1))


def test_silence_is_filled_with_comments(running: Api, claim: Claim) -> None:
    with (
        httpx.Client(base_url=running.address, trust_env=False, timeout=10) as caller,
        caller.stream("GET", f"/v1/jobs/{claim.job_id}/events") as answer,
    ):
        comments = (line for line in answer.iter_lines() if line.startswith(":"))
        assert [next(comments) for _ in range(3)] == [": keep-alive"] * 3


def test_streams_end_at_once_when_the_server_stops(settings: Configuration, records: ExecutionRecords) -> None:
    with running_api(settings) as running, http_client(running.address) as caller:
        submit(caller, upload(caller, planted(3, 3))["id"])
        claim = records.claims.claim("the test")
        assert claim is not None
        with watching(caller, claim.job_id) as seen:
            records.claims.publish(claim, [row(1)])
            wait_for(lambda: iterations(seen) == [1], 5, "the event")
            started = time.monotonic()
            running.server.should_exit = True
    assert time.monotonic() - started < 3
    records.claims.publish(claim, [row(2)])
    end(records, claim)
    with running_api(settings) as running, http_client(running.address) as caller:
        assert iterations(list(events(caller, claim.job_id, seen[-1].id))) == [2]


def test_a_reader_that_stops_reading_is_closed_and_resumes_where_it_was(
    running: Api, caller: httpx.Client, records: ExecutionRecords, claim: Claim
) -> None:
    address = urlsplit(running.address)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((address.hostname, address.port))
        slow.sendall(f"GET /v1/jobs/{claim.job_id}/events HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        wait_for(lambda: running.app.state.broadcaster.subscribers == 1, 5, "the reader")
        last = _publish_until_closed(records, claim, running)
        received = _read_all(slow)
    end(records, claim)
    seen = re.findall(r"id: (\S+)\nevent: (\w+)\ndata: .*\n\n", received.decode())
    reported = [int(place.split("-")[0]) for place, kind in seen if kind == "progress"]
    assert reported[-1] < last
    assert reported + iterations(list(events(caller, claim.job_id, seen[-1][0]))) == list(range(1, last + 1))


def _publish_until_closed(records: ExecutionRecords, claim: Claim, running: Api) -> int:
    last = 0

    def closed() -> bool:
        nonlocal last
        records.claims.publish(claim, [row(iteration) for iteration in range(last + 1, last + 501)])
        last += 500
        return bool(running.app.state.broadcaster.subscribers == 0)

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
            with running_api(settings) as running, http_client(running.address) as caller:
                submit(caller, upload(caller, planted(3, 3))["id"])
                records = ExecutionRecords.of(settings)
                claim = records.claims.claim("the test")
                assert claim is not None
                with watching(caller, claim.job_id) as seen:
                    records.claims.publish(claim, [row(1)])
                    wait_for(partial(_has, seen, 1), 5, "the first event")
                    redis.kill()
                    redis.wait()
                    refused(caller.get(f"/v1/jobs/{claim.job_id}"), 503, "unavailable")
                    redis = start_redis(plain, address, folder)
                    records.claims.publish(claim, [row(2), row(3)])
                    wait_for(partial(_has, seen, 3), 10, "the events after the outage")
                    end(records, claim)
        finally:
            stop(redis, 10)
    assert iterations(seen) == [1, 2, 3]
    assert seen[-1].kind == "end"


@pytest.mark.parametrize(("accelerate", "phase"), [("compress", "compressed"), ("float32", "single")])
def test_every_iteration_says_its_phase_live_and_stored(
    client_with_worker: httpx.Client, accelerate: str, phase: str
) -> None:
    rule = {"criterion": "relative_objective", "tolerance": 1e-6, "max_iterations": 2000}
    tensor = upload(client_with_worker, planted(24, 24, 24))["id"]
    job = finished(
        client_with_worker, submit(client_with_worker, tensor, method="apg", accelerate=accelerate, stop=rule)["id"]
    )
    seen = [event.content["phase"] for event in events(client_with_worker, job["id"]) if event.kind == "progress"]
    change = seen.index("exact")
    assert change > 0
    assert seen == [phase] * change + ["exact"] * (len(seen) - change)
    assert job["progress"]["phase"] == "exact"
    path = f"/v1/jobs/{job['id']}/history"
    assert [row["phase"] for row in client_with_worker.get(path).json()] == seen
    table = csv.DictReader(io.StringIO(client_with_worker.get(path, params={"format": "csv"}).text))
    assert [row["phase"] for row in table] == seen


def test_a_plain_run_is_exact_from_the_start(client_with_worker: httpx.Client) -> None:
    job = submit(
        client_with_worker,
        upload(client_with_worker, planted(5, 5, 5))["id"],
        stop={"max_iterations": 4, "tolerance": 0},
    )
    phases = [event.content["phase"] for event in events(client_with_worker, job["id"]) if event.kind == "progress"]
    assert phases == ["exact"] * 4


def test_trial_starts_come_first_and_say_so(client_with_worker: httpx.Client) -> None:
    tensor = upload(client_with_worker, planted(12, 11, 10))["id"]
    job = finished(
        client_with_worker, submit(client_with_worker, tensor, method="anls-bpp", preset="recommended")["id"]
    )
    rows = client_with_worker.get(f"/v1/jobs/{job['id']}/history").json()
    phases = [row["phase"] for row in rows]
    change = phases.index("exact")
    assert phases == ["start"] * change + ["exact"] * (len(phases) - change)
    assert 0 < change < len(phases)


def test_the_documentation_names_the_phases(client: httpx.Client) -> None:
    described = client.get("/openapi.json").json()["components"]["schemas"]["Progress"]["properties"]["phase"]
    assert described["enum"] == ["start", "compressed", "single", "exact"]
    assert "approximate" in described["description"]

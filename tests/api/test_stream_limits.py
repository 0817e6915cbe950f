"""Event streams: how many may be open, what a client does without one, and what many clients share."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from ncp_client import Client
from sparse_ncp.app.streaming.recorded import PAGE
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, JobError, Progress
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from tests.support.api import Api, events, http_client, parsed, planted, refused, running_api, submit, upload
from tests.support.stack import embedded_redis, wait_for


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    """A Redis of its own: here the test is the worker."""
    folder: Path = tmp_path_factory.mktemp("streams")
    with embedded_redis(folder, keep_alive_seconds=0.3, max_streams_per_owner=2, max_streams=3) as made:
        yield made


@pytest.fixture(scope="module")
def records(settings: Configuration) -> ExecutionRecords:
    return ExecutionRecords.of(settings)


@pytest.fixture(scope="module")
def running(settings: Configuration) -> Iterator[Api]:
    with running_api(settings) as made:
        yield made


@pytest.fixture
def caller(running: Api) -> Iterator[httpx.Client]:
    with http_client(running.address) as made:
        yield made


def running_job(caller: httpx.Client, records: ExecutionRecords) -> Claim:
    submit(caller, upload(caller, planted(3, 3))["id"])
    found = records.claims.claim("the test")
    assert found is not None
    return found


def publish(records: ExecutionRecords, claim: Claim, first: int, last: int) -> None:
    records.claims.publish(
        claim,
        [
            Progress(iteration=k, objective=1 / k, relative_error=0.5, fit=0.5, seconds=0.1 * k)
            for k in range(first, last + 1)
        ],
    )


def end(records: ExecutionRecords, claim: Claim) -> None:
    assert records.claims.fail(claim, JobError(kind="system", message="the test ends it", remedy="none"))


@contextmanager
def open_streams(caller: httpx.Client, job_id: str, count: int) -> Iterator[ExitStack]:
    """So many streams, which are not read; closing the stack closes them."""
    with ExitStack() as stack:
        for _ in range(count):
            answer = stack.enter_context(caller.stream("GET", f"/v1/jobs/{job_id}/events"))
            assert answer.status_code == 200
        yield stack


def test_no_owner_and_not_all_owners_together_open_more_streams_than_the_limit(
    running: Api, caller: httpx.Client, records: ExecutionRecords
) -> None:
    claim = running_job(caller, records)
    path = f"/v1/jobs/{claim.job_id}/events"
    with open_streams(caller, claim.job_id, 2) as streams:
        answer = caller.get(path)
        problem = refused(answer, 429, "too-many-streams")
        assert "you have 2 event streams open" in problem["detail"].lower()
        assert "follow=false" in problem["remedy"]
        assert int(answer.headers["retry-after"]) > 0
        assert caller.head(path).status_code == 200
        with http_client(running.address, "another owner") as other, http_client(running.address, "third") as third:
            other_job, third_job = (submit(lab, upload(lab, planted(3, 3))["id"])["id"] for lab in (other, third))
            with open_streams(other, other_job, 1):
                problem = refused(third.get(f"/v1/jobs/{third_job}/events"), 429, "too-many-streams")
                assert "the server" in problem["detail"].lower()
            for lab, id in ((other, other_job), (third, third_job)):
                lab.post(f"/v1/jobs/{id}/cancel")
        streams.close()

        def accepted() -> bool:
            with caller.stream("GET", path) as again:
                return again.status_code == 200

        wait_for(accepted, 10, "a closed stream not to count any more")
    end(records, claim)


def test_what_is_recorded_is_given_without_a_stream(caller: httpx.Client, records: ExecutionRecords) -> None:
    claim = running_job(caller, records)
    path = f"/v1/jobs/{claim.job_id}/events?follow=false"
    publish(records, claim, 1, 3)
    with open_streams(caller, claim.job_id, 2):
        with caller.stream("GET", path) as answer:
            first = list(parsed(answer))
        assert [event.content["iteration"] for event in first if event.kind == "progress"] == [1, 2, 3]
        publish(records, claim, 4, 5)
        with caller.stream("GET", path, headers={"Last-Event-ID": first[-1].id}) as answer:
            second = list(parsed(answer))
        assert [event.content["iteration"] for event in second if event.kind == "progress"] == [4, 5]
        end(records, claim)
        with caller.stream("GET", path, headers={"Last-Event-ID": second[-1].id}) as answer:
            third = list(parsed(answer))
        assert third[-1].kind == "end"
        assert caller.get(path, headers={"Last-Event-ID": third[-1].id}).status_code == 204
    assert [*first, *second, *third] == list(events(caller, claim.job_id))


def test_a_client_that_may_open_no_stream_still_sees_every_iteration_once(
    running: Api, caller: httpx.Client, records: ExecutionRecords
) -> None:
    claim = running_job(caller, records)
    seen: list[int] = []
    with open_streams(caller, claim.job_id, 2), Client(running.address, patience_seconds=30) as client:
        client._connection._http.headers.update(caller.headers)
        job = client.job(claim.job_id)
        watching = threading.Thread(target=lambda: seen.extend(row.iteration for row in job.watch()))
        watching.start()
        for last in (3, 6, 9):
            publish(records, claim, last - 2, last)
        end(records, claim)
        watching.join(30)
        assert not watching.is_alive()
    assert seen == list(range(1, 10))


def test_many_clients_that_replay_a_history_share_the_pages(
    settings: Configuration, records: ExecutionRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page is read once for all; only the last one, which still grows, is read for each who comes later."""
    reads: list[str | None] = []
    real = JobOperations.events_after

    def counted(self: JobOperations, id: str, event_id: str | None = None, count: int = 1000) -> object:
        if count > 1:
            reads.append(event_id)
        return real(self, id, event_id, count)

    with running_api(settings) as api, http_client(api.address) as caller:
        claim = running_job(caller, records)
        publish(records, claim, 1, 3 * PAGE + 7)
        end(records, claim)
        monkeypatch.setattr(JobOperations, "events_after", counted)
        replays = [list(events(caller, claim.job_id)) for _ in range(6)]
        assert all(replay == replays[0] for replay in replays)
        assert [event.content["iteration"] for event in replays[0] if event.kind == "progress"] == list(
            range(1, 3 * PAGE + 8)
        )
        pages = [f"{place * PAGE}-0" for place in range(3)]
        assert [reads.count(page) for page in pages] == [1, 1, 1]
        resumed = list(events(caller, claim.job_id, f"{PAGE + 5}-0"))
        assert resumed == replays[0][-len(resumed) :]
        assert resumed[0].id == f"{PAGE + 6}-0"
        assert reads.count(pages[1]) == 1, "a client that resumes in the middle shares them as well"

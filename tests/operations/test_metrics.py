"""/metrics describes the state of the server to Prometheus."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import JobRequest, Progress
from sparse_ncp.worker.records.claims import ExecutionRecords
from tests.support.api import (
    Api,
    events,
    finished,
    http_client,
    new_holder,
    planted,
    refused,
    running_api,
    submit,
    upload,
)
from tests.support.stack import embedded_redis, wait_for


def scraped(caller: httpx.Client) -> dict[str, float]:
    """Every sample by its name and labels, as Prometheus's own parser reads them."""
    answer = caller.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return {
        sample.name + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Api]:
    """The test is the worker here."""
    settings = {"keep_alive_seconds": 0.3, "lease_seconds": 0.2, "min_free_bytes": 1}
    with embedded_redis(tmp_path, **settings) as made, running_api(made) as api_:
        yield api_


@pytest.fixture
def caller(running: Api) -> Iterator[httpx.Client]:
    with http_client(running.address) as made:
        yield made


def row(iteration: int) -> Progress:
    return Progress(iteration=iteration, objective=1.0, relative_error=0.5, fit=0.5, seconds=0.1)


def test_a_job_shows_in_the_numbers_on_its_way(running: Api, caller: httpx.Client) -> None:
    records = ExecutionRecords.of(running.app.state.configuration)
    before = scraped(caller)
    submit(caller, upload(caller, planted(3, 3))["id"])
    waiting = wait_for(
        lambda: now if (now := scraped(caller))["ncp_oldest_queued_job_seconds"] > 0.05 else None, 5, "it to grow old"
    )
    assert waiting["ncp_queued_jobs"] == before["ncp_queued_jobs"] + 1
    claim = records.claims.claim("the test")
    assert claim is not None
    records.claims.publish(claim, [row(1), row(2)])
    records.claims.publish(claim, [row(2), row(3)])
    now = scraped(caller)
    assert (now["ncp_queued_jobs"], now["ncp_running_jobs"]) == (before["ncp_queued_jobs"], 1)
    assert now["ncp_oldest_queued_job_seconds"] == 0
    assert now["ncp_iterations_total"] == before["ncp_iterations_total"] + 3


def test_what_went_wrong_is_counted(running: Api, caller: httpx.Client) -> None:
    records = ExecutionRecords.of(running.app.state.configuration)
    submit(caller, upload(caller, planted(3, 3))["id"])
    lost = records.claims.claim("a worker that falls silent")
    assert lost is not None
    before = scraped(caller)
    wait_for(lambda: lost.job_id in records.leases.reap(), 5, "its lease to run out")
    again = wait_for(lambda: records.claims.claim("another"), 5, "the job again")
    assert records.claims.publish(lost, [row(1)]) == "lost"
    assert not records.claims.save_checkpoint(lost, "late", 1)
    now = scraped(caller)
    assert now["ncp_expired_leases_total"] == before["ncp_expired_leases_total"] + 1
    assert now["ncp_fenced_writes_total"] == before["ncp_fenced_writes_total"] + 2
    caller.post(f"/v1/jobs/{again.job_id}/cancel")
    records.claims.hand_back(again)
    ended = "ncp_ended_jobs_total,state=cancelled"
    assert scraped(caller)[ended] == before[ended] + 1


def test_requests_are_counted_by_template_whatever_is_asked(caller: httpx.Client) -> None:
    for name in ("a", "b", "c"):
        refused(caller.get(f"/v1/jobs/{name}"), 404)
        refused(caller.get(f"/{name}"), 404)
        caller.request(f"ODD{name}".upper(), "/v1/jobs")
    now = scraped(caller)
    assert now["ncp_requests_total,method=GET,route=/v1/jobs/{job_id},status=404"] >= 3
    assert now["ncp_requests_total,method=GET,route=unmatched,status=404"] >= 3
    assert now["ncp_request_seconds_count,method=GET,route=/v1/jobs/{job_id}"] >= 3
    assert not [name for name in now if "/v1/jobs/a" in name or "ODD" in name]


def test_event_clients_and_bytes_are_counted(running: Api, caller: httpx.Client) -> None:
    tensor = upload(caller, planted(9, 8, 7))
    job = submit(caller, tensor["id"])
    with caller.stream("GET", f"/v1/jobs/{job['id']}/events") as stream:
        lines = stream.iter_lines()  # held: a generator that goes would close the stream
        next(lines)
        wait_for(lambda: scraped(caller)["ncp_event_clients"] == 1, 5, "the client to be counted")
    wait_for(lambda: scraped(caller)["ncp_event_clients"] == 0, 5, "the client to be gone")
    now = wait_for(lambda: found if "ncp_store_bytes,kind=tensors" in (found := scraped(caller)) else None, 5, "a look")
    assert now["ncp_store_bytes,kind=tensors"] > 0
    assert now["ncp_free_disk_bytes"] > 0
    assert now[f"ncp_build_info,version={running.app.version}"] == 1


def test_workers_count_through_redis(client_with_worker: httpx.Client) -> None:
    before = scraped(client_with_worker)
    job = submit(
        client_with_worker,
        upload(client_with_worker, planted(9, 8, 7))["id"],
        stop={"max_iterations": 40, "tolerance": 0},
    )
    assert finished(client_with_worker, job["id"])["state"] == "succeeded"
    assert list(events(client_with_worker, job["id"]))[-1].kind == "end"
    now = scraped(client_with_worker)
    assert now["ncp_iterations_total"] == before["ncp_iterations_total"] + 40
    assert now["ncp_ended_jobs_total,state=succeeded"] == before["ncp_ended_jobs_total,state=succeeded"] + 1
    assert now["ncp_live_workers"] == 1


def test_without_redis_the_other_metrics_remain(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, min_free_bytes=1) as configuration:
        pass
    with running_api(configuration) as running, http_client(running.address) as caller:
        now = scraped(caller)
        assert now["ncp_redis_up"] == 0
        assert now["ncp_free_disk_bytes"] > 0
        assert "ncp_queued_jobs" not in now
        assert scraped(caller)["ncp_requests_total,method=GET,route=/metrics,status=200"] == 1


def test_a_scrape_is_cheap_with_ten_thousand_queued_jobs(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as configuration,
        running_api(configuration) as running,
        http_client(running.address) as caller,
    ):
        tensor = upload(caller, planted(3, 3))
        _queue(configuration, tensor["id"], 10_000)
        assert scraped(caller)["ncp_queued_jobs"] == 10_000
        took = min(_timed(caller) for _ in range(5))
    # A few milliseconds on an idle machine; listing the jobs would take hundreds.
    assert took < 0.05


def _queue(configuration: Configuration, tensor_id: str, count: int) -> None:
    """As so many submissions would, in few round trips: the script that every submission runs."""
    from sparse_ncp.worker.records.jobs import digest_of, request_record
    from sparse_ncp.worker.records.redis.connection import RedisConnection

    body = JobRequest.model_validate({"tensor_id": tensor_id, "rank": 2, "method": "hals"})
    record, digest = request_record(body, None, None), digest_of(body)
    calls: list[list[str | int]] = [
        [f"{number:020x}", "local", tensor_id, "", 0, "hals", record, "", digest, 1, "", "", "", "", "", 0, 0]
        for number in range(count)
    ]
    redis = RedisConnection.of(configuration)
    redis.script_calls("jobs/submit", calls)
    redis.close()


def _timed(caller: httpx.Client) -> float:
    started = time.perf_counter()
    scraped(caller)
    return time.perf_counter() - started


def test_from_elsewhere_only_an_admin_reads_them(tmp_path: Path) -> None:
    elsewhere = ({"X-Forwarded-For": "192.0.2.7"}, {"Host": "lab.example"})
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as made,
        running_api(made, keys=True) as running,
        new_holder(made, running.address, "ada", admin=True) as admin,
        new_holder(made, running.address, "bob") as other,
        http_client(running.address) as anonymous,
    ):
        for headers in elsewhere:
            assert admin.get("/metrics", headers=headers).status_code == 200
            refused(other.get("/metrics", headers=headers), 403, "forbidden")
            refused(anonymous.get("/metrics", headers=headers), 401, "no-key")
        assert anonymous.get("/metrics").status_code == 200

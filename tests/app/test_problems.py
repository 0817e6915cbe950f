"""Whatever goes wrong leaves in one shape, and nothing of the inside with it."""

import logging
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.app.api import Api, api, client, planted, refused, submit, upload
from tests.stack import embedded_redis
from worker.configuration import Configuration
from worker.logs import AddSubject


def test_an_unknown_path_is_a_problem(front: httpx.Client) -> None:
    for path in ("/nothing", "/v1/nothing", "/v1/jobs/x", "/v1/tensors/x/content", "/v1/jobs/x/factors/0/y"):
        refused(front.get(path), 404)


def test_a_wrong_method_is_a_problem_that_names_the_right_ones(front: httpx.Client) -> None:
    for method, path in (("PUT", "/v1/tensors"), ("DELETE", "/v1/jobs"), ("PATCH", "/v1/jobs/x"), ("POST", "/healthz")):
        answer = front.request(method, path)
        refused(answer, 405)
        assert answer.headers["allow"]


def test_a_large_body_is_cut_off_wherever_it_does_not_belong(front: httpx.Client) -> None:
    chunks = (bytes(1 << 16) for _ in range(100))
    refused(front.post("/v1/jobs", content=chunks, headers={"Content-Type": "application/json"}), 413)


def test_a_mode_that_is_not_a_number_is_refused(front: httpx.Client) -> None:
    assert refused(front.get("/v1/jobs/x/factors/first"), 422)["errors"][0]["field"] == "mode"
    assert refused(front.get("/v1/jobs/x/factors/0"), 422)["errors"][0]["field"] == "mode"
    assert refused(front.get("/v1/jobs/x/factors?format=doc"), 422)["errors"][0]["field"] == "format"
    assert refused(front.get("/v1/jobs/x/history?after=-1"), 422)["errors"][0]["field"] == "after"


def test_the_callers_request_id_is_kept_if_it_is_harmless(front: httpx.Client) -> None:
    assert front.get("/healthz", headers={"X-Request-Id": "lab-7.a_B"}).headers["x-request-id"] == "lab-7.a_B"
    drawn = [front.get("/healthz", headers={"X-Request-Id": "a b" * n}).headers["x-request-id"] for n in (1, 100)]
    assert len(set(drawn)) == 2
    assert not {"a b", "a b" * 100} & set(drawn)


def test_every_answer_has_a_log_line_with_its_request_id(front: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.addFilter(AddSubject())
    caplog.set_level(logging.INFO)
    answer = front.get("/v1/jobs/nothing", headers={"X-Request-Id": "traced"})
    assert answer.headers["x-request-id"] == "traced"
    lines = [record for record in caplog.records if record.name == "ncp.http"]
    assert any(getattr(record, "request_id", "") == "traced" and "404" in record.getMessage() for record in lines)


def test_a_path_cannot_write_log_lines_of_its_own(front: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    refused(front.get("/v1/jobs/x%0aERROR%20forged"), 404)
    assert any("x%0AERROR%20forged" in record.getMessage() for record in caplog.records)
    assert not any("\nERROR" in record.getMessage() for record in caplog.records)


def test_a_failure_inside_tells_nothing_but_the_request_id(
    configuration: Configuration, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(app: FastAPI) -> None:
        @app.get("/broken")
        def fail() -> None:
            raise RuntimeError("secret of /var/lib")

    with api(configuration, broken) as running, client(running.address) as caller:
        answer = caller.get("/broken")
    problem = refused(answer, 500, "failure")
    assert "secret" not in answer.text
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert "secret of /var/lib" in caplog.text


def test_without_redis_every_call_says_when_to_try_again(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, min_free_bytes=1) as configuration:
        pass  # it has ended: its socket is gone
    with api(configuration) as running, client(running.address) as caller:
        for path in ("/v1/jobs", "/v1/tensors/x", "/v1/jobs/x/events", "/v1/jobs/x/factors"):
            answer = caller.get(path)
            refused(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0
            assert "sock" not in answer.text
        assert caller.get("/healthz").status_code == 200
        lacks = refused(caller.get("/readyz"), 503, "not-ready")["errors"]
        assert {lack["field"] for lack in lacks} == {"redis", "durable", "worker"}


def test_an_upload_without_redis_leaves_no_record(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as configuration:
        pass
    with api(configuration) as running, client(running.address) as caller:
        refused(caller.post("/v1/tensors", content=b"no tensor"), 422)
    assert list((configuration.data / "uploads").iterdir()) == []


def test_without_a_worker_the_server_is_not_ready_but_takes_jobs(idle: Api, front: httpx.Client) -> None:
    lacks = refused(front.get("/readyz"), 503, "not-ready")["errors"]
    assert [lack["field"] for lack in lacks] == ["worker"]
    job = submit(front, upload(front, planted(3, 3))["id"])
    assert front.post(f"/v1/jobs/{job['id']}/cancel").status_code == 202

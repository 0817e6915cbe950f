"""Log lines name the owner, the request and the job they are about."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.logs import JsonFormatter, TextFormatter
from tests.support.api import finished, http_client, planted, refused, submit, upload
from tests.support.stack import ROOT, Server, end_tree, locked_redis, server, wait_for


def lines(log: Path) -> list[dict[str, Any]]:
    """The JSON lines; what `ncp serve` prints for people is not one."""
    return [json.loads(line) for line in log.read_text().splitlines() if not line.startswith("ncp ")]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("logs")
    with server(folder, log_format="json", log_level="debug", min_free_bytes=1, checkpoint_seconds=0.05) as made:
        yield made


def test_one_request_can_be_followed_through_every_process(running: Server) -> None:
    with http_client(running.address) as caller:
        tensor = upload(caller, planted(30, 30, 30))
        traced = {"X-Request-Id": "from-the-lab"}
        body = {"tensor_id": tensor["id"], "rank": 3, "method": "hals", "stop": {"max_iterations": 50, "tolerance": 0}}
        job = caller.post("/v1/jobs", json=body, headers=traced).json()
        finished(caller, job["id"])

    def reported() -> list[dict[str, Any]] | None:
        found = [line for line in lines(running.log) if line.get("request_id") == "from-the-lab"]
        return found if any(line["message"].endswith(": ended") for line in found) else None

    found = wait_for(reported, 10, "the job's last line")
    assert {line["logger"] for line in found} >= {"ncp.http", "ncp.worker", "ncp.job"}
    assert len({line["process"] for line in found}) >= 3
    assert all(line["owner"] == "local" for line in found)
    assert all(line["job_id"] == job["id"] for line in found)


def test_every_line_is_json_and_an_answer_has_its_numbers(running: Server) -> None:
    with http_client(running.address) as caller:
        refused(caller.get("/v1/jobs/nothing", headers={"X-Request-Id": "seen"}), 404)
    wait_for(lambda: any(line.get("request_id") == "seen" for line in lines(running.log)), 5, "the line")
    (line,) = [line for line in lines(running.log) if line.get("request_id") == "seen"]
    assert line["method"] == "GET"
    assert line["route"] == "/v1/jobs/{job_id}"
    assert line["path"] == "/v1/jobs/nothing"
    assert line["status"] == 404
    assert line["milliseconds"] > 0
    assert line["owner"] == "local"
    assert line["job_id"] == "nothing"
    assert line["level"] == "info"


def test_probes_are_logged_at_debug_level_only(running: Server) -> None:
    with http_client(running.address) as caller:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert caller.get(path).status_code == 200
            wait_for(lambda: any(line.get("path") == path for line in lines(running.log)), 5, path)  # noqa: B023
    probes = [line for line in lines(running.log) if line.get("path") in ("/healthz", "/readyz", "/metrics")]
    assert {line["level"] for line in probes} == {"debug"}


def test_the_first_lines_are_about_the_server_not_about_probes(tmp_path: Path) -> None:
    with server(tmp_path, log_level="INFO", min_free_bytes=1) as running:
        reported = running.log.read_text()
    assert "/healthz" not in reported
    assert "SecurityWarning" not in reported
    assert "superuser" not in reported


def test_the_threads_of_a_job_say_whose_they_are(tmp_path: Path) -> None:
    with locked_redis(tmp_path / "r") as (address, redis):
        settings = {"redis_url": address, "log_format": "json", "lease_seconds": 1, "min_free_bytes": 1}
        with server(tmp_path, **settings) as running, http_client(running.address) as caller:
            job = submit(caller, upload(caller, planted(9, 8, 7))["id"], stop={"max_iterations": 10**6, "tolerance": 0})
            wait_for(lambda: caller.get(f"/v1/jobs/{job['id']}").json()["progress"], what="the job to run")
            redis.kill()
            redis.wait()
            message = "could not renew the lease"
            reported = wait_for(lambda: [line for line in lines(running.log) if message in line["message"]])
    assert {(line["job_id"], line["owner"]) for line in reported} == {(job["id"], "local")}


def test_a_message_cannot_begin_a_line_of_its_own() -> None:
    record = logging.LogRecord("ncp", logging.INFO, "x", 1, "one\ntwo\r\nthree", (), None)
    assert TextFormatter().format(record).count("\n") == 0
    assert JsonFormatter().format(record).count("\n") == 0


def test_a_level_may_be_written_in_capitals() -> None:
    assert Configuration(log_level="WARNING").log_level == "warning"
    assert Configuration(log_format="JSON").log_format == "json"


def test_a_worker_alone_writes_the_same_lines(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1):
        address = f"unix://{tmp_path}/data/redis/redis.sock"
        settings = Configuration(data=tmp_path / "data", redis_url=address, log_format="json")
        with (tmp_path / "worker").open("wb") as log:
            command = [sys.executable, "-m", "sparse_ncp.app.cli.main", "worker"]
            environment = {**os.environ, **settings.environment()}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, start_new_session=True)
        try:
            wait_for(lambda: "ready" in (tmp_path / "worker").read_text(), 60, "the worker")
        finally:
            end_tree(process)
    assert all(line["level"] in ("info", "warning") for line in lines(tmp_path / "worker"))
    assert len(lines(tmp_path / "worker")) > 0

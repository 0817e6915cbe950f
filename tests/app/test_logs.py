"""What the server writes about itself: who, which request, which job; and never a secret."""

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.app.api import client, finished, planted, refused, submit, upload
from tests.app.holders import holder
from tests.stack import ROOT, Server, end_tree, server, wait_for
from worker.configuration import Configuration
from worker.embedded_redis import find_server
from worker.key_files import KeyFiles
from worker.limits import Limits
from worker.logs import Human, Json
from worker.process import stop
from worker.redaction import redacted

PASSWORD = "p4ss/w0rd@of-redis"
ENCODED = quote(PASSWORD, safe="")
KEY = "ncp_" + "k3y" * 12
FOREIGN = "another-secret-of-a-caller"


def lines(log: Path) -> list[dict[str, Any]]:
    """The JSON lines; what `ncp serve` prints for people is not one."""
    return [json.loads(line) for line in log.read_text().splitlines() if not line.startswith("ncp ")]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("logs")
    with server(folder, log_format="json", log_level="debug", min_free_bytes=1, checkpoint_seconds=0.05) as made:
        yield made


def test_one_request_can_be_followed_through_every_process(running: Server) -> None:
    with client(running.address) as caller:
        tensor = upload(caller, planted(30, 30, 30))
        traced = {"X-Request-Id": "from-the-lab"}
        body = {"tensor_id": tensor["id"], "rank": 3, "method": "hals", "stop": {"max_iterations": 50, "tolerance": 0}}
        job = caller.post("/v1/jobs", json=body, headers=traced).json()
        finished(caller, job["id"])

    def told() -> list[dict[str, Any]] | None:
        found = [line for line in lines(running.log) if line.get("request_id") == "from-the-lab"]
        return found if any(line["message"].endswith(": ended") for line in found) else None

    found = wait_for(told, 10, "the job's last line")
    assert {line["logger"] for line in found} >= {"ncp.http", "ncp.worker", "ncp.job"}
    assert len({line["process"] for line in found}) >= 3
    assert all(line["owner"] == "local" for line in found)
    assert all(line["job_id"] == job["id"] for line in found)


def test_every_line_is_json_and_an_answer_tells_its_numbers(running: Server) -> None:
    with client(running.address) as caller:
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


def test_probes_are_told_only_to_those_who_want_everything(running: Server) -> None:
    with client(running.address) as caller:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert caller.get(path).status_code == 200
            wait_for(lambda: any(line.get("path") == path for line in lines(running.log)), 5, path)  # noqa: B023
    probes = [line for line in lines(running.log) if line.get("path") in ("/healthz", "/readyz", "/metrics")]
    assert {line["level"] for line in probes} == {"debug"}


def test_the_first_lines_are_about_the_server_not_about_probes(tmp_path: Path) -> None:
    with server(tmp_path, log_level="INFO", min_free_bytes=1) as running:
        told = running.log.read_text()
    assert "/healthz" not in told
    assert "SecurityWarning" not in told
    assert "superuser" not in told


@contextmanager
def locked_redis(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """A Redis that asks for a password; gives its address with it."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(find_server(Configuration())), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction", "--save", ""]
    process = subprocess.Popen([*command, "--requirepass", PASSWORD, "--logfile", "redis.log"], cwd=folder)
    try:
        log = folder / "redis.log"
        wait_for(lambda: log.exists() and "Ready to accept" in log.read_text(), 10, "Redis")
        yield f"redis://:{ENCODED}@127.0.0.1:{port}/0", process
    finally:
        stop(process, 10)


@pytest.mark.parametrize("form", ["human", "json"])
def test_no_log_has_a_secret(tmp_path: Path, form: str) -> None:
    """With everything logged, through good times and bad: a job, refusals, a crash of Redis."""
    with locked_redis(tmp_path / "r") as (address, redis):
        settings = {"redis_url": address, "log_level": "debug", "log_format": form, "min_free_bytes": 1}
        key = KeyFiles(tmp_path / "data").create("lab", False, Limits())
        with server(tmp_path, **settings) as running, holder(running.address, key) as caller:
            caller.headers.update({"Cookie": FOREIGN, "X-Api-Key": FOREIGN})
            finished(caller, submit(caller, upload(caller, planted(5, 4, 3))["id"])["id"])
            refused(caller.get("/v1/jobs/none", params={"key": FOREIGN}), 404)
            refused(caller.get("/v1/jobs", headers={"Authorization": f"Bearer {KEY}"}), 401)
            log = running.log
            redis.kill()
            redis.wait()
            refused(caller.get("/v1/jobs", timeout=60), 503)
            wait_for(lambda: log.read_text().count("put off") or "cannot" in log.read_text(), what="complaints")
    written = [log, *tmp_path.rglob("*.log")]
    assert len(written) >= 2
    for path in written:
        told = path.read_text()
        for secret in (PASSWORD, ENCODED, key, KEY, FOREIGN, "p4ss"):
            assert secret not in told, f"{path.name} has {secret}"


def test_the_threads_of_a_job_say_whose_they_are(tmp_path: Path) -> None:
    with locked_redis(tmp_path / "r") as (address, redis):
        settings = {"redis_url": address, "log_format": "json", "lease_seconds": 1, "min_free_bytes": 1}
        with server(tmp_path, **settings) as running, client(running.address) as caller:
            job = submit(caller, upload(caller, planted(9, 8, 7))["id"], stop={"max_iterations": 10**6, "tolerance": 0})
            wait_for(lambda: caller.get(f"/v1/jobs/{job['id']}").json()["progress"], what="the job to run")
            redis.kill()
            redis.wait()
            told = wait_for(lambda: [line for line in lines(running.log) if "lease could not" in line["message"]])
    assert {(line["job_id"], line["owner"]) for line in told} == {(job["id"], "local")}


@pytest.mark.parametrize(
    "text",
    [
        "redis://:s3cret@host:6379/0 is away",
        "redis://user:s3cret/x@y@host",
        "rediss+socket://:s3cret@/tmp/x",
        "Authorization: Bearer s3cret-s3cret",
        "{'authorization': 'Basic s3cret=='}",
        "the key ncp_s3crets3crets3cret was refused",
    ],
)
def test_what_looks_like_a_secret_is_not_written(text: str) -> None:
    assert "s3cret" not in redacted(text)
    record = logging.LogRecord("ncp", logging.ERROR, "x", 1, "failed with %s", (text,), None)
    assert "s3cret" not in Human().format(record)
    assert "s3cret" not in Json().format(record)
    try:
        raise RuntimeError(text)
    except RuntimeError:
        record.exc_info = sys.exc_info()
    assert "s3cret" not in Human().format(record)
    assert "s3cret" not in Json().format(record)


def test_a_message_cannot_begin_a_line_of_its_own() -> None:
    record = logging.LogRecord("ncp", logging.INFO, "x", 1, "one\ntwo\r\nthree", (), None)
    assert Human().format(record).count("\n") == 0
    assert Json().format(record).count("\n") == 0


def test_a_level_may_be_written_in_capitals() -> None:
    assert Configuration(log_level="WARNING").log_level == "warning"  # type: ignore[arg-type]
    assert Configuration(log_format="JSON").log_format == "json"  # type: ignore[arg-type]


def test_a_worker_alone_writes_the_same_lines(tmp_path: Path) -> None:
    with server(tmp_path, min_free_bytes=1):
        address = f"unix://{tmp_path}/data/redis/redis.sock"
        settings = Configuration(data=tmp_path / "data", redis_url=address, log_format="json")
        with (tmp_path / "worker").open("wb") as log:
            command = [sys.executable, "-m", "app.command", "worker"]
            environment = {**os.environ, **settings.environment()}
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=log, start_new_session=True)
        try:
            wait_for(lambda: "ready" in (tmp_path / "worker").read_text(), 60, "the worker")
        finally:
            end_tree(process)
    assert all(line["level"] in ("info", "warning") for line in lines(tmp_path / "worker"))
    assert len(lines(tmp_path / "worker")) > 0

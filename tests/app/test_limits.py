"""Limits: each is told clearly, none can be overrun, none disturbs what was accepted."""

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.app.api import Api, api, finished, npy, planted, refused, submit, upload
from tests.app.holders import new_holder
from tests.stack import embedded_redis, restartable_redis, wait_for, worker
from worker.configuration import Configuration
from worker.key_files import KeyFiles
from worker.limits import Limits

SIZE = len(npy(planted(4, 5, 6)))
BODY = {"rank": 3, "method": "hals"}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    folder = tmp_path_factory.mktemp("limits")
    with embedded_redis(folder, min_free_bytes=1, max_rank=20, max_job_seconds=3600) as made:
        yield made


@pytest.fixture(scope="module")
def running(limited: Configuration) -> Iterator[Api]:
    with api(limited, keys=True) as made:
        yield made


def files(configuration: Configuration) -> set[Path]:
    return {path for name in ("tensors", "uploads") for path in (configuration.data / name).glob("[!.]*")}


def test_an_upload_over_the_owners_limit_is_too_large(limited: Configuration, running: Api) -> None:
    before = files(limited)
    with new_holder(limited, running.address, "small", tensor_bytes=SIZE - 1) as small:
        refused(small.post("/v1/tensors", content=npy(planted(4, 5, 6))), 413, "too-large")
        refused(small.post("/v1/tensors", content=iter([npy(planted(4, 5, 6))])), 413, "too-large")
    assert files(limited) == before


def test_bytes_are_refused_before_they_are_sent_once_the_quota_is_reached(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "full", stored_bytes=2 * SIZE) as full:
        kept = [upload(full, planted(4, 5, 6, seed=seed))["id"] for seed in (1, 2)]
        before = files(limited)
        assert _first_line(running, str(full.headers["Authorization"]), SIZE).startswith(b"HTTP/1.1 409")
        problem = refused(full.post("/v1/tensors", content=iter([npy(planted(4, 5, 6, seed=3))])), 409, "quota-reached")
        assert str(2 * SIZE) in problem["detail"]
        assert problem["remedy"]
        refused(full.post("/v1/jobs", json={"tensor_id": kept[0], **BODY}), 409, "quota-reached")
        assert files(limited) == before
        assert full.delete(f"/v1/tensors/{kept[0]}").status_code == 204
        upload(full, planted(4, 5, 6, seed=3))


def _first_line(running: Api, authorization: str, length: int) -> bytes:
    """The answer to an upload of which only the headers were sent."""
    address = urlsplit(running.address)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        head = f"POST /v1/tensors HTTP/1.1\r\nHost: localhost\r\nAuthorization: {authorization}\r\n"
        connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
        return connection.recv(4096).split(b"\r\n")[0]


def test_racing_uploads_and_submissions_keep_to_the_limits(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "racer", stored_bytes=3 * SIZE + 1, live_jobs=4) as racer:
        with ThreadPoolExecutor(8) as pool:
            contents = [npy(planted(4, 5, 6, seed=100 + seed)) for seed in range(8)]
            answers = list(pool.map(lambda content: racer.post("/v1/tensors", content=content), contents))
            assert sorted(answer.status_code for answer in answers) == [201] * 3 + [409] * 5
            tensor = next(answer.json()["id"] for answer in answers if answer.status_code == 201)
            answers = list(pool.map(lambda _: racer.post("/v1/jobs", json={"tensor_id": tensor, **BODY}), range(16)))
        assert sorted(answer.status_code for answer in answers) == [202] * 4 + [429] * 12
        refusal = next(answer for answer in answers if answer.status_code == 429)
        assert "4 jobs" in refused(refusal, 429, "too-many-jobs")["detail"]
        assert int(refusal.headers["retry-after"]) > 0
        usage = racer.get("/v1/usage").json()
        assert (usage["stored_bytes"], usage["jobs"]["queued"]) == (3 * SIZE, 4)
        sha256 = {path.stem for path in (limited.data / "tensors").glob("*.npy")}
        kept = {item["sha256"] for item in racer.get("/v1/tensors").json()["items"]}
        assert len(kept) == 3
        assert kept <= sha256


@pytest.mark.parametrize(
    ("fields", "field"), [({"rank": 21}, "rank"), ({"stop": {"max_seconds": 3601}}, "stop.max_seconds")]
)
def test_a_job_beyond_the_servers_limits_is_refused_unless_the_key_allows_it(
    limited: Configuration, running: Api, fields: dict[str, Any], field: str
) -> None:
    with new_holder(limited, running.address, f"plain-{field.lower()}") as plain:
        body = {"tensor_id": upload(plain, planted(30, 30))["id"], **BODY, **fields}
        problem = refused(plain.post("/v1/jobs", json=body), 422, "does-not-fit")
        assert [error["field"] for error in problem["errors"]] == [field]
        KeyFiles(limited.data).limit(f"plain-{field.lower()}", Limits(rank=None, job_seconds=None))
        assert plain.post("/v1/jobs", json=body).status_code == 202


def test_a_job_that_leaves_its_time_out_gets_the_ceiling(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "patient") as patient:
        job = submit(patient, upload(patient, planted(4, 5))["id"])
        assert job["settings"]["stop"]["max_seconds"] == 3600


def test_requests_beyond_the_rate_are_told_when_to_come_again(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "hasty", requests_per_second=0.3) as hasty:
        answers = [hasty.get("/v1/methods") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"requests";q=3;w=10'}
        left = [re.fullmatch(r'"requests";r=(\d+);t=([1-4])', answer.headers["ratelimit"]) for answer in answers]
        assert [int(found[1]) for found in left if found] == [2, 1, 0, 0]
        refused(answers[-1], 429, "too-fast")
        assert answers[-1].headers["retry-after"] == answers[-1].headers["ratelimit"].rpartition("=")[2]
        assert hasty.get("/healthz").status_code == 200
        with new_holder(limited, running.address, "calm", requests_per_second=None) as calm:
            assert "ratelimit" not in calm.get("/v1/methods").headers
        wait_for(lambda: hasty.get("/v1/methods").status_code == 200, 20, "another request to be granted")


def test_a_disk_without_room_is_told_before_a_byte_is_taken(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, min_free_bytes=1 << 60) as configuration, api(configuration, keys=True) as running:
        with new_holder(configuration, running.address, "ann") as ann:
            refused(ann.post("/v1/tensors", content=npy(planted(3, 3))), 507, "store-full")
            assert _first_line(running, str(ann.headers["Authorization"]), 5000).startswith(b"HTTP/1.1 507")
            assert ann.get("/v1/tensors").status_code == 200
        assert files(configuration) == set()


def test_room_is_looked_for_by_content_length(limited: Configuration, running: Api) -> None:
    """More than the disk has, though less than the limit: nothing but the header can tell."""
    with new_holder(limited, running.address, "huge", tensor_bytes=None) as huge:
        assert _first_line(running, str(huge.headers["Authorization"]), 1 << 60).startswith(b"HTTP/1.1 507")


def test_a_limiter_without_redis_says_when_to_try_again(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as configuration:
        pass  # it has ended
    with (
        api(configuration, keys=True) as running,
        new_holder(configuration, running.address, "ann", requests_per_second=100) as ann,
    ):
        for path in ("/v1/methods", "/v1/jobs"):
            answer = ann.get(path)
            refused(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0


def test_a_restart_of_redis_forgets_no_usage(tmp_path: Path) -> None:
    with (
        restartable_redis(tmp_path, min_free_bytes=1) as (configuration, restart),
        api(configuration, keys=True) as running,
        new_holder(configuration, running.address, "ann", requests_per_second=100) as ann,
    ):
        upload(ann, planted(4, 5, 6))
        restart()
        usage = wait_for(lambda: _usage(ann), 30, "the API to recover")
        assert usage["stored_bytes"] == SIZE


def _usage(caller: httpx.Client) -> dict[str, Any] | None:
    answer = caller.get("/v1/usage")
    found: dict[str, Any] = answer.json()
    return found if answer.status_code == 200 else None


def test_limits_reached_do_not_disturb_what_was_accepted(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1) as configuration,
        api(configuration, keys=True) as running,
        new_holder(configuration, running.address, "ann", live_jobs=2, stored_bytes=SIZE + 1) as ann,
    ):
        tensor = upload(ann, planted(4, 5, 6))["id"]
        jobs = [submit(ann, tensor, stop={"max_iterations": 5})["id"] for _ in range(2)]
        refused(ann.post("/v1/jobs", json={"tensor_id": tensor, **BODY}), 429, "too-many-jobs")
        limits = Limits(live_jobs=1, stored_bytes=1, rank=1, job_seconds=1e-9, tensor_bytes=1)
        KeyFiles(configuration.data).limit("ann", limits)
        with worker(configuration):
            assert [finished(ann, job)["state"] for job in jobs] == ["succeeded"] * 2
        assert ann.get(f"/v1/jobs/{jobs[0]}/factors").status_code == 200
        assert ann.get(f"/v1/tensors/{tensor}/content").status_code == 200
        usage = ann.get("/v1/usage").json()
        assert usage["jobs"] == {"queued": 0, "running": 0, "succeeded": 2, "failed": 0, "cancelled": 0}
        assert usage["computing_seconds"] > 0
        assert usage["result_bytes"] > 0
        assert usage["stored_bytes"] == usage["tensor_bytes"] + usage["result_bytes"] > SIZE
        assert usage["limits"]["stored_bytes"] == 1
        assert (usage["owner"], usage["admin"]) == ("ann", False)

"""Limits are reported clearly, cannot be exceeded, and do not disturb accepted work."""

import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from sparse_ncp.app.auth.api_keys import ApiKeys
from sparse_ncp.app.streaming import multipart
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.owner_limits import Limits
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.support.api import Api, finished, new_holder, npy, planted, refused, running_api, submit, upload
from tests.support.stack import embedded_redis, restartable_redis, wait_for, worker

SIZE = len(npy(planted(4, 5, 6)))
BODY = {"rank": 3, "method": "hals"}


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Configuration]:
    folder = tmp_path_factory.mktemp("limits")
    with embedded_redis(folder, min_free_bytes=1, max_rank=20, max_job_seconds=3600) as made:
        yield made


@pytest.fixture(scope="module")
def running(limited: Configuration) -> Iterator[Api]:
    with running_api(limited, keys=True) as made:
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


def _begun(running: Api, caller: httpx.Client, length: int | None) -> socket.socket:
    """An upload of which only the headers were sent; without a length it is chunked."""
    address = urlsplit(running.address)
    connection = socket.create_connection((address.hostname, address.port), timeout=20)
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    key = caller.headers["Authorization"]
    connection.sendall(f"POST /v1/tensors HTTP/1.1\r\nHost: x\r\nAuthorization: {key}\r\n{framing}\r\n\r\n".encode())
    return connection


def test_a_chunked_upload_is_refused_as_soon_as_its_bytes_pass_the_quota(limited: Configuration, running: Api) -> None:
    quota, piece = 1 << 20, b"%x\r\n%s\r\n" % (1 << 16, bytes(1 << 16))
    with new_holder(limited, running.address, "endless", stored_bytes=quota, tensor_bytes=None) as endless:
        before = files(limited)
        with _begun(running, endless, None) as connection:
            header = npy(np.zeros(1 << 20, np.uint8))[:128]
            connection.sendall(b"80\r\n%s\r\n" % header)
            sent = 0
            while not select.select([connection], [], [], 0)[0]:
                connection.sendall(piece)
                sent += 1 << 16
                assert sent < 64 << 20, "the upload was not stopped"
            assert connection.recv(4096).startswith(b"HTTP/1.1 409")
        wait_for(lambda: files(limited) == before, 10, "what was written to go")
        assert endless.get("/v1/usage").json()["stored_bytes"] == 0
        upload(endless, planted(4, 5, 6))  # what it had reserved is free again


def test_uploads_that_run_at_the_same_time_share_the_quota(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "both", stored_bytes=10 * SIZE) as both:
        with _begun(running, both, 6 * SIZE) as first:
            held = wait_for(lambda: files(limited) and _reserved(limited, "both"), 10, "the first to begin")
            assert held == 6 * SIZE
            assert _first_line(running, str(both.headers["Authorization"]), 6 * SIZE).startswith(b"HTTP/1.1 409")
            upload(both, planted(4, 5, 6))  # there is room for that
            first.sendall(b"not a tensor")
        wait_for(lambda: not _reserved(limited, "both"), 10, "the first to be given up")
        with _begun(running, both, 6 * SIZE):
            wait_for(lambda: _reserved(limited, "both") == 6 * SIZE, 10, "the other to begin")
        wait_for(lambda: not _reserved(limited, "both"), 10, "it to be given up")


def _reserved(configuration: Configuration, owner: str) -> int:
    with connect(configuration) as client:
        held = [json.loads(text) for text in client.hvals(keys.UPLOADS)]
    return sum(upload["reserved"] for upload in held if upload["owner"] == owner)


FORM = {"Content-Type": "multipart/form-data; boundary=x"}
PART = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n%s\r\n'


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        (PART % b"" * 40_000, "has more than 16 parts"),
        (PART % bytes(100_000), "bytes beside the field"),
        (b"--x\r\n" + b"\r\n".join(b"X-%d: 1" % n for n in range(40_000)), "is not a multipart form"),
        (PART % b"1" + b"--x--\r\n" + bytes(1 << 20), "bytes beside the field"),
    ],
    ids=["parts", "another field", "headers", "after the end"],
)
def test_what_stands_around_the_file_in_a_form_is_bounded(
    limited: Configuration, running: Api, form: bytes, problem: str
) -> None:
    before = files(limited)
    with new_holder(limited, running.address, f"former-{len(form)}") as former:
        reported = refused(former.post("/v1/tensors", content=form, headers=FORM), 422, "bad-tensor")
    assert problem in reported["detail"]
    assert files(limited) == before


def test_a_form_is_not_parsed_where_others_wait(
    limited: Configuration, running: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing, waiting = threading.Event(), threading.Event()
    parse = multipart.FormFile._parse

    def slow_parse(form: multipart.FormFile, content: bytes) -> list[bytes]:
        parsing.set()
        assert waiting.wait(10), "no other caller was answered meanwhile"
        return parse(form, content)

    monkeypatch.setattr(multipart.FormFile, "_parse", slow_parse)
    with new_holder(limited, running.address, "slow-form") as former, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(former.post, "/v1/tensors", files={"file": ("x.npy", npy(planted(4, 5, 6)))})
        assert parsing.wait(10)
        assert httpx.get(f"{running.address}/healthz", trust_env=False).status_code == 200
        waiting.set()
        assert sent.result().status_code == 201


def test_racing_uploads_and_submissions_keep_to_the_limits(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "racer", stored_bytes=3 * SIZE + 1, live_jobs=4) as racer:
        with ThreadPoolExecutor(8) as pool:
            contents = [npy(planted(4, 5, 6, seed=100 + seed)) for seed in range(8)]
            answers = list(pool.map(lambda content: racer.post("/v1/tensors", content=content), contents))
            assert sorted(answer.status_code for answer in answers) == [201] * 3 + [409] * 5
            tensor = next(answer.json()["id"] for answer in answers if answer.status_code == 201)
            ApiKeys(limited.data).limit("racer", Limits(stored_bytes=10**7, live_jobs=4))
            answers = list(pool.map(lambda _: racer.post("/v1/jobs", json={"tensor_id": tensor, **BODY}), range(16)))
        assert sorted(answer.status_code for answer in answers) == [202] * 4 + [429] * 12
        refusal = next(answer for answer in answers if answer.status_code == 429)
        assert "4 jobs" in refused(refusal, 429, "too-many-jobs")["detail"]
        assert int(refusal.headers["retry-after"]) > 0
        usage = racer.get("/v1/usage").json()
        assert (usage["stored_bytes"], usage["jobs"]["queued"]) == (3 * SIZE, 4)
        sha256 = {path.parent.name for path in (limited.data / "tensors").glob("*/manifest-*.json")}
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
        ApiKeys(limited.data).limit(f"plain-{field.lower()}", Limits(rank=None, job_seconds=None))
        assert plain.post("/v1/jobs", json=body).status_code == 202


def test_all_limits_that_a_job_is_over_are_named_at_once_also_where_the_schema_refuses_it(
    limited: Configuration, running: Api
) -> None:
    with new_holder(limited, running.address, "greedy") as greedy:
        body = {**BODY, "tensor_id": "nothing", "rank": 21, "stop": {"max_seconds": 3601}}
        problem = refused(greedy.post("/v1/jobs", json=body), 422, "does-not-fit")
        assert [error["field"] for error in problem["errors"]] == ["rank", "stop.max_seconds", "tensor_id"]
        wrong = {**body, "seed": -1, "stop": {"max_seconds": 3601, "patience": 0}}
        named = [error["field"] for error in refused(greedy.post("/v1/jobs", json=wrong), 422, "invalid")["errors"]]
        assert sorted(named) == ["rank", "seed", "stop.max_seconds", "stop.patience", "tensor_id"]


def test_a_choice_over_the_limits_of_a_job_is_refused_by_each(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "chooser") as chooser:
        tensor = upload(chooser, planted(9, 8, 7))["id"]
        body = {"kind": "choose", "tensor_id": tensor, "rank": 21, "stop": {"max_seconds": 3601}}
        problem = refused(chooser.post("/v1/studies", json=body), 422, "does-not-fit")
        assert [error["field"] for error in problem["errors"]][:2] == ["rank", "stop.max_seconds"]


def test_a_job_that_leaves_its_time_out_gets_the_ceiling(limited: Configuration, running: Api) -> None:
    with new_holder(limited, running.address, "patient") as patient:
        job = submit(patient, upload(patient, planted(4, 5))["id"])
        assert job["settings"]["stop"]["max_seconds"] == 3600


def test_requests_beyond_the_rate_are_answered_with_when_to_retry(limited: Configuration, running: Api) -> None:
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


def test_a_full_disk_is_reported_before_the_body_is_read(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, min_free_bytes=1 << 60) as configuration,
        running_api(configuration, keys=True) as running,
    ):
        with new_holder(configuration, running.address, "ann") as ann:
            refused(ann.post("/v1/tensors", content=npy(planted(3, 3))), 507, "store-full")
            assert _first_line(running, str(ann.headers["Authorization"]), 5000).startswith(b"HTTP/1.1 507")
            assert ann.get("/v1/tensors").status_code == 200
        assert files(configuration) == set()


def test_room_is_looked_for_by_content_length(limited: Configuration, running: Api) -> None:
    """Return a body that is within the limit but larger than the disk, which only its header shows."""
    with new_holder(limited, running.address, "huge", tensor_bytes=None) as huge:
        assert _first_line(running, str(huge.headers["Authorization"]), 1 << 60).startswith(b"HTTP/1.1 507")


def test_a_limiter_without_redis_says_when_to_try_again(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as configuration:
        pass  # it has ended
    with (
        running_api(configuration, keys=True) as running,
        new_holder(configuration, running.address, "ann", requests_per_second=100) as ann,
    ):
        for path in ("/v1/methods", "/v1/jobs"):
            answer = ann.get(path)
            refused(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) > 0


def test_a_restart_of_redis_forgets_no_usage(tmp_path: Path) -> None:
    with (
        restartable_redis(tmp_path, min_free_bytes=1) as (configuration, restart),
        running_api(configuration, keys=True) as running,
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
        running_api(configuration, keys=True) as running,
        new_holder(configuration, running.address, "ann", live_jobs=2, stored_bytes=10**7) as ann,
    ):
        tensor = upload(ann, planted(4, 5, 6))["id"]
        jobs = [submit(ann, tensor, stop={"max_iterations": 5})["id"] for _ in range(2)]
        refused(ann.post("/v1/jobs", json={"tensor_id": tensor, **BODY}), 429, "too-many-jobs")
        limits = Limits(live_jobs=1, stored_bytes=1, rank=1, job_seconds=1e-9, tensor_bytes=1)
        ApiKeys(configuration.data).limit("ann", limits)
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

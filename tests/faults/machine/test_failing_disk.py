"""Every access below the data folder fails: the store is unavailable, but no job is lost."""

import errno
from pathlib import Path

import httpx
import pytest

from sparse_ncp.app.auth.api_keys import ApiKeys
from tests.support.api import http_client, npy, refused, submit, upload
from tests.support.jobs import LONG, TENSOR, Backend, reached
from tests.support.machine.failing import FailingDisk
from tests.support.stack import embedded_redis, server, wait_for, worker

SHORT = {"rank": 2, "stop": {"max_iterations": 3}}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    """For all processes that are started from now on."""
    made = FailingDisk(tmp_path / "failing", tmp_path / "data")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_jobs_outlive_a_disk_that_fails(tmp_path: Path, disk: FailingDisk, error: int) -> None:
    """The running job waits with its result, the others with their claim; no attempt is used up."""
    with embedded_redis(tmp_path / "redis", checkpoint_seconds=0.05, lease_seconds=2.0) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": tmp_path / "data"})
        backend = Backend(configuration)
        with worker(configuration) as process:
            job, behind = backend.submit(**LONG), backend.submit(**SHORT)
            reached(backend.records, job, 100)
            with disk.failing(error):
                reached(backend.records, job, LONG["stop"]["max_iterations"], 240)
                assert (backend.now(job).state, backend.now(behind).state) == ("running", "queued")
            assert backend.as_if_nothing_happened(job).attempt == 1
            assert backend.as_if_nothing_happened(behind).attempt == 1
            with disk.failing(error):
                later = backend.submit(**SHORT)
                assert backend.now(later).state == "queued"
            assert backend.as_if_nothing_happened(later).attempt == 1
            assert process.poll() is None


def test_a_server_whose_disk_fails_with_its_redis_recovers_by_itself(tmp_path: Path, disk: FailingDisk) -> None:
    with (
        server(tmp_path, lease_seconds=2.0, checkpoint_seconds=0.05) as running,
        http_client(running.address) as caller,
    ):
        tensor = upload(caller, TENSOR)["id"]
        job = submit(caller, tensor, **LONG)["id"]
        wait_for(lambda: (caller.get(f"/v1/jobs/{job}").json()["progress"] or {}).get("iteration", 0) > 50)
        with disk.failing(errno.EIO):
            refusal = wait_for(lambda: _refusal(caller.post("/v1/tensors", content=npy(TENSOR + 1))), what="a refusal")
            assert refusal.status_code == 503
            assert int(refusal.headers["retry-after"]) > 0
            assert "disk" in {one["field"] for one in refused(caller.get("/readyz"), 503)["errors"]}
            wait_for(lambda: caller.get("/v1/jobs").status_code == 503, what="Redis to end")
        wait_for(lambda: caller.get("/readyz").status_code == 200, what="the server to be ready again")
        assert wait_for(lambda: _ended(caller, job), what="the job to end") == "succeeded"
        assert upload(caller, TENSOR + 1)["id"]
        assert running.process.poll() is None


def test_keys_and_records_are_there_while_the_disk_fails(tmp_path: Path, disk: FailingDisk) -> None:
    """Known callers are served, unknown ones get a 503, and the server does not become open."""
    with embedded_redis(tmp_path / "redis") as elsewhere:
        ann, bob = (ApiKeys(tmp_path / "data").create(name) for name in ("ann", "bob"))
        with server(tmp_path, redis_url=elsewhere.redis_url) as running, http_client(running.address) as caller:
            known, stranger = ({"Authorization": f"Bearer {key}"} for key in (ann, bob))
            tensor = caller.post("/v1/tensors", content=npy(TENSOR), headers=known).json()["id"]
            with disk.failing(errno.EIO):
                assert caller.get(f"/v1/tensors/{tensor}", headers=known).status_code == 200
                for path, headers in ((f"/v1/tensors/{tensor}/content", known), ("/v1/tensors", stranger)):
                    refusal = caller.get(path, headers=headers)
                    refused(refusal, 503, "store-unavailable")
                    assert int(refusal.headers["retry-after"]) > 0
                assert caller.get("/v1/tensors").status_code == 401
            assert caller.get(f"/v1/tensors/{tensor}/content", headers=known).content == npy(TENSOR)
            assert caller.get("/v1/tensors", headers=stranger).status_code == 200


def _refusal(answer: httpx.Response) -> httpx.Response | None:
    assert answer.status_code in (201, 503), answer.text
    return answer if answer.status_code == 503 else None


def _ended(caller: httpx.Client, job: str) -> str | None:
    state = caller.get(f"/v1/jobs/{job}").json()["state"]
    return None if state in ("queued", "running") else str(state)

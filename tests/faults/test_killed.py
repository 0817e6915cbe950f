"""After SIGKILL of any process, an accepted job ends with the result of an undisturbed run."""

import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import httpx
import psutil
import pytest

from tests.support.api import http_client, npy
from tests.support.jobs import LONG, TENSOR, Backend, job_process, put, reached
from tests.support.processes import configuration_of, kill, part
from tests.support.stack import embedded_redis, restartable_redis, server, wait_for, worker
from tests.support.watcher import is_gapless, watch

# From the part being back to the next published iteration.
RESUMED_SECONDS = 30


def test_a_killed_job_process_resumes_from_its_checkpoint(backend: Backend, running: Popen[bytes]) -> None:
    """Kill it three times: before a checkpoint, after one, and late in the run."""
    job = backend.submit(**LONG)
    for seen in (1, 200, 700):
        reached(backend.records, job, seen)
        victim = job_process(running.pid)
        kill(victim)
        psutil.wait_procs([victim], timeout=10)
    assert backend.as_if_nothing_happened(job).attempt == 4


def test_a_killed_pool_child_takes_its_job_along_and_is_replaced(backend: Backend, running: Popen[bytes]) -> None:
    job = backend.submit(**LONG)
    backend.checkpointed(job)
    computing = job_process(running.pid)
    kill(computing.parent() or computing)
    wait_for(lambda: not computing.is_running(), 10, "the job's process to die with its parent")
    assert backend.as_if_nothing_happened(job).attempt == 2


def test_a_killed_worker_loses_its_lease_and_another_finishes(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, checkpoint_seconds=0.05) as configuration:
        backend = Backend(configuration)
        with worker(configuration) as first:
            job = backend.submit(**LONG)
            backend.checkpointed(job)
            reached(backend.records, job, 20)
            computing = job_process(first.pid)
            first.kill()
            first.wait()
            wait_for(lambda: not computing.is_running(), 10, "the job's process to die with its worker")
        seen = backend.now(job)
        assert seen.state == "running"
        assert seen.progress is not None
        with worker(configuration):
            back = time.monotonic()
            reached(backend.records, job, seen.progress.iteration + 1)
            assert time.monotonic() - back < RESUMED_SECONDS  # with the lease of 15 s that is the default
            assert backend.as_if_nothing_happened(job).attempt == 2


def test_a_job_outlives_a_redis_that_is_killed_and_started_again(tmp_path: Path) -> None:
    with restartable_redis(tmp_path, lease_seconds=2.0) as (configuration, restart), worker(configuration):
        backend = Backend(configuration)
        job = backend.submit(**LONG)
        reached(backend.records, job, 20)
        restart()
        assert backend.as_if_nothing_happened(job).attempt == 1
        assert backend.as_if_nothing_happened(backend.submit(rank=2, stop={"max_iterations": 3})).attempt == 1


@pytest.mark.parametrize("name", ["api", "valkey", "worker"])
def test_a_client_that_reconnects_misses_nothing_when_a_part_is_killed(tmp_path: Path, name: str) -> None:
    with (
        server(tmp_path, checkpoint_seconds=0.05, lease_seconds=3.0, keep_alive_seconds=1.0) as running,
        http_client(running.address) as caller,
    ):
        backend = Backend(configuration_of(running))
        job = backend.submit(**LONG)
        with watch(running.address, job.id) as watcher:
            watcher.reached(20)
            kill(part(running, name))
            assert is_gapless(watcher.until_end())
            backend.as_if_nothing_happened(job)
            assert watcher.connections > (1 if name == "api" else 0)
        last = {"Last-Event-ID": watcher.seen[-1].id}
        assert caller.get(f"/v1/jobs/{job.id}/events", headers=last).status_code == 204


def test_what_was_answered_is_there_after_everything_was_killed(tmp_path: Path) -> None:
    with server(tmp_path) as running, http_client(running.address) as caller:
        tensor = caller.post("/v1/tensors", content=npy(TENSOR))
        job = caller.post("/v1/jobs", json={"tensor_id": tensor.json()["id"], **LONG})
        assert (tensor.status_code, job.status_code) == (201, 202)
        below = psutil.Process(running.process.pid).children(recursive=True)
        running.process.kill()
        running.process.wait()
        assert not psutil.wait_procs(below, timeout=20)[1], "an orphan"
    with server(tmp_path) as running, http_client(running.address) as caller:
        backend = Backend(configuration_of(running))
        found = caller.get(f"/v1/tensors/{tensor.json()['id']}/content")
        assert found.content == npy(TENSOR)
        backend.as_if_nothing_happened(backend.records.jobs.get("local", job.json()["id"]))


def test_an_upload_that_dies_with_the_api_leaves_no_tensor(tmp_path: Path) -> None:
    """Its temporary file goes once it is a minute old."""
    with server(tmp_path) as running:
        backend = Backend(configuration_of(running))
        before = list((running.data / "tensors").glob("*.npy"))

        def body() -> Iterator[bytes]:
            yield npy(TENSOR)[:100_000]
            yield bytes(2 << 20)
            wait_for(lambda: list((running.data / "uploads").iterdir()), what="the upload's file")
            kill(part(running, "api"))
            yield bytes(1 << 20)

        with pytest.raises(httpx.TransportError), http_client(running.address) as caller:
            caller.post("/v1/tensors", content=body())
        assert list((running.data / "tensors").glob("*.npy")) == before
        assert put(backend.records, backend.store, TENSOR).sha256 == backend.tensor.sha256

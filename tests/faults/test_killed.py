"""Whatever is killed (-9), an accepted job ends as if nothing had happened."""

import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import httpx
import psutil
import pytest

from tests.app.api import client, npy
from tests.faults.acts import kill
from tests.faults.watcher import is_gapless, watch
from tests.stack import embedded_redis, restartable_redis, server, wait_for, worker
from tests.worker.lab import job_process, put, reached
from tests.worker.launched import configuration_of, part
from tests.worker.running import LONG, TENSOR, Lab

# From the part being back to the next published iteration.
RESUMED_SECONDS = 30


def test_a_killed_job_process_resumes_from_its_checkpoint(lab: Lab, running: Popen[bytes]) -> None:
    """Three times, at moments that differ: before a checkpoint, after one, and far into the run."""
    job = lab.submit(**LONG)
    for seen in (1, 200, 700):
        reached(lab.records, job, seen)
        victim = job_process(running.pid)
        kill(victim)
        psutil.wait_procs([victim], timeout=10)
    assert lab.as_if_nothing_happened(job).attempt == 4


def test_a_killed_pool_child_takes_its_job_along_and_is_replaced(lab: Lab, running: Popen[bytes]) -> None:
    job = lab.submit(**LONG)
    lab.checkpointed(job)
    computing = job_process(running.pid)
    kill(computing.parent() or computing)
    wait_for(lambda: not computing.is_running(), 10, "the job's process to die with its parent")
    assert lab.as_if_nothing_happened(job).attempt == 2


def test_a_killed_worker_loses_its_lease_and_another_finishes(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, checkpoint_seconds=0.05) as configuration:
        lab = Lab(configuration)
        with worker(configuration) as first:
            job = lab.submit(**LONG)
            lab.checkpointed(job)
            reached(lab.records, job, 20)
            computing = job_process(first.pid)
            first.kill()
            first.wait()
            wait_for(lambda: not computing.is_running(), 10, "the job's process to die with its worker")
        seen = lab.now(job)
        assert seen.state == "running"
        assert seen.progress is not None
        with worker(configuration):
            back = time.monotonic()
            reached(lab.records, job, seen.progress.iteration + 1)
            assert time.monotonic() - back < RESUMED_SECONDS  # with the lease of 15 s that is the default
            assert lab.as_if_nothing_happened(job).attempt == 2


def test_a_job_outlives_a_redis_that_is_killed_and_started_again(tmp_path: Path) -> None:
    with restartable_redis(tmp_path, lease_seconds=2.0) as (configuration, restart), worker(configuration):
        lab = Lab(configuration)
        job = lab.submit(**LONG)
        reached(lab.records, job, 20)
        restart()
        assert lab.as_if_nothing_happened(job).attempt == 1
        assert lab.as_if_nothing_happened(lab.submit(rank=2, stop={"max_iterations": 3})).attempt == 1


@pytest.mark.parametrize("name", ["api", "valkey", "worker"])
def test_a_client_that_reconnects_misses_nothing_when_a_part_is_killed(tmp_path: Path, name: str) -> None:
    with (
        server(tmp_path, checkpoint_seconds=0.05, lease_seconds=3.0, keep_alive_seconds=1.0) as running,
        client(running.address) as caller,
    ):
        lab = Lab(configuration_of(running))
        job = lab.submit(**LONG)
        with watch(running.address, job.id) as watcher:
            watcher.reached(20)
            kill(part(running, name))
            assert is_gapless(watcher.until_end())
            lab.as_if_nothing_happened(job)
            assert watcher.connections > (1 if name == "api" else 0)
        last = {"Last-Event-ID": watcher.seen[-1].id}
        assert caller.get(f"/v1/jobs/{job.id}/events", headers=last).status_code == 204


def test_what_was_answered_is_there_after_everything_was_killed(tmp_path: Path) -> None:
    with server(tmp_path) as running, client(running.address) as caller:
        tensor = caller.post("/v1/tensors", content=npy(TENSOR))
        job = caller.post("/v1/jobs", json={"tensor_id": tensor.json()["id"], **LONG})
        assert (tensor.status_code, job.status_code) == (201, 202)
        below = psutil.Process(running.process.pid).children(recursive=True)
        running.process.kill()
        running.process.wait()
        assert not psutil.wait_procs(below, timeout=20)[1], "an orphan"
    with server(tmp_path) as running, client(running.address) as caller:
        lab = Lab(configuration_of(running))
        found = caller.get(f"/v1/tensors/{tensor.json()['id']}/content")
        assert found.content == npy(TENSOR)
        lab.as_if_nothing_happened(lab.records.job("local", job.json()["id"]))


def test_an_upload_that_dies_with_the_api_leaves_no_tensor(tmp_path: Path) -> None:
    """Its temporary file goes once it is a minute old."""
    with server(tmp_path) as running:
        lab = Lab(configuration_of(running))
        before = list((running.data / "tensors").glob("*.npy"))

        def body() -> Iterator[bytes]:
            yield npy(TENSOR)[:100_000]
            yield bytes(2 << 20)
            wait_for(lambda: list((running.data / "uploads").iterdir()), what="the upload's file")
            kill(part(running, "api"))
            yield bytes(1 << 20)

        with pytest.raises(httpx.TransportError), client(running.address) as caller:
            caller.post("/v1/tensors", content=body())
        assert list((running.data / "tensors").glob("*.npy")) == before
        assert put(lab.records, lab.store, TENSOR).sha256 == lab.tensor.sha256

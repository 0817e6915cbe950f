"""A full or read-only disk: a clear error, no corrupt file, no failed job, and recovery without help."""

import os
from pathlib import Path

import numpy as np

from tests.support.api import http_client, new_holder, npy, refused, running_api
from tests.support.jobs import LONG, LONGER, TENSOR, Backend, random_tensor, reached
from tests.support.machine.disk import Disk
from tests.support.processes import configuration_of
from tests.support.stack import embedded_redis, server, wait_for, worker
from tests.support.watcher import is_gapless, watch


def test_an_upload_without_room_is_refused_and_leaves_nothing(tmp_path: Path, disk: Disk) -> None:
    large, small = npy(np.ones((2, 1 << 20))), npy(random_tensor(3, 4))
    with embedded_redis(tmp_path / "redis", min_free_bytes=0) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": disk.path})
        with running_api(configuration) as served, http_client(served.address) as caller:
            (disk.path / "other").write_bytes(bytes(12 << 20))
            assert caller.post("/v1/tensors", content=small).status_code == 201
            before = sorted(disk.path.rglob("*"))
            problem = refused(caller.post("/v1/tensors", content=large), 507, "store-full")
            assert "delete" in problem["remedy"]
            refused(caller.post("/v1/tensors", content=iter([large])), 507, "store-full")  # its length is not announced
            assert sorted(disk.path.rglob("*")) == before
            disk.fill()
            refused(caller.post("/v1/tensors", content=iter([large])), 507, "store-full")
            assert caller.get("/v1/tensors").status_code == 200
            disk.free()
            (disk.path / "other").unlink()
            assert caller.post("/v1/tensors", content=large).status_code == 201


def test_checkpoints_and_the_result_wait_for_room(tmp_path: Path, disk: Disk) -> None:
    with embedded_redis(tmp_path / "redis", checkpoint_seconds=0.05) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": disk.path})
        backend = Backend(configuration)
        with worker(configuration):
            job = backend.submit(**LONG)
            backend.checkpointed(job)
            disk.fill()

            def computed() -> bool:
                disk.fill()  # a checkpoint that was half written then has left some room
                progress = backend.now(job).progress
                return progress is not None and progress.iteration == LONG["stop"]["max_iterations"]

            wait_for(computed, 120, "the last iteration")
            assert backend.now(job).state == "running"
            wait_for(lambda: not list(backend.folder(job).glob("factors-*")), what="the half-written result to go")
            whole = [
                backend.store.job(job.id).load_checkpoint(path.parent.name)
                for path in backend.folder(job).glob("checkpoint-*/manifest.json")
            ]
            assert whole
            assert None not in whole
            disk.free()
            assert backend.as_if_nothing_happened(job).attempt == 1
            wait_for(lambda: job.id not in backend.records.jobs.unsettled(), what="the history in the store")
            assert not list(backend.folder(job).glob(".*"))


def test_a_server_whose_disk_is_full_recovers_with_its_redis(tmp_path: Path, disk: Disk) -> None:
    """Redis must not acknowledge what it cannot keep, so it exits at its first write, and the launcher restarts it."""
    with (
        server(
            tmp_path, checkpoint_seconds=0.05, lease_seconds=3.0, keep_alive_seconds=1.0, min_free_bytes=0
        ) as running,
        http_client(running.address) as caller,
    ):
        backend = Backend(configuration_of(running))
        job = backend.submit(**LONGER)
        reached(backend.records, job, 20)
        with watch(running.address, job.id) as watcher:

            def away() -> bool:
                disk.fill()
                return caller.get("/v1/jobs").status_code == 503

            wait_for(away, 60, "Redis to end")
            disk.free()
            wait_for(lambda: caller.get("/v1/jobs").status_code == 200, 60, "Redis to be back")
            backend.as_if_nothing_happened(job, 180)
            assert is_gapless(watcher.until_end())
        assert caller.post("/v1/tensors", content=npy(TENSOR)).status_code == 201
        backend.as_if_nothing_happened(backend.submit(rank=2, stop={"max_iterations": 3}))


def test_jobs_wait_for_a_disk_that_went_read_only(tmp_path: Path, disk: Disk) -> None:
    """The running job continues and keeps its result until it can be stored; the next one is not claimed."""
    with embedded_redis(tmp_path / "redis", checkpoint_seconds=0.05, lease_seconds=2.0) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": disk.path})
        backend = Backend(configuration)
        with worker(configuration):
            running, behind = backend.submit(**LONG), backend.submit(stop={"max_iterations": 3})
            backend.checkpointed(running)
            disk.make_read_only()
            last = LONG["stop"]["max_iterations"]

            def computed() -> bool:
                progress = backend.now(running).progress
                return progress is not None and progress.iteration == last

            wait_for(computed, 120, "the last iteration")
            assert (backend.now(running).state, backend.now(behind).state) == ("running", "queued")
            disk.make_read_only(False)
            assert backend.as_if_nothing_happened(running).attempt == 1
            assert backend.as_if_nothing_happened(behind).attempt == 1


def test_a_job_is_not_claimed_while_the_disk_is_read_only(tmp_path: Path, disk: Disk) -> None:
    with embedded_redis(tmp_path / "redis", lease_seconds=2.0) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": disk.path})
        backend = Backend(configuration)
        job = backend.submit(stop={"max_iterations": 3})
        disk.make_read_only()
        with worker(configuration) as process:
            wait_for(lambda: backend.records.ping().live_workers == 1, what="the worker")
            assert backend.now(job).state == "queued"
            disk.make_read_only(False)
            assert backend.as_if_nothing_happened(job).attempt == 1
            assert process.poll() is None


def test_the_api_reads_on_and_refuses_what_it_cannot_store(tmp_path: Path, disk: Disk) -> None:
    with embedded_redis(tmp_path / "redis", min_free_bytes=0) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": disk.path})
        with running_api(configuration, keys=True) as served, new_holder(configuration, served.address, "ann") as ann:
            tensor = ann.post("/v1/tensors", content=npy(TENSOR)).json()
            (key,) = (disk.path / "keys").glob("*.json")
            os.utime(key, (1.0, 1.0))
            disk.make_read_only()
            refusal = ann.post("/v1/tensors", content=npy(TENSOR + 1))
            refused(refusal, 503, "store-unavailable")
            assert int(refusal.headers["retry-after"]) > 0
            assert ann.get(f"/v1/tensors/{tensor['id']}/content").content == npy(TENSOR)
            assert "disk" in {error["field"] for error in refused(ann.get("/readyz"), 503)["errors"]}
            refused(ann.delete(f"/v1/tensors/{tensor['id']}"), 503, "store-unavailable")
            disk.make_read_only(False)
            assert ann.post("/v1/tensors", content=npy(TENSOR + 1)).status_code == 201

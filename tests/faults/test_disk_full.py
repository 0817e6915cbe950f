"""A disk that is really full (ENOSPC): a clear error, nothing corrupt, and all is well once there is room."""

from pathlib import Path

import numpy as np

from tests.app.api import api, client, npy, refused
from tests.faults.disk import Disk
from tests.faults.watcher import is_gapless, watch
from tests.stack import embedded_redis, server, wait_for, worker
from tests.worker.lab import random_tensor, reached
from tests.worker.launched import configuration_of
from tests.worker.running import LONG, LONGER, TENSOR, Lab


def test_an_upload_without_room_is_refused_and_leaves_nothing(tmp_path: Path, disk: Disk) -> None:
    large, small = npy(np.ones((2, 1 << 20))), npy(random_tensor(3, 4))
    with embedded_redis(tmp_path / "redis", min_free_bytes=0) as elsewhere:
        configuration = elsewhere.model_copy(update={"data": disk.path})
        with api(configuration) as served, client(served.address) as caller:
            (disk.path / "other").write_bytes(bytes(12 << 20))
            assert caller.post("/v1/tensors", content=small).status_code == 201
            before = sorted(disk.path.rglob("*"))
            problem = refused(caller.post("/v1/tensors", content=large), 507, "store-full")
            assert "delete" in problem["remedy"]
            refused(caller.post("/v1/tensors", content=iter([large])), 507, "store-full")  # its length is not told
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
        lab = Lab(configuration)
        with worker(configuration):
            job = lab.submit(**LONG)
            lab.checkpointed(job)
            disk.fill()

            def computed() -> bool:
                disk.fill()  # a checkpoint that was half written then has left some room
                progress = lab.now(job).progress
                return progress is not None and progress.iteration == LONG["stop"]["max_iterations"]

            wait_for(computed, 120, "the last iteration")
            assert lab.now(job).state == "running"
            wait_for(lambda: not list(lab.folder(job).glob(".factors-*")), what="the half-written result to go")
            whole = [lab.store.job(job.id).load_checkpoint(path.name) for path in lab.folder(job).glob("checkpoint-*")]
            assert whole
            assert None not in whole
            disk.free()
            assert lab.as_if_nothing_happened(job).attempt == 1
            wait_for(lambda: job.id not in lab.records.unsettled(), what="the history in the store")
            assert not list(lab.folder(job).glob(".*"))


def test_a_server_whose_disk_is_full_recovers_with_its_redis(tmp_path: Path, disk: Disk) -> None:
    """Redis, which must not acknowledge what it cannot keep, ends at its first write; the launcher starts it again."""
    with (
        server(
            tmp_path, checkpoint_seconds=0.05, lease_seconds=3.0, keep_alive_seconds=1.0, min_free_bytes=0
        ) as running,
        client(running.address) as caller,
    ):
        lab = Lab(configuration_of(running))
        job = lab.submit(**LONGER)
        reached(lab.records, job, 20)
        with watch(running.address, job.id) as watcher:

            def away() -> bool:
                disk.fill()
                return caller.get("/v1/jobs").status_code == 503

            wait_for(away, 60, "Redis to end")
            disk.free()
            wait_for(lambda: caller.get("/v1/jobs").status_code == 200, 60, "Redis to be back")
            lab.as_if_nothing_happened(job, 180)
            assert is_gapless(watcher.until_end())
        assert caller.post("/v1/tensors", content=npy(TENSOR)).status_code == 201
        lab.as_if_nothing_happened(lab.submit(rank=2, stop={"max_iterations": 3}))

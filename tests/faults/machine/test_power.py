"""A power cut: the file system keeps flushed data, and nothing else."""

from pathlib import Path

import psutil

from tests.support.api import finished, http_client, npy, submit, upload
from tests.support.jobs import LONG, TENSOR
from tests.support.machine.disk import loop_disk
from tests.support.processes import kill, tree
from tests.support.stack import server, wait_for


def test_what_was_answered_is_there_after_a_power_cut(tmp_path: Path) -> None:
    """Answers up to the last moment, and a job that was running."""
    with loop_disk(tmp_path, tmp_path / "data") as disk:
        with (
            server(tmp_path, min_free_bytes=0, checkpoint_seconds=0.1) as running,
            http_client(running.address) as caller,
        ):
            tensor = upload(caller, TENSOR)["id"]
            live = submit(caller, tensor, **LONG)["id"]
            wait_for(lambda: (caller.get(f"/v1/jobs/{live}").json()["progress"] or {}).get("iteration", 0) > 50)
            answered = [submit(caller, tensor, stop={"max_iterations": 3})["id"] for _ in range(5)]
            last = upload(caller, TENSOR + 1)["id"]
            disk.cut_power()
            processes = tree(running.process.pid)
            for process in reversed(processes):
                kill(process)
            psutil.wait_procs(processes, timeout=20)
        disk.unmount()
        disk.mount()
        with server(tmp_path, min_free_bytes=0) as running, http_client(running.address) as caller:
            assert caller.get(f"/v1/tensors/{last}/content").content == npy(TENSOR + 1)
            for job in (live, *answered):
                assert finished(caller, job)["state"] == "succeeded"

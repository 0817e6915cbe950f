"""A job that kills its process every time is given up, and stands in nobody's way."""

from contextlib import suppress
from pathlib import Path

import psutil

from tests.faults.acts import kill
from tests.stack import embedded_redis, wait_for, worker
from tests.worker.lab import put, random_tensor, request
from tests.worker.running import Lab
from worker.contract import TERMINAL
from worker.wake import wake


def test_a_job_that_dies_every_time_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    """The test does what the kernel does when memory runs out: it kills each process before it gets anywhere."""
    with embedded_redis(tmp_path) as configuration, worker(configuration) as running:
        lab = Lab(configuration)
        slow = put(lab.records, lab.store, random_tensor(200, 200, 200))
        job, _ = lab.records.submit("local", request(slow, rank=100, method="mu"))
        behind, _ = lab.records.submit("local", request(lab.tensor, stop={"max_iterations": 3}))
        wake(configuration)

        def killed_until_it_ends() -> bool:
            found = lab.now(job)
            if found.state == "running":
                for process in _computing(running.pid):
                    kill(process)
            return found.state in TERMINAL

        wait_for(killed_until_it_ends, 120, "the end of the job")
        failed = lab.now(job)
        assert failed.error is not None
        assert (failed.state, failed.error.kind, failed.attempt) == ("failed", "system", 3)
        assert "3 times in a row" in failed.error.message
        assert "SIGKILL" in failed.error.message
        done = lab.as_if_nothing_happened(behind)
        assert done.started_at is not None
        assert failed.finished_at is not None
        assert running.poll() is None


def _computing(worker_pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return [job for child in psutil.Process(worker_pid).children() for job in child.children()]
    return []

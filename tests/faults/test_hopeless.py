"""A job that kills its process or its worker every time is given up, and stands in nobody's way."""

import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.faults.slow import submit_slow
from tests.stack import embedded_redis, wait_for, worker
from tests.worker.lab import job_process
from tests.worker.running import Lab
from worker.contract import TERMINAL, Job


def submit_both(lab: Lab) -> tuple[Job, Job]:
    """One whose first sweep takes seconds, and a quick one behind it."""
    return submit_slow(lab), lab.submit(stop={"max_iterations": 3})


def is_given_up(lab: Lab, job: Job, death: str) -> None:
    failed = lab.now(job)
    assert failed.error is not None
    assert (failed.state, failed.error.kind, failed.attempt) == ("failed", "system", 3)
    assert "3 times in a row" in failed.error.message
    assert death in failed.error.message
    assert "memory" in failed.error.remedy


def test_a_job_whose_process_the_kernel_kills_every_time_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    """By a limit on its computing time, which the kernel enforces as it does one on memory: with SIGKILL."""
    with embedded_redis(tmp_path, threads=1) as configuration, worker(configuration) as running:
        lab = Lab(configuration)
        (pool_child,) = psutil.Process(running.pid).children()
        pool_child.rlimit(psutil.RLIMIT_CPU, (1, 1))
        job, behind = submit_both(lab)
        wait_for(lambda: lab.now(job).state in TERMINAL, 120, "the end of the job")
        is_given_up(lab, job, signal.SIGKILL.name)
        assert lab.as_if_nothing_happened(behind).attempt == 1
        assert pool_child.is_running()
        assert running.poll() is None


def test_a_job_that_takes_its_whole_worker_along_every_time_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, lease_seconds=1.0, threads=1) as configuration:
        lab = Lab(configuration)
        job, behind = submit_both(lab)
        for attempt in (1, 2, 3):
            with worker(configuration) as running:
                wait_for(attempts(lab, job, attempt), what=f"attempt {attempt}")
                job_process(running.pid)
                running.kill()
                running.wait()
        with worker(configuration):
            wait_for(lambda: lab.now(job).state in TERMINAL, what="the end of the job")
            is_given_up(lab, job, "its worker fell silent")
            assert lab.as_if_nothing_happened(behind).attempt == 1


def attempts(lab: Lab, job: Job, count: int) -> Callable[[], bool]:
    return lambda: lab.now(job).attempt == count and lab.now(job).state == "running"

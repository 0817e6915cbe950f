"""A job that kills its process or its worker every time fails, and does not block other jobs."""

import signal
from collections.abc import Callable
from pathlib import Path

import psutil

from sparse_ncp.worker.contract import TERMINAL, Job
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.support.faulty_worker import GO
from tests.support.jobs import ENDLESS, Backend, job_process, submit_slow
from tests.support.stack import embedded_redis, wait_for, worker


def submit_both(backend: Backend) -> tuple[Job, Job]:
    """One whose first sweep takes seconds, and a quick one behind it."""
    return submit_slow(backend), backend.submit(stop={"max_iterations": 3})


def is_given_up(backend: Backend, job: Job, death: str) -> None:
    failed = backend.now(job)
    assert failed.error is not None
    assert (failed.state, failed.error.kind, failed.attempt) == ("failed", "system", 3)
    assert "keeps dying" in failed.error.message
    assert death in failed.error.message
    assert "memory" in failed.error.remedy


def test_a_job_whose_process_dies_by_itself_every_time_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    """Kill the process by a limit on its computing time, which the kernel enforces."""
    with embedded_redis(tmp_path, threads=1) as configuration, worker(configuration) as running:
        backend = Backend(configuration)
        (pool_child,) = psutil.Process(running.pid).children()
        pool_child.rlimit(psutil.RLIMIT_CPU, (1, 600))
        job, behind = submit_both(backend)
        wait_for(lambda: backend.now(job).state in TERMINAL, 120, "the end of the job")
        is_given_up(backend, job, signal.SIGXCPU.name)
        assert backend.as_if_nothing_happened(behind).attempt == 1
        assert pool_child.is_running()
        assert running.poll() is None


def test_deaths_that_a_job_did_not_cause_never_count_against_it(tmp_path: Path) -> None:
    """Its worker is killed, or its process from outside, again and again within the first sweep."""
    with embedded_redis(tmp_path, lease_seconds=1.0, threads=1) as configuration:
        backend = Backend(configuration)
        job = submit_slow(backend)
        for attempt in (1, 2, 3, 4):
            with worker(configuration) as running:
                wait_for(attempts(backend, job, attempt), what=f"attempt {attempt}")
                job_process(running.pid)
                running.kill()
                running.wait()
        with worker(configuration) as running:
            for attempt in (5, 6, 7, 8):
                wait_for(attempts(backend, job, attempt), what=f"attempt {attempt}")
                job_process(running.pid).kill()
            wait_for(attempts(backend, job, 9), what="attempt 9")
            assert backend.now(job).progress is None


def test_a_process_whose_disk_is_gone_when_it_begins_costs_no_attempt(backend: Backend) -> None:
    with worker(backend.configuration, "tests.support.faulty_worker", "homeless"):
        job = backend.submit(stop={"max_iterations": 3})
        with connect(backend.configuration) as redis:
            wait_for(lambda: int(redis.hget(keys.job(job.id), "fence") or 0) > 5, what="some claims")
        (backend.configuration.data / GO).touch()
        assert backend.as_if_nothing_happened(job).attempt == 1


def test_the_process_of_a_job_goes_first_where_memory_runs_out(backend: Backend) -> None:
    with worker(backend.configuration) as running:
        backend.submit(**ENDLESS)
        job = Path(f"/proc/{job_process(running.pid).pid}/oom_score_adj")
        wait_for(lambda: int(job.read_text()) > int(Path(f"/proc/{running.pid}/oom_score_adj").read_text()))


def attempts(backend: Backend, job: Job, count: int) -> Callable[[], bool]:
    return lambda: backend.now(job).attempt == count and backend.now(job).state == "running"

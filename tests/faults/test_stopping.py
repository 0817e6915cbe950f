"""SIGTERM, as in a deployment or a reboot: all processes end within 30 seconds and nothing is lost."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.contract import Job
from tests.support.api import http_client
from tests.support.jobs import LONG, Backend, job_process, put, queue_job, random_tensor, reached, request
from tests.support.processes import configuration_of
from tests.support.stack import embedded_redis, server, wait_for, worker
from tests.support.watcher import is_gapless, watch

STOPPED_SECONDS = 30
# Thousands of iterations in either phase.
ACCELERATED = {
    "rank": 8,
    "method": "hals",
    "accelerate": "compress",
    "stop": {"criterion": "relative_objective", "tolerance": 1e-7, "max_iterations": 10**5},
}


def test_a_stopping_worker_finishes_its_sweep_and_hands_its_job_back(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, checkpoint_seconds=600.0) as configuration:
        backend = Backend(configuration)
        with worker(configuration) as first:
            job = backend.submit(**LONG)
            reached(backend.records, job, 20)
            first.terminate()
            assert first.wait(STOPPED_SECONDS) == 0
        back = backend.now(job)
        assert (back.state, back.attempt) == ("queued", 0)
        assert backend.checkpointed(job)
        assert backend.records.workers.live_count() == 0
        with worker(configuration):
            assert backend.as_if_nothing_happened(job).attempt == 1


def test_a_pool_child_exits_without_the_pause_of_billiard() -> None:
    """It would sleep for a second in every stop of a worker, with nothing left to do."""
    script = (
        "import sys; from celery import signals; from celery.concurrency.prefork import process_destructor\n"
        "from sparse_ncp.worker.execution.celery_worker import exit_at_once\n"
        "signals.worker_process_shutdown.connect(exit_at_once)\n"
        "process_destructor(0, 3)\n"
        "sys.exit('still here')\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 3


def test_an_accelerated_run_resumes_in_either_phase(backend: Backend) -> None:
    """Stop it in its compressed phase, then in its exact one; each time the checkpoint is of that phase."""
    job = backend.submit(**ACCELERATED)
    for phase in ("compressed", "exact"):
        with worker(backend.configuration) as running:
            wait_for(partial(is_in, backend, job, phase), what=f"the {phase} phase")
            running.terminate()
            assert running.wait(STOPPED_SECONDS) == 0
        name = max(backend.folder(job).glob("checkpoint-*/state"), key=lambda path: path.stat().st_mtime_ns).parent.name
        saved = backend.store.job(job.id).load_checkpoint(name)
        assert saved is not None
        assert saved.phase == phase
        assert backend.now(job).state == "queued"
    with worker(backend.configuration):
        assert backend.as_if_nothing_happened(job).attempt == 1
    phases = [row.phase for row in backend.jobs.history("local", job.id)]
    assert 0 < phases.index("exact") < len(phases) - 1


def is_in(backend: Backend, job: Job, phase: str) -> bool:
    progress = backend.now(job).progress
    return progress is not None and progress.phase == phase


def test_a_sweep_that_takes_longer_than_the_grace_is_left_and_costs_no_attempt(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, stop_seconds=0.1, threads=1) as configuration:
        backend = Backend(configuration)
        # A sweep of half a minute: a busy machine takes its time to stop a worker.
        large = put(backend.records, backend.store, random_tensor(40_000, 20, 20))
        with worker(configuration) as running:
            settings = request(large, rank=60, method="apg", inner_passes=1000)
            job, _ = queue_job(backend.records, "local", settings)
            wake_worker(configuration)
            computing = job_process(running.pid)
            wait_for(lambda: computing.num_threads() > 3, what="the job to have begun")
            wait_for(lambda: computing.cpu_times().user > 0.3, what="the first sweep")
            running.terminate()
            assert running.wait(STOPPED_SECONDS) == 0
        back = backend.now(job)
        assert (back.state, back.attempt, back.progress) == ("queued", 0, None)
        assert not list(backend.folder(job).glob("checkpoint-*"))


def test_a_server_with_a_running_job_and_an_open_stream_stops_in_time(tmp_path: Path) -> None:
    with server(tmp_path) as running:
        backend = Backend(configuration_of(running))
        job = backend.submit(**LONG)
        with watch(running.address, job.id) as watcher:
            watcher.reached(20)
            asked = time.monotonic()
            running.process.terminate()
            assert running.process.wait(STOPPED_SECONDS) == 0
            assert time.monotonic() - asked < STOPPED_SECONDS
            seen = list(watcher.seen)
    with server(tmp_path) as running, watch(running.address, job.id) as again, http_client(running.address):
        events = again.until_end()
        assert is_gapless(events)
        assert [sent.id for sent in events][: len(seen)] == [sent.id for sent in seen]
        backend = Backend(configuration_of(running))
        assert backend.as_if_nothing_happened(backend.now(job)).attempt == 1

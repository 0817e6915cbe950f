"""Cancelling at any moment, and the time limit, for runs with earlier attempts."""

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sparse_ncp.solvers import sweeps
from sparse_ncp.solvers.tensor.products import Array
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Job
from sparse_ncp.worker.errors import NoFactorsYet
from sparse_ncp.worker.execution.run_job import grace_seconds
from tests.support import jobs
from tests.support.faulty_worker import GO
from tests.support.jobs import ENDLESS, Backend, ended, job_process, reached, same_bits
from tests.support.processes import frozen, kill
from tests.support.stack import embedded_redis, wait_for, worker


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """Checkpoints as often as they may come."""
    with embedded_redis(tmp_path_factory.mktemp("backend"), checkpoint_seconds=0.0) as configuration:
        yield Backend(configuration)


@pytest.fixture(scope="module")
def worker_pid(backend: Backend) -> Iterator[int]:
    with worker(backend.configuration) as running:
        yield running.pid


def test_a_cancel_during_a_checkpoint_keeps_the_factors_so_far(backend: Backend, worker_pid: int) -> None:
    job = backend.submit(**ENDLESS)
    reached(backend.records, job, 3)
    computing = job_process(worker_pid)

    def cancelled_in_the_middle() -> bool:
        """Frozen at a moment when the checkpoint is half written."""
        with frozen([computing]):
            if all((folder / "manifest.json").exists() for folder in backend.folder(job).glob("checkpoint-*")):
                return False
            backend.records.jobs.cancel("local", job.id)
            return True

    wait_for(cancelled_in_the_middle, 90, "a half-written checkpoint")
    _has_its_factors(backend, ended(backend.records, job))


@pytest.mark.parametrize("iteration", [1, 37, 400])
def test_a_cancel_after_a_crash_keeps_the_factors_so_far(backend: Backend, worker_pid: int, iteration: int) -> None:
    """Asked while the next attempt begins, which still computes what readers have seen already."""
    job = backend.submit(**ENDLESS)
    backend.checkpointed(job)
    reached(backend.records, job, iteration)
    kill(job_process(worker_pid))
    wait_for(lambda: backend.now(job).attempt == 2, what="the next attempt")
    backend.records.jobs.cancel("local", job.id)
    assert ended(backend.records, job).state == "cancelled"
    assert backend.store.job(job.id).factors()


def test_a_job_cancelled_while_it_is_back_in_the_queue_keeps_its_checkpoint(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as configuration:
        backend = Backend(configuration)
        job = _handed_back(backend, configuration)
        assert backend.records.jobs.cancel("local", job.id).state == "cancelled"
        with worker(configuration):
            wait_for(lambda: job.id not in backend.records.jobs.unsettled(), what="the history in the store")
        name = next(backend.folder(job).glob("checkpoint-*/manifest.json")).parent.name
        state = backend.store.job(job.id).load_checkpoint(name)
        assert state is not None
        assert same_bits(backend.store.job(job.id).factors(), list(state.factors))


def test_the_time_limit_counts_over_all_attempts(backend: Backend, worker_pid: int) -> None:
    limit, spent = 8.0, 6.0
    job = backend.submit(**{**ENDLESS, "stop": {**ENDLESS["stop"], "max_seconds": limit}})
    wait_for(lambda: (found := backend.now(job).progress) and found.seconds > spent, what="most of the time")
    kill(job_process(worker_pid))
    seen = backend.now(job).progress
    assert seen is not None
    done = ended(backend.records, job)
    assert (done.state, done.attempt) == ("succeeded", 2)
    assert done.result is not None
    assert done.result.iterations < 2 * seen.iteration  # a run that begins its time anew makes more
    assert done.result.stop_reason == "max_seconds"
    assert limit <= done.result.seconds < limit + 2
    assert backend.published_once(done)


def test_work_that_was_lost_counts_for_the_time_limit(tmp_path: Path) -> None:
    """If there is no checkpoint, the run repeats everything up to the last published iteration, and then time is up."""
    limit, spent = 4.0, 3.0
    with embedded_redis(tmp_path, checkpoint_seconds=600.0) as configuration, worker(configuration) as running:
        backend = Backend(configuration)
        job = backend.submit(**{**ENDLESS, "stop": {**ENDLESS["stop"], "max_seconds": limit}})
        wait_for(lambda: (found := backend.now(job).progress) and found.seconds > spent, what="most of the time")
        kill(job_process(running.pid))
        wait_for(lambda: backend.now(job).attempt == 2, what="the next attempt")
        seen = backend.now(job).progress
        assert seen is not None
        done = ended(backend.records, job)
        assert (done.state, done.attempt) == ("succeeded", 2)
        assert done.result is not None
        assert done.result.stop_reason == "max_seconds"
        assert done.result.iterations == seen.iteration + 1
        assert done.result.seconds > seen.seconds + 0.5 * spent  # what was repeated counts as well
        assert backend.published_once(done)
        stop = {"max_iterations": done.result.iterations, "tolerance": 0}
        assert same_bits(backend.store.job(done.id).factors(), backend.solved(**{**ENDLESS, "stop": stop}))


def test_a_part_of_a_sweep_that_was_lost_counts_for_the_time_limit(tmp_path: Path) -> None:
    """Killed within its first sweep, before anything was published: only its heartbeats showed that it worked."""
    with embedded_redis(tmp_path, lease_seconds=0.6, threads=1) as configuration, worker(configuration) as running:
        backend = Backend(configuration)
        job = jobs.submit_slow(backend, rank=120, max_iterations=1)
        victim = job_process(running.pid)
        wait_for(lambda: victim.cpu_times().user > 1, what="a good part of the sweep")
        kill(victim)
        done = ended(backend.records, job)
        assert done.result is not None
        assert (done.state, done.attempt, done.result.iterations) == ("succeeded", 2, 1)
        assert done.started_at is not None
        assert done.finished_at is not None
        assert done.result.seconds > 0.8 * (done.finished_at - done.started_at).total_seconds()


def test_a_cancel_that_a_long_sweep_does_not_heed_ends_with_the_last_checkpoint(tmp_path: Path) -> None:
    with (
        embedded_redis(tmp_path, checkpoint_seconds=0.0, cancel_seconds=0.5, threads=1) as configuration,
        worker(configuration) as running,
    ):
        backend = Backend(configuration)
        job = jobs.submit_slow(backend)
        backend.checkpointed(job)
        computing = job_process(running.pid)
        asked = time.monotonic()
        backend.records.jobs.cancel("local", job.id)
        done = ended(backend.records, job)
        assert time.monotonic() - asked < 2.5  # a sweep takes longer
        assert (done.state, done.result) == ("cancelled", None)
        wait_for(lambda: not computing.is_running(), 10, "the process to be gone")
        assert same_bits(backend.store.job(job.id).factors(), _after_one_sweep(done))
        wait_for(lambda: job.id not in backend.records.jobs.unsettled(), what="the history in the store")
        assert [event.kind for event in backend.jobs.events_after(job.id)][-1] == "end"
        assert backend.as_if_nothing_happened(backend.submit(rank=2, stop={"max_iterations": 3})).attempt == 1


def _after_one_sweep(job: Job) -> list[Array]:
    return list(next(sweeps(jobs.SLOW_TENSOR, job.settings, threads=1)).factors)


def _handed_back(backend: Backend, configuration: Configuration) -> Job:
    with worker(configuration) as running:
        job = backend.submit(**ENDLESS)
        reached(backend.records, job, 20)
        running.terminate()
        running.wait(30)
    assert backend.now(job).state == "queued"
    return job


def _has_its_factors(backend: Backend, done: Job) -> None:
    """The factors are those of the last iteration."""
    assert done.state == "cancelled"
    assert done.result is not None
    assert same_bits(backend.store.job(done.id).factors(), _after(done.result.iterations, backend))
    assert backend.published_once(done)


def _after(iterations: int, backend: Backend) -> list[Array]:
    return backend.solved(**{**ENDLESS, "stop": {"max_iterations": iterations, "tolerance": 0}})


@pytest.fixture
def thorough(tmp_path: Path) -> Iterator[tuple[Backend, int]]:
    """A worker whose preparations last until its data folder has the file GO."""
    with (
        embedded_redis(tmp_path, checkpoint_seconds=0.0, threads=1) as configuration,
        worker(configuration, "tests.support.faulty_worker", "thorough") as running,
    ):
        yield Backend(configuration), running.pid


def _prepares(backend: Backend, job: Job) -> bool:
    preparing = backend.now(job).preparing
    return preparing is not None and preparing.step == "scan"


def test_a_cancel_during_the_preparation_ends_the_job_at_once_and_without_factors(
    thorough: tuple[Backend, int],
) -> None:
    """It ends before the parent would kill it, which takes a minute."""
    backend, _ = thorough
    job = backend.submit(**ENDLESS)
    wait_for(lambda: _prepares(backend, job), what="the preparation")
    backend.records.jobs.cancel("local", job.id)
    done = ended(backend.records, job, 20)
    assert (done.state, done.result, done.progress, done.preparing) == ("cancelled", None, None, None)
    with pytest.raises(NoFactorsYet):
        backend.store.job(job.id).factors()
    (backend.configuration.data / GO).touch()
    assert ended(backend.records, backend.submit(stop={"max_iterations": 3})).state == "succeeded"


def test_a_cancel_while_a_resumed_run_is_prepared_keeps_the_factors_of_its_checkpoint(
    thorough: tuple[Backend, int],
) -> None:
    backend, worker_pid = thorough
    go = backend.configuration.data / GO
    go.touch()
    job = backend.submit(**ENDLESS)
    backend.checkpointed(job)
    reached(backend.records, job, 5)
    go.unlink()
    kill(job_process(worker_pid))
    wait_for(lambda: _prepares(backend, job), what="the preparation of the next attempt")
    backend.records.jobs.cancel("local", job.id)
    done = ended(backend.records, job, 20)
    assert (done.state, done.attempt) == ("cancelled", 2)
    assert done.result is not None
    assert done.result.stop_reason == "cancelled"
    assert same_bits(backend.store.job(done.id).factors(), _after(done.result.iterations, backend))


def test_a_worker_that_stops_hands_back_what_it_prepares(thorough: tuple[Backend, int]) -> None:
    """Before the grace period is over, of which a preparation has no use."""
    backend, worker_pid = thorough
    job = backend.submit(**ENDLESS)
    wait_for(lambda: _prepares(backend, job), what="the preparation")
    psutil.Process(worker_pid).terminate()
    soon = 0.6 * grace_seconds(backend.configuration)
    wait_for(lambda: backend.now(job).state == "queued", soon, "the job to be handed back")
    assert backend.now(job).preparing is None

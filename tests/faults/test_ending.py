"""Cancelling at any moment, and the time limit, when the run has a past."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from solvers import sweeps
from solvers.arrays import Array
from tests.faults import slow
from tests.faults.acts import frozen, kill
from tests.stack import embedded_redis, wait_for, worker
from tests.worker.lab import ended, job_process, reached, same_bits
from tests.worker.running import ENDLESS, Lab
from worker.configuration import Configuration
from worker.contract import Job


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Checkpoints as often as they may come."""
    with embedded_redis(tmp_path_factory.mktemp("lab"), checkpoint_seconds=0.0) as configuration:
        yield Lab(configuration)


@pytest.fixture(scope="module")
def worker_pid(lab: Lab) -> Iterator[int]:
    with worker(lab.configuration) as running:
        yield running.pid


def test_a_cancel_during_a_checkpoint_keeps_the_factors_so_far(lab: Lab, worker_pid: int) -> None:
    job = lab.submit(**ENDLESS)
    reached(lab.records, job, 3)
    computing = job_process(worker_pid)

    def cancelled_in_the_middle() -> bool:
        """Frozen at a moment when the checkpoint is half written."""
        with frozen([computing]):
            if not list(lab.folder(job).glob(".checkpoint-*")):
                return False
            lab.records.cancel("local", job.id)
            return True

    wait_for(cancelled_in_the_middle, 90, "a half-written checkpoint")
    _has_its_factors(lab, ended(lab.records, job))


@pytest.mark.parametrize("iteration", [1, 37, 400])
def test_a_cancel_after_a_crash_keeps_the_factors_so_far(lab: Lab, worker_pid: int, iteration: int) -> None:
    """Asked while the next attempt begins, which still computes what readers have seen already."""
    job = lab.submit(**ENDLESS)
    lab.checkpointed(job)
    reached(lab.records, job, iteration)
    kill(job_process(worker_pid))
    wait_for(lambda: lab.now(job).attempt == 2, what="the next attempt")
    lab.records.cancel("local", job.id)
    assert ended(lab.records, job).state == "cancelled"
    assert lab.store.job(job.id).factors()


def test_a_job_cancelled_while_it_is_back_in_the_queue_keeps_its_checkpoint(tmp_path: Path) -> None:
    with embedded_redis(tmp_path) as configuration:
        lab = Lab(configuration)
        job = _handed_back(lab, configuration)
        assert lab.records.cancel("local", job.id).state == "cancelled"
        with worker(configuration):
            wait_for(lambda: job.id not in lab.records.unsettled(), what="the history in the store")
        name = next(lab.folder(job).glob("checkpoint-*.npz")).name
        state = lab.store.job(job.id).load_checkpoint(name)
        assert state is not None
        assert same_bits(lab.store.job(job.id).factors(), list(state.factors))


def test_the_time_limit_counts_over_all_attempts(lab: Lab, worker_pid: int) -> None:
    limit, spent = 8.0, 6.0
    job = lab.submit(**{**ENDLESS, "stop": {**ENDLESS["stop"], "max_seconds": limit}})
    wait_for(lambda: (found := lab.now(job).progress) and found.seconds > spent, what="most of the time")
    kill(job_process(worker_pid))
    seen = lab.now(job).progress
    assert seen is not None
    done = ended(lab.records, job)
    assert (done.state, done.attempt) == ("succeeded", 2)
    assert done.result is not None
    assert done.result.iterations < 2 * seen.iteration  # a run that begins its time anew makes more
    assert done.result.stop_reason == "max_seconds"
    assert limit <= done.result.seconds < limit + 2
    assert lab.told_once(done)


def test_work_that_was_lost_counts_for_the_time_limit(tmp_path: Path) -> None:
    """Without a checkpoint all of it is repeated, to the iteration that readers have seen, and there time is up."""
    limit, spent = 4.0, 3.0
    with embedded_redis(tmp_path, checkpoint_seconds=600.0) as configuration, worker(configuration) as running:
        lab = Lab(configuration)
        job = lab.submit(**{**ENDLESS, "stop": {**ENDLESS["stop"], "max_seconds": limit}})
        wait_for(lambda: (found := lab.now(job).progress) and found.seconds > spent, what="most of the time")
        kill(job_process(running.pid))
        wait_for(lambda: lab.now(job).attempt == 2, what="the next attempt")
        seen = lab.now(job).progress
        assert seen is not None
        done = ended(lab.records, job)
        assert (done.state, done.attempt) == ("succeeded", 2)
        assert done.result is not None
        assert done.result.stop_reason == "max_seconds"
        assert done.result.iterations == seen.iteration + 1
        assert done.result.seconds > seen.seconds + 0.5 * spent  # what was repeated counts as well
        assert lab.told_once(done)
        stop = {"max_iterations": done.result.iterations, "tolerance": 0}
        assert same_bits(lab.store.job(done.id).factors(), lab.solved(**{**ENDLESS, "stop": stop}))


def test_a_part_of_a_sweep_that_was_lost_counts_for_the_time_limit(tmp_path: Path) -> None:
    """Killed within its first sweep, before anything was published: only its signs of life told of its work."""
    with embedded_redis(tmp_path, lease_seconds=0.6, threads=1) as configuration, worker(configuration) as running:
        lab = Lab(configuration)
        job = slow.submit_slow(lab, max_iterations=1)
        victim = job_process(running.pid)
        wait_for(lambda: victim.cpu_times().user > 2, what="a good part of the sweep")
        kill(victim)
        done = ended(lab.records, job)
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
        lab = Lab(configuration)
        job = slow.submit_slow(lab)
        lab.checkpointed(job)
        computing = job_process(running.pid)
        asked = time.monotonic()
        lab.records.cancel("local", job.id)
        done = ended(lab.records, job)
        assert time.monotonic() - asked < 2.5  # a sweep takes longer
        assert (done.state, done.result) == ("cancelled", None)
        wait_for(lambda: not computing.is_running(), 10, "the process to be gone")
        assert same_bits(lab.store.job(job.id).factors(), _after_one_sweep(done))
        wait_for(lambda: job.id not in lab.records.unsettled(), what="the history in the store")
        assert [event.kind for event in lab.records.events_after(job.id)][-1] == "end"
        assert lab.as_if_nothing_happened(lab.submit(rank=2, stop={"max_iterations": 3})).attempt == 1


def _after_one_sweep(job: Job) -> list[Array]:
    return list(next(sweeps(slow.TENSOR, job.settings, threads=1)).factors)


def _handed_back(lab: Lab, configuration: Configuration) -> Job:
    with worker(configuration) as running:
        job = lab.submit(**ENDLESS)
        reached(lab.records, job, 20)
        running.terminate()
        running.wait(30)
    assert lab.now(job).state == "queued"
    return job


def _has_its_factors(lab: Lab, done: Job) -> None:
    """Those of its very last iteration."""
    assert done.state == "cancelled"
    assert done.result is not None
    stop = {"max_iterations": done.result.iterations, "tolerance": 0}
    assert same_bits(lab.store.job(done.id).factors(), lab.solved(**{**ENDLESS, "stop": stop}))
    assert lab.told_once(done)

"""Cancelling at any moment, and the time limit, when the run has a past."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    killed = time.monotonic()
    done = ended(lab.records, job)
    assert time.monotonic() - killed < spent  # far less than a run that begins its time anew
    assert (done.state, done.attempt) == ("succeeded", 2)
    assert done.result is not None
    assert done.result.stop_reason == "max_seconds"
    assert limit <= done.result.seconds < limit + 2
    assert lab.told_once(done)


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

"""When the clock of Redis steps back or forward, live workers keep their jobs and dead ones lose them soon."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Job
from tests.support.jobs import ENDLESS, LONGER, Backend, reached
from tests.support.machine.clock import RedisClock
from tests.support.stack import restartable_redis, wait_for, worker

# A living worker of a busy machine renews in time.
LEASE_SECONDS = 4.0
DAY = 86_400.0
# Four leases, and what a busy machine takes to start a worker and to claim.
TAKEN_BACK_SECONDS = 40.0


@pytest.fixture
def clock(tmp_path: Path) -> RedisClock:
    return RedisClock(tmp_path / "clock")


@pytest.fixture
def stepped(tmp_path: Path, clock: RedisClock) -> Iterator[Configuration]:
    with restartable_redis(
        tmp_path / "data", redis_server=clock.redis_server, lease_seconds=LEASE_SECONDS, checkpoint_seconds=0.05
    ) as (configuration, _):
        yield configuration


def taken_over(backend: Backend, job: Job) -> bool:
    now = backend.now(job)
    return now.attempt == 2 and now.state == "running"


@pytest.mark.parametrize("step", [-DAY, DAY])
def test_a_job_whose_worker_dies_as_the_clock_steps_is_taken_over_within_a_few_leases(
    stepped: Configuration, clock: RedisClock, step: float
) -> None:
    backend = Backend(stepped)
    with worker(stepped) as first:
        job = backend.submit(**ENDLESS)
        reached(backend.records, job, 20)
        with worker(stepped):
            clock.set(step)
            first.kill()
            first.wait()
            wait_for(lambda: taken_over(backend, job), TAKEN_BACK_SECONDS, "the other worker to take over")
            wait_for(lambda: backend.records.ping().live_workers == 1, TAKEN_BACK_SECONDS, "the dead to be forgotten")


@pytest.mark.parametrize("step", [-DAY, DAY])
def test_no_step_takes_a_job_from_a_living_worker(stepped: Configuration, clock: RedisClock, step: float) -> None:
    """There and back again while it runs, with a second worker that would take it, and a third that has just begun."""
    backend = Backend(stepped)
    with worker(stepped), worker(stepped):
        job = backend.submit(**LONGER)
        reached(backend.records, job, 20)
        clock.set(step)
        with worker(stepped):
            reached(backend.records, job, 1000)
            clock.set(0)
            assert backend.as_if_nothing_happened(job, 180).attempt == 1

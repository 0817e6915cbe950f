"""A message only wakes a worker: if it is lost, duplicated or redelivered, each job still runs once."""

import threading
from pathlib import Path

import celery.worker.state as celery_state
import psutil

from sparse_ncp.worker.broker import QUEUE, pending_wakeups, wake_worker
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.execution.reaper import StalledConsumerCheck
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.records.redis import keys
from sparse_ncp.worker.records.redis.connection import connect
from tests.support.jobs import LONG, Backend, calm_reaper, job_process, queue_job, reached, request
from tests.support.stack import embedded_redis, wait_for, worker

SHORT = {"rank": 2, "stop": {"max_iterations": 3}}


def test_a_queue_deleted_by_hand_is_woken_again(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, lease_seconds=2.0) as configuration:
        backend = Backend(configuration)
        jobs = [backend.submit(**SHORT) for _ in range(3)]
        with connect(configuration) as client:
            assert client.delete(keys.BROKER + QUEUE) == 1
        assert pending_wakeups(configuration) == 0
        with worker(configuration):
            for job in jobs:
                assert backend.as_if_nothing_happened(job).attempt == 1


def test_doubled_messages_give_one_run(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, workers=2) as configuration:
        backend = Backend(configuration)
        job = backend.submit(**LONG)
        for _ in range(10):
            wake_worker(configuration)
        with worker(configuration) as running:
            computing = job_process(running.pid)
            wait_for(lambda: pending_wakeups(configuration) == 0, what="all calls to be taken")
            jobs = [below for child in psutil.Process(running.pid).children() for below in child.children()]
            assert jobs == [computing]
            assert backend.as_if_nothing_happened(job).attempt == 1
        assert _claims(backend, job.id) == 1


def test_two_reapers_take_a_job_back_once(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, lease_seconds=2.0) as configuration:
        backend = Backend(configuration)
        job, _ = queue_job(backend.records, "local", request(backend.tensor))
        long, over = (configuration.model_copy(update={"lease_seconds": lease}) for lease in (600.0, -1.0))
        claim = ExecutionRecords.of(long).claims.claim("a worker that dies")
        assert claim is not None
        together = threading.Barrier(3)

        def reap(name: str) -> None:
            reaper = calm_reaper(configuration, name)
            together.wait()
            together.wait()
            reaper.reap()

        reapers = [threading.Thread(target=reap, args=(name,)) for name in ("one", "two")]
        for reaper in reapers:
            reaper.start()
        together.wait()
        assert ExecutionRecords.of(over).claims.renew(claim) == "held"
        together.wait()
        for reaper in reapers:
            reaper.join()
        assert backend.now(job).state == "queued"
        states = [event.payload for event in backend.jobs.events_after(job.id)]
        assert [state.partition('"attempt"')[0] for state in states] == [
            '{"state":"queued",',
            '{"state":"running",',
            '{"state":"queued",',
        ]


def test_a_running_job_is_never_delivered_again(tmp_path: Path) -> None:
    """The visibility timeout is a second, the run takes several; its message is acknowledged before it begins."""
    with embedded_redis(tmp_path) as configuration:
        backend = Backend(configuration)
        with worker(configuration, "tests.support.faulty_worker", "hasty"):
            job = backend.submit(**LONG)
            reached(backend.records, job, 100)
            with connect(configuration) as client:
                assert not client.exists(keys.BROKER + "unacked", keys.BROKER + "unacked_index")
            assert backend.as_if_nothing_happened(job).attempt == 1
        assert _claims(backend, job.id) == 1


def test_a_worker_that_does_not_hear_its_calls_ends_to_be_replaced(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, lease_seconds=2.0, stalled_seconds=4.0) as configuration:
        backend = Backend(configuration)
        with worker(configuration, "tests.support.faulty_worker", "deaf") as deaf:
            job = backend.submit(**SHORT)
            assert wait_for(lambda: deaf.poll() is not None, 90, "the deaf worker to end")
        assert backend.now(job).state == "queued"
        with worker(configuration):
            assert backend.as_if_nothing_happened(job).attempt == 1


def test_a_busy_worker_is_not_taken_for_a_deaf_one(tmp_path: Path) -> None:
    """Messages wait while its only child is busy. A worker that still takes some messages is not stalled either."""
    check = StalledConsumerCheck(Configuration(data=tmp_path), pause_seconds=5)
    rounds = int(Configuration.model_fields["stalled_seconds"].default)
    call = Call()
    celery_state.reserved_requests.add(call)
    assert not any(check.is_stalled(1) for _ in range(rounds))
    celery_state.reserved_requests.discard(call)
    assert not any(check.is_stalled(0) for _ in range(rounds))
    assert any(check.is_stalled(1) for _ in range(rounds))


class Call:
    """Stands for a call that a child works on."""


def _claims(backend: Backend, job_id: str) -> int:
    """How often the job was claimed, handing back included."""
    with connect(backend.configuration) as client:
        return int(str(client.hget(keys.job(job_id), "fence")))

"""A message is only a wake-up call: lost, doubled or delivered again, each job runs once."""

import threading
from pathlib import Path

import celery.worker.state as celery_state
import psutil

from tests.stack import embedded_redis, wait_for, worker
from tests.worker.lab import job_process, reached, request
from tests.worker.running import LONG, Lab
from worker import keys
from worker.configuration import Configuration
from worker.hearing import PATIENCE_SECONDS, Hearing
from worker.link import connect
from worker.queue import QUEUE
from worker.reaper import Reaper
from worker.wake import calls_waiting, wake

SHORT = {"rank": 2, "stop": {"max_iterations": 3}}


def test_a_queue_deleted_by_hand_is_woken_again(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, lease_seconds=2.0) as configuration:
        lab = Lab(configuration)
        jobs = [lab.submit(**SHORT) for _ in range(3)]
        with connect(configuration) as client:
            assert client.delete(keys.BROKER + QUEUE) == 1
        assert calls_waiting(configuration) == 0
        with worker(configuration):
            for job in jobs:
                assert lab.as_if_nothing_happened(job).attempt == 1


def test_doubled_messages_give_one_run(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, workers=2) as configuration:
        lab = Lab(configuration)
        job = lab.submit(**LONG)
        for _ in range(10):
            wake(configuration)
        with worker(configuration) as running:
            computing = job_process(running.pid)
            wait_for(lambda: calls_waiting(configuration) == 0, what="all calls to be taken")
            jobs = [below for child in psutil.Process(running.pid).children() for below in child.children()]
            assert jobs == [computing]
            assert lab.as_if_nothing_happened(job).attempt == 1
        assert _claims(lab, job.id) == 1


def test_two_reapers_take_a_job_back_once(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, lease_seconds=0.5) as configuration:
        lab = Lab(configuration)
        job, _ = lab.records.submit("local", request(lab.tensor))
        assert lab.records.claim("a worker that dies") is not None
        wait_for(lambda: lab.records.uptime_seconds() > 2, what="a Redis that is calm")
        together = threading.Barrier(2)

        def look(name: str) -> None:
            reaper = Reaper(configuration, name)
            together.wait()
            reaper.look()

        reapers = [threading.Thread(target=look, args=(name,)) for name in ("one", "two")]
        for reaper in reapers:
            reaper.start()
        for reaper in reapers:
            reaper.join()
        assert lab.now(job).state == "queued"
        states = [event.payload for event in lab.records.events_after(job.id)]
        assert [state.partition('"attempt"')[0] for state in states] == [
            '{"state":"queued",',
            '{"state":"running",',
            '{"state":"queued",',
        ]


def test_a_running_job_is_never_delivered_again(tmp_path: Path) -> None:
    """The visibility timeout is a second, the run takes several; its message is acknowledged before it begins."""
    with embedded_redis(tmp_path) as configuration:
        lab = Lab(configuration)
        with worker(configuration, "tests.faults.started", "hasty"):
            job = lab.submit(**LONG)
            reached(lab.records, job, 100)
            with connect(configuration) as client:
                assert not client.exists(keys.BROKER + "unacked", keys.BROKER + "unacked_index")
            assert lab.as_if_nothing_happened(job).attempt == 1
        assert _claims(lab, job.id) == 1


def test_a_worker_that_does_not_hear_its_calls_ends_to_be_replaced(tmp_path: Path) -> None:
    with embedded_redis(tmp_path, lease_seconds=2.0) as configuration:
        lab = Lab(configuration)
        with worker(configuration, "tests.faults.started", "deaf") as deaf:
            job = lab.submit(**SHORT)
            assert wait_for(lambda: deaf.poll() is not None, 90, "the deaf worker to end")
        assert lab.now(job).state == "queued"
        with worker(configuration):
            assert lab.as_if_nothing_happened(job).attempt == 1


def test_a_busy_worker_is_not_taken_for_a_deaf_one(tmp_path: Path) -> None:
    """Calls wait while its only child computes: it cannot take them. Nor is one deaf that takes some."""
    hearing = Hearing(Configuration(data=tmp_path), pause_seconds=5)
    looks = int(PATIENCE_SECONDS)
    call = Call()
    celery_state.reserved_requests.add(call)
    assert not any(hearing.is_lost(1) for _ in range(looks))
    celery_state.reserved_requests.discard(call)
    assert not any(hearing.is_lost(0) for _ in range(looks))
    assert any(hearing.is_lost(1) for _ in range(looks))


class Call:
    """Stands for a call that a child works on."""


def _claims(lab: Lab, job_id: str) -> int:
    """How often the job was claimed, handing back included."""
    with connect(lab.configuration) as client:
        return int(str(client.hget(keys.job(job_id), "fence")))

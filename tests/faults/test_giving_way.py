"""A job gives way to other owners, and goes on later to the same bits, without a gap in its history."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.contract import Job
from tests.support.jobs import (
    ENDLESS,
    LONG,
    LONGER,
    Backend,
    ended,
    job_process,
    put,
    queue_job,
    random_tensor,
    request,
)
from tests.support.stack import embedded_redis, wait_for, worker

STOPPED_SECONDS = 30


@pytest.fixture
def short_turns(tmp_path: Path) -> Iterator[Backend]:
    """Turns of a second; longer ones where a resume costs more than 20 ms."""
    settings = {"turn_seconds": 1.0, "checkpoint_seconds": 600.0, "lease_seconds": 3.0}
    with embedded_redis(tmp_path, **settings) as configuration:
        yield Backend(configuration)


def submit_short(backend: Backend, owner: str = "bob", **fields: object) -> Job:
    tensor = put(backend.records, backend.store, random_tensor(6, 5, 4), owner)
    asked = request(tensor, **{"stop": {"max_iterations": 3, "tolerance": 0}, **fields})
    job, _ = queue_job(backend.records, owner, asked)
    wake_worker(backend.configuration)
    return job


def paused(backend: Backend, job: Job) -> Job:
    """The job once it has given way."""
    return wait_for(lambda: found if (found := backend.now(job)).paused else None, what="the job to give way")


def test_a_long_job_gives_way_to_another_owner_and_goes_on_to_the_same_bits(short_turns: Backend) -> None:
    with worker(short_turns.configuration):
        long = short_turns.submit(**LONGER)
        wait_for(lambda: short_turns.now(long).progress, what="its first iteration")
        short = ended(short_turns.records, submit_short(short_turns))
        assert short.state == "succeeded"
        assert short_turns.now(long).state in ("queued", "running")
        done = short_turns.as_if_nothing_happened(long)
    assert (done.attempt, done.paused) == (1, None)
    events = [json.loads(event.payload) for event in short_turns.jobs.events_after(long.id, None, 10**6)]
    states = [(one["state"], one.get("paused")) for one in events if "attempt" in one and "settings" not in one]
    assert [state for state, _ in states] == ["queued", "running", "queued", "running", "succeeded"]
    reasons = [why and (why["reason"], why["iteration"] > 0) for _, why in states]
    assert reasons == [None, None, ("others", True), None, None]


def test_a_job_that_gave_way_says_why_and_how_far_it_is(short_turns: Backend) -> None:
    with worker(short_turns.configuration):
        long = short_turns.submit(**LONGER)
        wait_for(lambda: short_turns.now(long).progress, what="its first iteration")
        submit_short(short_turns, **ENDLESS)
        found = paused(short_turns, long)
    assert found.paused is not None
    assert found.progress is not None
    assert found.state == "queued"
    assert found.paused.iteration == found.progress.iteration == found.factors_iteration
    assert found.paused.done == found.paused.iteration / LONGER["stop"]["max_iterations"]
    assert found.paused.message == f"gives way to other users, {found.paused.done:.0%} done".replace("%", " %")
    assert (found.queue_position, found.attempt) == (1, 0)


def test_a_job_that_gave_way_survives_a_kill_of_everything(short_turns: Backend) -> None:
    with worker(short_turns.configuration) as running:
        long = short_turns.submit(**LONGER)
        wait_for(lambda: short_turns.now(long).progress, what="its first iteration")
        blocker = submit_short(short_turns, **ENDLESS)
        paused(short_turns, long)
        os.kill(running.pid, signal.SIGKILL)
    short_turns.records.jobs.cancel("bob", blocker.id)
    with worker(short_turns.configuration):
        assert short_turns.as_if_nothing_happened(long).attempt == 1


def test_a_job_that_is_cancelled_while_it_waits_keeps_its_factors(short_turns: Backend) -> None:
    with worker(short_turns.configuration):
        long = short_turns.submit(**ENDLESS)
        wait_for(lambda: short_turns.now(long).progress, what="its first iteration")
        submit_short(short_turns, **ENDLESS)
        found = paused(short_turns, long)
        gone = short_turns.records.jobs.cancel("local", long.id)
    assert (gone.state, gone.paused) == ("cancelled", None)
    assert gone.factors_iteration == found.paused.iteration if found.paused else False
    assert [A.shape for A in short_turns.store.job(long.id).factors()] == [(40, 8)] * 3


def test_a_worker_that_is_stopped_while_a_job_gives_way_loses_nothing(short_turns: Backend) -> None:
    with worker(short_turns.configuration) as running:
        long = short_turns.submit(**LONG)
        wait_for(lambda: short_turns.now(long).progress, what="its first iteration")
        blocker = submit_short(short_turns, **ENDLESS)
        running.terminate()
        assert running.wait(STOPPED_SECONDS) == 0
    assert short_turns.now(long).state == "queued"
    short_turns.records.jobs.cancel("bob", blocker.id)
    with worker(short_turns.configuration):
        assert short_turns.as_if_nothing_happened(long).attempt == 1


def test_a_job_that_gave_way_holds_no_memory(short_turns: Backend) -> None:
    with worker(short_turns.configuration) as running:
        long = short_turns.submit(**ENDLESS)
        wait_for(lambda: short_turns.now(long).progress, what="its first iteration")
        process = job_process(running.pid)
        submit_short(short_turns, **ENDLESS)
        paused(short_turns, long)
        process.wait(STOPPED_SECONDS)


def test_the_operator_pauses_an_owner_and_lets_the_job_go_on(short_turns: Backend) -> None:
    with worker(short_turns.configuration):
        long = short_turns.submit(**LONGER)
        wait_for(lambda: short_turns.now(long).progress, what="its first iteration")
        short_turns.records.owners.pause("local", "the disk is being replaced")
        found = paused(short_turns, long)
        assert found.paused is not None
        assert found.paused.reason == "operator"
        assert found.paused.message == "paused by the operator: the disk is being replaced"
        assert found.queue_position is None
        assert ended(short_turns.records, submit_short(short_turns)).state == "succeeded"
        assert short_turns.now(long).state == "queued"
        short_turns.records.owners.resume("local")
        wake_worker(short_turns.configuration)
        assert short_turns.as_if_nothing_happened(long).attempt == 1

"""Studies survive the same failures as jobs: after a crash in mid-study, every run ends exactly once."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
import pytest
from pydantic import TypeAdapter

from sparse_ncp.solvers.studies import ChoiceSettings, choose
from sparse_ncp.worker.broker import wake_worker
from sparse_ncp.worker.contract import TERMINAL, Job
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.study_contract import Study, StudyRequest
from tests.support.api import planted
from tests.support.jobs import TENSOR, Backend, job_process, put, queue_job, request
from tests.support.processes import kill
from tests.support.stack import embedded_redis, restartable_redis, wait_for, worker

GRID: dict[str, Any] = {
    "kind": "compare",
    "ranks": [3],
    "methods": ["apg", "mu"],
    "repeats": 8,
    "stop": {"max_iterations": 40, "tolerance": 0},
}

SMALL = planted(10, 9, 8, rank=2)


class Lab:
    """Studies on one Redis and one store."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.records = backend.records
        self.studies = StudyOperations(backend.records, backend.store, backend.configuration)

    def submit(self, array: Any = TENSOR, **fields: Any) -> Study:
        tensor = put(self.records, self.backend.store, array)
        body = TypeAdapter(StudyRequest).validate_python({"tensor_id": tensor.id, **fields})
        return self.studies.submit("local", body)[0]

    def now(self, study: Study) -> Study:
        return self.records.studies.find(study.id)

    def reached(self, study: Study, ended: int) -> Study:
        def look() -> Study | None:
            found = self.now(study)
            return found if found.runs.ended >= ended or found.state in TERMINAL else None

        return wait_for(look, 120, f"{ended} runs of study {study.id}")

    def ended(self, study: Study) -> Study:
        def look() -> Study | None:
            found = self.now(study)
            return found if found.state in TERMINAL else None

        return wait_for(look, 180, f"study {study.id}")

    def runs(self, study: Study) -> list[Job]:
        return list(self.records.jobs.list(study.owner, study_id=study.id, limit=500).items)

    def events(self, study: Study) -> list[dict[str, Any]]:
        found = self.studies.events_after(study.id, count=10_000)
        return [{"kind": event.kind, **json.loads(event.payload)} for event in found]

    def all_once(self, study: Study) -> None:
        """Every run has ended once, with the bits of an undisturbed one."""
        runs = self.runs(study)
        assert Counter(event["job_id"] for event in self.events(study) if event["kind"] == "run") == {
            run.id: 1 for run in runs
        }
        for run in runs:
            self.backend.as_if_nothing_happened(run)
        assert len({(run.settings.method, run.settings.seed) for run in runs}) == len(runs) == study.runs.total


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with embedded_redis(tmp_path, checkpoint_seconds=0.05, lease_seconds=2.0) as configuration:
        yield Lab(Backend(configuration))


@pytest.fixture
def running(lab: Lab) -> Iterator["Popen[bytes]"]:
    with worker(lab.backend.configuration) as process:
        yield process


def test_runs_whose_shared_process_is_killed_end_exactly_once(lab: Lab, running: "Popen[bytes]") -> None:
    study = lab.submit(**GRID)
    for ended in (0, 3):
        lab.reached(study, ended)
        victim = job_process(running.pid)
        kill(victim)
        psutil.wait_procs([victim], timeout=10)
    done = lab.ended(study)
    assert (done.state, done.runs.succeeded) == ("succeeded", 16)
    assert max(run.attempt for run in lab.runs(study)) >= 2
    lab.all_once(done)


def test_a_study_goes_on_with_another_worker_when_its_own_is_killed(lab: Lab) -> None:
    study = lab.submit(**GRID)
    with worker(lab.backend.configuration) as first:
        lab.reached(study, 4)
        first.kill()
        first.wait()
    seen = lab.now(study)
    with worker(lab.backend.configuration):
        done = lab.ended(study)
    assert done.runs.succeeded == 16 > seen.runs.succeeded >= 4
    lab.all_once(done)


def test_a_study_goes_on_when_redis_was_killed(tmp_path: Path) -> None:
    """While runs share a process: what they have computed waits for Redis, and ends once."""
    settings = {"checkpoint_seconds": 0.05, "lease_seconds": 2.0}
    with restartable_redis(tmp_path, **settings) as (configuration, restart), worker(configuration):
        lab = Lab(Backend(configuration))
        study = lab.submit(**GRID)
        lab.reached(study, 3)
        restart()
        done = lab.ended(study)
        assert (done.state, done.runs.succeeded) == ("succeeded", 16)
        lab.all_once(done)


def test_a_cancelled_study_keeps_what_is_done(lab: Lab, running: "Popen[bytes]") -> None:
    study = lab.submit(**{**GRID, "repeats": 500})
    seen = lab.reached(study, 5)
    assert seen.seconds_left is not None
    assert seen.seconds_left > 0
    lab.records.studies.cancel("local", study.id)
    done = lab.ended(study)
    assert done.state == "cancelled"
    assert done.runs.succeeded >= 5
    assert done.runs.succeeded + done.runs.cancelled == 1000
    assert lab.records.stats.usage("local").jobs.queued == 0
    kept = [run for run in lab.runs(study) if run.state == "succeeded"]
    for run in kept[:5]:
        lab.backend.as_if_nothing_happened(run)
    never = next(run for run in lab.runs(study) if run.state == "cancelled" and run.started_at is None)
    assert [event.kind for event in lab.backend.jobs.events_after(never.id)] == ["state", "state", "end"]
    table = lab.studies.get("local", study.id).table
    assert table is not None
    assert sum(row.runs for row in table.rows) == done.runs.succeeded
    lab.studies.delete("local", study.id)
    assert lab.records.jobs.list("local").items == ()


def test_a_choice_whose_process_is_killed_comes_to_the_same_advice(lab: Lab, running: "Popen[bytes]") -> None:
    study = lab.submit(SMALL, kind="choose", rank=4, seeds=2, seed=1)
    for progress in (0.1, 0.55):
        wait_for(lambda progress=progress: lab.now(study).progress >= progress, 120, "a step")  # type: ignore[misc]
        victim = job_process(running.pid)
        kill(victim)
        psutil.wait_procs([victim], timeout=10)
    done = lab.ended(study)
    *_, last = choose(SMALL, ChoiceSettings(rank=4, seeds=2, seed=1), threads=1)
    assert last.outcome is not None
    assert done.advice == last.outcome.advice
    (run,) = lab.runs(study)
    assert (run.attempt, run.state) == (3, "succeeded")
    steps = [event["progress"] for event in lab.events(study) if event["kind"] == "progress"]
    assert steps == sorted(steps)


def test_the_job_of_a_second_owner_starts_next(lab: Lab, running: "Popen[bytes]") -> None:
    """While runs of a large study share a process: none of them is claimed once another owner waits."""
    study = lab.submit(**{**GRID, "repeats": 540})
    lab.reached(study, 3)
    theirs = put(lab.records, lab.backend.store, TENSOR, "ann")
    job, _ = queue_job(lab.records, "ann", request(theirs, rank=2, stop={"max_iterations": 3}))
    wake_worker(lab.backend.configuration)
    done = wait_for(lambda: next((j for j in [lab.records.jobs.get("ann", job.id)] if j.finished_at), None), 180)
    lab.records.studies.cancel("local", study.id)
    runs = lab.runs(study)
    assert done.started_at is not None
    jumped = [run for run in runs if run.started_at and done.created_at < run.started_at < done.started_at]
    assert jumped == []
    assert lab.ended(study).runs.succeeded < 1080


def test_the_runs_of_a_study_and_a_choice_give_way_and_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Each time another owner's job ends long before them, though there is only one worker."""
    with embedded_redis(tmp_path, turn_seconds=0.5, checkpoint_seconds=600.0) as configuration:
        lab = Lab(Backend(configuration))
        other = put(lab.records, lab.backend.store, SMALL, "bob")
        with worker(configuration):
            compared = lab.submit(
                kind="compare", ranks=[8], methods=["apg"], repeats=2, stop={"max_iterations": 2000, "tolerance": 0}
            )
            choice = lab.submit(SMALL, kind="choose", rank=4, seeds=2, seed=1)
            wake_worker(configuration)
            lab.reached(compared, 0)
            quick = []
            for _ in range(2):
                quick.append(queue_job(lab.records, "bob", request(other, stop={"max_iterations": 3}))[0])
                wake_worker(configuration)
                wait_for(lambda: lab.records.jobs.get("bob", quick[-1].id).state == "succeeded", what="bob's job")
            assert lab.now(choice).state != "succeeded"
            assert lab.ended(compared).state == lab.ended(choice).state == "succeeded"
        lab.all_once(compared)
        *_, last = choose(SMALL, ChoiceSettings(rank=4, seeds=2, seed=1), threads=1)
        assert last.outcome is not None
        assert lab.now(choice).advice == last.outcome.advice
        assert lab.records.stats.queue().counts["paused"] >= 1
        assert all(run.attempt == 1 for run in lab.runs(compared) + lab.runs(choice))

"""Jobs on a real Celery worker give the bits of `solve()`. What may happen on the way is in `tests/faults`."""

from collections.abc import Iterator

import numpy as np
import pytest

from solvers import METHODS, solve
from tests.stack import embedded_redis, wait_for, worker
from tests.worker.lab import ended, put, reached, request, same_bits
from tests.worker.running import LONG, TENSOR, Lab
from worker.wake import wake


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("lab")
    limit = 1 << 20
    with embedded_redis(folder, checkpoint_seconds=0.05, threads=1, max_job_memory_bytes=limit) as configuration:
        yield Lab(configuration)


@pytest.fixture(scope="module")
def worker_pid(lab: Lab) -> Iterator[int]:
    with worker(lab.configuration) as process:
        yield process.pid


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("worker_pid")
def test_a_job_gives_the_bits_of_solve(lab: Lab, method: str) -> None:
    asked = {"method": method, "rank": 3, "stop": {"max_iterations": 20}}
    job = ended(lab.records, lab.submit(**asked))
    assert job.state == "succeeded", job.error
    assert same_bits(lab.store.job(job.id).factors(), lab.solved(**asked))
    assert job.result is not None
    assert job.progress is not None
    assert job.progress.objective == job.result.objective
    assert lab.told_once(job)


@pytest.mark.usefixtures("worker_pid")
def test_the_first_progress_comes_within_two_seconds(lab: Lab) -> None:
    job = lab.submit(rank=3, stop={"max_iterations": 5})
    first = wait_for(lambda: lab.records.history("local", job.id), 10)[0]
    assert first.iteration == 1
    running = ended(lab.records, job)
    assert running.started_at is not None
    assert running.finished_at is not None
    assert (running.finished_at - running.created_at).total_seconds() < 2


@pytest.mark.usefixtures("worker_pid")
def test_a_running_job_is_cancelled_and_what_it_computed_stays(lab: Lab) -> None:
    job = lab.submit(**{**LONG, "stop": {"max_iterations": 10**6, "tolerance": 0}})
    reached(lab.records, job, 3)
    lab.records.cancel("local", job.id)
    done = ended(lab.records, job, 10)
    assert done.state == "cancelled"
    assert done.result is not None
    assert done.result.stop_reason == "cancelled"
    stop = {"max_iterations": done.result.iterations, "tolerance": 0}
    assert same_bits(lab.store.job(job.id).factors(), lab.solved(**{**LONG, "stop": stop}))
    assert lab.told_once(done)


@pytest.mark.usefixtures("worker_pid")
def test_a_refused_allocation_is_a_failed_job_and_the_worker_lives_on(lab: Lab) -> None:
    """Bytes must be converted: the copy alone takes more than this job may."""
    big = put(lab.records, lab.store, np.ones((400, 400, 400), np.uint8))
    job, _ = lab.records.submit("local", request(big))
    wake(lab.configuration)
    failed = ended(lab.records, job)
    assert failed.state == "failed"
    assert failed.error is not None
    assert failed.error.kind == "memory"
    assert "NCP_MAX_JOB_MEMORY_BYTES" in failed.error.remedy
    assert failed.attempt == 1
    assert ended(lab.records, lab.submit(stop={"max_iterations": 3})).state == "succeeded"


@pytest.mark.usefixtures("worker_pid")
def test_a_job_starts_from_the_factors_of_another(lab: Lab) -> None:
    first = ended(lab.records, lab.submit(rank=3, stop={"max_iterations": 5}))
    second = ended(lab.records, lab.submit(rank=3, initial={"job_id": first.id}, stop={"max_iterations": 5}))
    start = lab.store.job(first.id).factors()
    settings = request(lab.tensor, rank=3, stop={"max_iterations": 5}).settings()
    assert same_bits(lab.store.job(second.id).factors(), solve(TENSOR, settings, initial=start).factors)


@pytest.mark.usefixtures("worker_pid")
def test_a_run_that_cannot_begin_fails_with_the_reason(lab: Lab) -> None:
    job = ended(lab.records, lab.submit(alpha=[0.1, 0.2]))
    assert job.state == "failed"
    assert job.error is not None
    assert (job.error.kind, job.error.message) == ("input", "alpha: has 2 numbers for 3 modes")
    wait_for(lambda: job.id not in lab.records.unsettled())
    assert [event.kind for event in lab.records.events_after(job.id)][-1] == "end"


@pytest.mark.usefixtures("worker_pid")
def test_two_owners_take_turns_on_one_worker(lab: Lab) -> None:
    tensors = {owner: put(lab.records, lab.store, TENSOR, owner) for owner in ("ann", "bob")}
    jobs = [
        lab.records.submit(owner, request(tensors[owner], stop={"max_iterations": 3}))[0]
        for owner in ("ann", "ann", "ann", "bob", "bob", "bob")
    ]
    wake(lab.configuration)
    done = [ended(lab.records, job) for job in jobs]
    order = [job.owner for job in sorted(done, key=lambda job: job.started_at or job.created_at)]
    assert order in (["ann", "bob"] * 3, ["bob", "ann"] * 3)


@pytest.mark.usefixtures("worker_pid")
def test_a_stray_call_finds_nothing_and_a_lost_one_is_repeated(lab: Lab) -> None:
    for _ in range(3):
        wake(lab.configuration)
    job, _ = lab.records.submit("local", request(lab.tensor, stop={"max_iterations": 3}))
    assert ended(lab.records, job, 30).state == "succeeded"

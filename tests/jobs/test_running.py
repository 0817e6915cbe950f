"""Jobs on a real Celery worker give the same bits as `solve()`. Failures are tested in `tests/faults`."""

from collections.abc import Iterator

import numpy as np
import pytest

from sparse_ncp.solvers import METHODS, solve
from sparse_ncp.worker.broker import wake_worker
from tests.support.jobs import LONG, TENSOR, Backend, ended, put, queue_job, reached, request, same_bits
from tests.support.stack import embedded_redis, wait_for, worker


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    folder = tmp_path_factory.mktemp("lab")
    limit = 1 << 20
    with embedded_redis(folder, checkpoint_seconds=0.05, threads=1, max_job_memory_bytes=limit) as configuration:
        yield Backend(configuration)


@pytest.fixture(scope="module")
def worker_pid(backend: Backend) -> Iterator[int]:
    with worker(backend.configuration) as process:
        yield process.pid


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("worker_pid")
def test_a_job_gives_the_bits_of_solve(backend: Backend, method: str) -> None:
    asked = {"method": method, "rank": 3, "stop": {"max_iterations": 20}}
    job = ended(backend.records, backend.submit(**asked))
    assert job.state == "succeeded", job.error
    assert same_bits(backend.store.job(job.id).factors(), backend.solved(**asked))
    assert job.result is not None
    assert job.progress is not None
    assert job.progress.objective == job.result.objective
    assert backend.published_once(job)


@pytest.mark.usefixtures("worker_pid")
def test_the_first_progress_comes_within_two_seconds(backend: Backend) -> None:
    job = backend.submit(rank=3, stop={"max_iterations": 5})
    first = wait_for(lambda: backend.jobs.history("local", job.id), 10)[0]
    assert first.iteration == 1
    running = ended(backend.records, job)
    assert running.started_at is not None
    assert running.finished_at is not None
    assert (running.finished_at - running.created_at).total_seconds() < 2


@pytest.mark.usefixtures("worker_pid")
def test_a_running_job_is_cancelled_and_what_it_computed_stays(backend: Backend) -> None:
    job = backend.submit(**{**LONG, "stop": {"max_iterations": 10**6, "tolerance": 0}})
    reached(backend.records, job, 3)
    backend.records.jobs.cancel("local", job.id)
    done = ended(backend.records, job, 10)
    assert done.state == "cancelled"
    assert done.result is not None
    assert done.result.stop_reason == "cancelled"
    stop = {"max_iterations": done.result.iterations, "tolerance": 0}
    assert same_bits(backend.store.job(job.id).factors(), backend.solved(**{**LONG, "stop": stop}))
    assert backend.published_once(done)


@pytest.mark.usefixtures("worker_pid")
def test_a_refused_allocation_is_a_failed_job_and_the_worker_lives_on(backend: Backend) -> None:
    """Bytes must be converted: the copy alone takes more than this job may."""
    big = put(backend.records, backend.store, np.ones((400, 400, 400), np.uint8))
    job, _ = queue_job(backend.records, "local", request(big))
    wake_worker(backend.configuration)
    failed = ended(backend.records, job)
    assert failed.state == "failed"
    assert failed.error is not None
    assert failed.error.kind == "memory"
    assert "NCP_MAX_JOB_MEMORY_BYTES" in failed.error.remedy
    assert failed.attempt == 1
    assert ended(backend.records, backend.submit(stop={"max_iterations": 3})).state == "succeeded"


@pytest.mark.usefixtures("worker_pid")
def test_a_job_starts_from_the_factors_of_another(backend: Backend) -> None:
    first = ended(backend.records, backend.submit(rank=3, stop={"max_iterations": 5}))
    second = ended(
        backend.records,
        backend.submit(rank=3, initial={"job_id": first.id}, stop={"max_iterations": 5}),
    )
    start = backend.store.job(first.id).factors()
    settings = request(backend.tensor, rank=3, stop={"max_iterations": 5}).settings()
    assert same_bits(backend.store.job(second.id).factors(), solve(TENSOR, settings, initial=start).factors)


@pytest.mark.usefixtures("worker_pid")
def test_a_run_that_cannot_begin_fails_with_the_reason(backend: Backend) -> None:
    job = ended(backend.records, backend.submit(alpha=[0.1, 0.2]))
    assert job.state == "failed"
    assert job.error is not None
    assert (job.error.kind, job.error.message) == ("input", "alpha: has 2 numbers for 3 modes")
    wait_for(lambda: job.id not in backend.records.jobs.unsettled())
    assert [event.kind for event in backend.jobs.events_after(job.id)][-1] == "end"


@pytest.mark.usefixtures("worker_pid")
def test_two_owners_share_one_worker(backend: Backend) -> None:
    """The one who has used less is next, and that one differs from run to run after the first two jobs."""
    tensors = {owner: put(backend.records, backend.store, TENSOR, owner) for owner in ("ann", "bob")}
    jobs = [
        queue_job(backend.records, owner, request(tensors[owner], stop={"max_iterations": 3}))[0]
        for owner in ("ann", "ann", "ann", "bob", "bob", "bob")
    ]
    wake_worker(backend.configuration)
    done = [ended(backend.records, job) for job in jobs]
    order = [job.owner for job in sorted(done, key=lambda job: job.started_at or job.created_at)]
    assert set(order[:2]) == {"ann", "bob"}


@pytest.mark.usefixtures("worker_pid")
def test_a_stray_call_finds_nothing_and_a_lost_one_is_repeated(backend: Backend) -> None:
    for _ in range(3):
        wake_worker(backend.configuration)
    job, _ = queue_job(backend.records, "local", request(backend.tensor, stop={"max_iterations": 3}))
    assert ended(backend.records, job, 30).state == "succeeded"

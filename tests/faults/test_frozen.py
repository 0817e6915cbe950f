"""A worker that was frozen past its lease changes nothing when it continues."""

from contextlib import ExitStack
from subprocess import Popen

import pytest

from sparse_ncp.solvers import sweeps
from sparse_ncp.worker.contract import JobError, JobResult
from sparse_ncp.worker.execution.attempt import Ended
from sparse_ncp.worker.execution.run_job import report_outcome
from tests.support.jobs import ENDLESS, LONG, TENSOR, Backend, ended, job_process, reached
from tests.support.processes import frozen, kill, tree
from tests.support.stack import wait_for, worker


def test_a_frozen_worker_wakes_up_to_find_its_job_taken_and_writes_nothing(
    backend: Backend, running: Popen[bytes]
) -> None:
    job = backend.submit(**LONG)
    backend.checkpointed(job)
    computing = job_process(running.pid)
    with frozen(tree(running.pid)), worker(backend.configuration):
        done = backend.as_if_nothing_happened(job)
        wait_for(lambda: job.id not in backend.records.jobs.unsettled(), what="the history in the store")
        events, files = backend.jobs.events_after(job.id, count=10**6), _files(backend, job.id)
    assert done.attempt == 2
    wait_for(lambda: not computing.is_running(), 30, "the belated process to end")
    assert backend.now(job) == done
    assert backend.jobs.events_after(job.id, count=10**6) == events
    assert _files(backend, job.id) == files
    again = backend.submit(rank=2, stop={"max_iterations": 3})
    assert backend.as_if_nothing_happened(again).attempt == 1


def test_a_late_write_is_refused_while_the_other_attempt_still_runs(backend: Backend, running: Popen[bytes]) -> None:
    job = backend.submit(**ENDLESS)
    reached(backend.records, job, 20)
    computing = job_process(running.pid)
    with ExitStack() as other:
        with frozen(tree(running.pid)):
            other.enter_context(worker(backend.configuration))
            wait_for(
                lambda: backend.now(job).attempt == 2 and backend.now(job).state == "running", what="another attempt"
            )
            seen = backend.now(job).progress
            assert seen is not None
            reached(backend.records, job, seen.iteration + 100)  # by the other attempt: this one is frozen
        wait_for(lambda: not computing.is_running(), 30, "the belated process to end")
        assert (backend.now(job).state, backend.now(job).attempt) == ("running", 2)
        backend.records.jobs.cancel("local", job.id)
        done = ended(backend.records, job)
        assert done.state == "cancelled"
        assert backend.published_once(done)


def test_a_frozen_job_process_is_killed_and_its_only_worker_begins_again(
    backend: Backend, running: Popen[bytes]
) -> None:
    """No other worker could take the job, so this one must be freed."""
    job = backend.submit(**LONG)
    backend.checkpointed(job)
    with frozen([job_process(running.pid)]):
        assert backend.as_if_nothing_happened(job).attempt == 2


def test_what_a_belated_process_wrote_goes_though_it_was_killed_before_it_knew(
    backend: Backend, running: Popen[bytes]
) -> None:
    job = backend.submit(**LONG)
    backend.checkpointed(job)
    computing = job_process(running.pid)
    with frozen(tree(running.pid)):
        late = backend.checkpointed(job)
        content = late.read_bytes()
        with worker(backend.configuration):
            backend.as_if_nothing_happened(job)
            wait_for(lambda: job.id not in backend.records.jobs.unsettled(), what="the history in the store")
        files = _files(backend, job.id)
        late.parent.mkdir()
        late.write_bytes(content)  # the last that the belated process does before it is killed
        kill(computing)
    wait_for(lambda: _files(backend, job.id) == files, what="its late checkpoint to go")


@pytest.mark.parametrize("reported", ["handed back", "failed", "cancelled", "succeeded"])
def test_an_attempt_that_learns_of_its_loss_only_as_it_ends_leaves_no_file(backend: Backend, reported: str) -> None:
    asked = {"rank": 2, "stop": {"max_iterations": 3}}
    job = backend.submit(**asked)
    late = backend.records.claims.claim("frozen")
    assert late is not None
    backend.records.leases.reap(everything=True)
    with worker(backend.configuration):
        done = backend.as_if_nothing_happened(job)
        wait_for(lambda: job.id not in backend.records.jobs.unsettled(), what="the history in the store")
    files, folder = _files(backend, job.id), backend.store.job(job.id)
    *_, state = sweeps(TENSOR, late.settings)
    result = JobResult.from_state(state)
    folder.save_checkpoint(late.fence, state)
    folder.save_factors(late.fence, state, result)
    error = JobError(kind="system", message="it died", remedy="none")
    outcome = {"handed back": None, "failed": error}.get(reported, Ended(result, cancelled=reported == "cancelled"))
    report_outcome(backend.records.claims, backend.jobs, late, outcome)
    assert backend.now(job) == done
    assert _files(backend, job.id) == files


def _files(backend: Backend, job_id: str) -> dict[str, int]:
    """Every file of the job, and when it was last written."""
    folder = backend.store.root / "jobs" / job_id
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}

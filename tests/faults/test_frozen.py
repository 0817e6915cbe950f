"""A worker that was frozen past its lease changes nothing when it goes on."""

from contextlib import ExitStack
from subprocess import Popen

from tests.faults.acts import frozen, tree
from tests.stack import wait_for, worker
from tests.worker.lab import ended, job_process, reached
from tests.worker.running import ENDLESS, LONG, Lab


def test_a_frozen_worker_wakes_up_to_find_its_job_taken_and_writes_nothing(lab: Lab, running: Popen[bytes]) -> None:
    job = lab.submit(**LONG)
    lab.checkpointed(job)
    computing = job_process(running.pid)
    with frozen(tree(running.pid)), worker(lab.configuration):
        done = lab.as_if_nothing_happened(job)
        wait_for(lambda: job.id not in lab.records.unsettled(), what="the history in the store")
        events, files = lab.records.events_after(job.id, count=10**6), _files(lab, job.id)
    assert done.attempt == 2
    wait_for(lambda: not computing.is_running(), 30, "the belated process to end")
    assert lab.now(job) == done
    assert lab.records.events_after(job.id, count=10**6) == events
    assert _files(lab, job.id) == files
    again = lab.submit(rank=2, stop={"max_iterations": 3})
    assert lab.as_if_nothing_happened(again).attempt == 1


def test_a_late_write_is_refused_while_the_other_attempt_still_runs(lab: Lab, running: Popen[bytes]) -> None:
    job = lab.submit(**ENDLESS)
    reached(lab.records, job, 20)
    computing = job_process(running.pid)
    with ExitStack() as other:
        with frozen(tree(running.pid)):
            other.enter_context(worker(lab.configuration))
            wait_for(lambda: lab.now(job).attempt == 2 and lab.now(job).state == "running", what="another attempt")
            reached(lab.records, job, 200)
        wait_for(lambda: not computing.is_running(), 30, "the belated process to end")
        assert (lab.now(job).state, lab.now(job).attempt) == ("running", 2)
        lab.records.cancel("local", job.id)
        done = ended(lab.records, job)
        assert done.state == "cancelled"
        assert lab.told_once(done)


def test_a_frozen_job_process_is_killed_and_its_only_worker_begins_again(lab: Lab, running: Popen[bytes]) -> None:
    """Nobody else could take the job: the worker itself must be freed."""
    job = lab.submit(**LONG)
    lab.checkpointed(job)
    with frozen([job_process(running.pid)]):
        assert lab.as_if_nothing_happened(job).attempt == 2


def _files(lab: Lab, job_id: str) -> dict[str, int]:
    """Every file of the job, and when it was last written."""
    folder = lab.store.root / "jobs" / job_id
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}

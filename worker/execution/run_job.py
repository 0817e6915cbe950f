"""The process of a job: run one attempt, report its outcome, and end within the grace period."""

import logging
import os
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from sparse_ncp.solvers import InvalidInput
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, ErrorKind, JobError, Task
from sparse_ncp.worker.errors import CorruptFile, HistoryTooLarge, NoFactorsYet, NotFound, StoreFull, Unavailable
from sparse_ncp.worker.execution.attempt import Attempt, Ended
from sparse_ncp.worker.execution.heartbeat import Heartbeat
from sparse_ncp.worker.execution.sinks import LiveSink
from sparse_ncp.worker.execution.study_tasks import ChoiceAttempt, ValidationAttempt
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.claims import ClaimRecords, ExecutionRecords
from sparse_ncp.worker.store.files import is_storage_failure
from sparse_ncp.worker.store.local import open_store

Answer = TypeVar("Answer")


class Stopping(Protocol):
    """Whether this process must end soon."""

    def is_set(self) -> bool: ...


# The class that runs each kind of task.
TASKS: Mapping[Task, type[Attempt]] = {"run": Attempt, "choose": ChoiceAttempt, "validate": ValidationAttempt}
MISSING_INPUT: tuple[ErrorKind, str] = ("input", "submit a job whose tensor and factors exist")
# The kind of a job's error and its remedy, for exceptions whose text is the message.
KNOWN_ERRORS: Mapping[type[Exception], tuple[ErrorKind, str]] = {
    NotFound: MISSING_INPUT,
    NoFactorsYet: MISSING_INPUT,
    CorruptFile: ("system", "upload the tensor again, and check the disk"),
    HistoryTooLarge: ("quota", "delete tensors or jobs that you no longer need; initial goes on from its factors"),
}
log = logging.getLogger("ncp.job")


def run_job(claim: Claim, configuration: Configuration) -> None:
    """Run one attempt and report its outcome.

    Raises
    ------
    Unavailable
        If the process must stop and cannot reach Redis.
    """
    stop = handle_stop()
    records, store = ExecutionRecords.of(configuration), open_store(configuration)
    claims, jobs = records.claims, JobOperations(records, store, configuration)
    with (
        Heartbeat(claims, claim, configuration) as heartbeat,
        LiveSink(claims, claim, heartbeat, configuration.progress_seconds) as sink,
        exit_after_grace_period(
            lambda: report_outcome(claims, jobs, claim, None), claim.job_id, stop, grace_seconds(configuration)
        ),
    ):
        kind = TASKS[claim.task]
        attempt = kind(
            claim, claims, store, configuration, heartbeat, sink, lambda: stop.is_set() or heartbeat.is_paused
        )
        outcome = outcome_of(attempt)
        retry_redis(sink.flush, stop, configuration)
        if heartbeat.lost:
            retry_redis(lambda: discard_late_files(jobs, claim.job_id), stop, configuration)
        else:
            retry_redis(lambda: report_outcome(claims, jobs, claim, outcome), stop, configuration)


def handle_stop() -> threading.Event:
    """Return an event that SIGTERM sets, which is how the worker asks this process to stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return stop


def outcome_of(attempt: Attempt) -> Ended | JobError | None:
    """Run the attempt and return its outcome; all exceptions but Unavailable become errors of the job."""
    try:
        return attempt.run()
    except Unavailable:  # of Redis, or of its writes: the job goes back to the queue
        raise
    except MemoryError as error:
        # Lift the limit first, because reporting needs some memory, too.
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
        message = f"the job needs more memory than it may use: {error or 'an allocation was refused'}"
        remedy = "lower the rank or the precision, or raise NCP_MAX_JOB_MEMORY_BYTES"
        return JobError(kind="memory", message=message, remedy=remedy)
    except InvalidInput as error:
        return JobError(kind="input", message=f"{error.field}: {error.problem}", remedy=error.remedy)
    except (NotFound, NoFactorsYet, CorruptFile, HistoryTooLarge) as error:
        kind, remedy = KNOWN_ERRORS[type(error)]
        return JobError(kind=kind, message=str(error), remedy=remedy)
    except Exception as error:
        log.exception("job failed")
        message = f"the run failed unexpectedly ({type(error).__name__})"
        return JobError(kind="system", message=message, remedy="see the worker's log")


def report_outcome(claims: ClaimRecords, jobs: JobOperations, claim: Claim, outcome: Ended | JobError | None) -> None:
    """Write the outcome to the record, and settle a job that has ended. If the claim was lost, remove its files."""
    if outcome is None:
        is_held, what = claims.hand_back(claim), "handed back"
    elif isinstance(outcome, JobError):
        is_held, what = claims.fail(claim, outcome), f"failed: {outcome.message}"
    elif outcome.cancelled:
        is_held, what = claims.cancel(claim, outcome.result), "ended"
    else:
        is_held, what = claims.succeed(claim, outcome.result, outcome.measures), "ended"
    if not is_held:
        discard_late_files(jobs, claim.job_id)
        return
    log.info("job %s: %s", claim.job_id, what)
    if outcome is not None:
        with _ignore_storage_errors(claim.job_id, "its history stays in Redis for now"):
            jobs.settle(claim.job_id)


def discard_late_files(jobs: JobOperations, job_id: str) -> None:
    """Remove files that an attempt wrote after it lost its claim."""
    log.info("job %s: the claim was lost", job_id)
    with _ignore_storage_errors(job_id, "late files stay until the next cleanup"):
        jobs.discard_late_files(job_id)


@contextmanager
def _ignore_storage_errors(job_id: str, otherwise: str) -> Iterator[None]:
    """Log errors of storage and go on: a later cleanup repeats the work."""
    try:
        yield
    except OSError as error:
        if not isinstance(error, StoreFull) and not is_storage_failure(error):
            raise
        log.warning("job %s: %s: %s", job_id, otherwise, error)


def retry_redis(call: Callable[[], Answer], stop: Stopping, configuration: Configuration) -> Answer:
    """Repeat a call until Redis is available, so that an outage does not cost hours of computing.

    After `stop` is set, give up after `redis_patience_seconds` and raise Unavailable.
    """
    stopped_at: float | None = None
    while True:
        try:
            return call()
        except Unavailable:
            if stop.is_set():
                stopped_at = stopped_at or time.monotonic()
                if time.monotonic() - stopped_at > configuration.redis_patience_seconds:
                    raise
            time.sleep(configuration.redis_retry_seconds)


def grace_seconds(configuration: Configuration) -> float:
    """Return how long a sweep may still take once the worker stops, which leaves time to hand the job back."""
    return min(configuration.grace_seconds, configuration.stop_seconds / 2)


@contextmanager
def exit_after_grace_period(
    hand_back: Callable[[], object], job_id: str, stop: threading.Event, seconds: float
) -> Iterator[None]:
    """A context that exits the process `seconds` after `stop` is set, keeping the last checkpoint."""
    done = threading.Event()

    def exit_when_due() -> None:
        stop.wait()
        if done.wait(seconds):
            return
        log.warning("job %s: its sweep takes longer than the grace period; its last checkpoint is kept", job_id)
        try:
            hand_back()
        except Unavailable:
            log.warning("job %s: Redis is unavailable, the lease will expire instead", job_id)
        finally:
            os._exit(0)

    threading.Thread(target=exit_when_due, name="grace", daemon=True).start()
    try:
        yield
    finally:
        done.set()

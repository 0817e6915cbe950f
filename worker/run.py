"""The job process: drive the solver, publish, checkpoint, heed cancel and stop, account for the outcome."""

import logging
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from solvers import InvalidInput
from worker.attempt import Attempt, Ended
from worker.configuration import Configuration
from worker.contract import Claim, JobError
from worker.errors import Damaged, NotFound, NotYet, StoreFull, Unavailable
from worker.event_records import store_of
from worker.grace import grace, leaving_in_time
from worker.records import Records
from worker.standing import RETRY_SECONDS, Watch

Answer = TypeVar("Answer")
# How long a job that was told to stop goes on trying to reach Redis; then its lease runs out instead.
STOP_PATIENCE_SECONDS = 5.0

log = logging.getLogger("ncp.job")


def run_job(claim: Claim, configuration: Configuration) -> None:
    """One attempt, from its claim to a state of the job. Raises only if Redis stays away while it must stop."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    records = Records.of(configuration)
    attempt = Attempt(claim, records, store_of(configuration), configuration, stop.is_set)
    with Watch(records, claim, configuration) as watch, leaving_in_time(records, claim, stop, grace(configuration)):
        outcome = _outcome(attempt, watch)
        _patiently(watch.flush, stop)
        if not watch.lost:
            _patiently(lambda: _account(records, claim, outcome), stop)
        if watch.lost:
            _patiently(lambda: records.clear_up(claim.job_id), stop)


def _outcome(attempt: Attempt, watch: Watch) -> Ended | JobError | None:
    """Whatever happens inside becomes a state of the job: this is the border of the process."""
    try:
        return attempt.run(watch)
    except MemoryError as error:
        return _out_of_memory(error)
    except InvalidInput as error:
        return JobError(kind="input", message=f"{error.field}: {error.problem}", remedy=error.remedy)
    except (NotFound, NotYet) as error:
        return JobError(kind="input", message=str(error), remedy="submit a job on a tensor and factors that are there")
    except Damaged as error:
        return JobError(kind="system", message=str(error), remedy="upload the tensor again, and look at the disk")
    except Exception as error:
        log.exception("job failed")
        message = f"the run failed unexpectedly ({type(error).__name__})"
        return JobError(kind="system", message=message, remedy="look at the worker's log")


def _out_of_memory(error: MemoryError) -> JobError:
    """Lift the limit first: accounting for the failure needs a little memory too."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return JobError(
        kind="memory",
        message=f"the job needs more memory than it may take: {error or 'an allocation was refused'}",
        remedy="lower the rank or the precision, or raise NCP_MAX_JOB_MEMORY_BYTES",
    )


def _account(records: Records, claim: Claim, outcome: Ended | JobError | None) -> None:
    """Tell the record; then, for an ended job, move its history."""
    if outcome is None:
        records.hand_back(claim)
        log.info("job %s: handed back", claim.job_id)
        return
    if isinstance(outcome, JobError):
        ended = records.fail(claim, outcome)
        log.info("job %s: failed: %s", claim.job_id, outcome.message)
    elif outcome.result.stop_reason == "cancelled":
        ended = records.cancelled(claim, outcome.result)
    else:
        ended = records.succeed(claim, outcome.result)
    if ended:
        log.info("job %s: ended", claim.job_id)
        _settle(records, claim)


def _settle(records: Records, claim: Claim) -> None:
    try:
        records.settle(claim.job_id)
    except StoreFull:
        log.warning("job %s: its history stays in Redis until the disk has room", claim.job_id)


def _patiently(call: Callable[[], Answer], stop: threading.Event) -> Answer:
    """Again until Redis is back: hours of work are not thrown away for an outage of minutes."""
    stopped_at: float | None = None
    while True:
        try:
            return call()
        except Unavailable:
            if stop.is_set():
                stopped_at = stopped_at or time.monotonic()
                if time.monotonic() - stopped_at > STOP_PATIENCE_SECONDS:
                    raise
            time.sleep(RETRY_SECONDS)

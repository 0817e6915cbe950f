"""The Celery task: claim and run jobs until none is queued."""

import logging
from functools import partial

from celery import Celery

from sparse_ncp.worker.broker import TASK
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import StoreFull, StoreUnavailable, Unavailable
from sparse_ncp.worker.execution.job_process import StopSignal, log_context_of, run_in_child_process
from sparse_ncp.worker.execution.run_job import discard_late_files, retry_redis
from sparse_ncp.worker.execution.study_endings import end_comparisons
from sparse_ncp.worker.logs import LogContext, bind_context
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.store.local import open_store

log = logging.getLogger("ncp.worker")


def register(celery: Celery, configuration: Configuration, stopping: StopSignal, worker: str) -> None:
    """Register the task with Celery, under a name that does not depend on the module."""

    @celery.task(name=TASK, ignore_result=True)
    def work() -> None:
        """Run jobs until none is left. An extra message finds nothing to claim, and does no harm."""
        try:
            run_until_idle(configuration, stopping, worker)
        except (Unavailable, StoreFull, StoreUnavailable) as error:
            log.warning("could not claim a job: %s", error)


def run_until_idle(configuration: Configuration, stopping: StopSignal, worker: str) -> None:
    """Claim and run jobs until none is queued or the worker stops, and end comparisons whose last run they were."""
    records, store = ExecutionRecords.of(configuration), open_store(configuration)
    claims, jobs = records.claims, JobOperations(records, store, configuration)
    while not stopping.is_set():
        try:
            store.check_writable()
        except StoreFull:
            pass  # the disk may have room when the job needs it
        except OSError as error:
            log.warning("no job is claimed while storage is unavailable: %s", error)
            return
        claim = claims.claim(worker)
        if claim is None:
            return
        bind_context(log_context_of(claim))
        log.info("job %s: attempt %d begins", claim.job_id, claim.attempt)
        death = run_in_child_process(claim, configuration, stopping, partial(claims.status, claim))
        if death is not None:
            log.error("job %s: %s", claim.job_id, death.how)
            if death.cause == "environment":
                report = partial(claims.hand_back, claim)
            else:
                report = partial(claims.crash, claim, death.how, is_own_fault=death.cause == "job")
            if not retry_redis(report, stopping, configuration):
                discard_late_files(jobs, claim.job_id)
        bind_context(LogContext())
        end_comparisons(records, store, configuration)

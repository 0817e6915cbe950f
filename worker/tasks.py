"""The one task: claim and run until there is nothing to claim."""

import logging
from functools import partial

from celery import Celery

from worker.child import run_apart, subject_of
from worker.configuration import Configuration
from worker.errors import Unavailable
from worker.logs import Subject, concern
from worker.queue import TASK
from worker.records import Records
from worker.stopping import Stopping

log = logging.getLogger("ncp.worker")


def register(celery: Celery, configuration: Configuration, stopping: Stopping, worker: str) -> None:
    @celery.task(name=TASK, ignore_result=True)
    def work() -> None:
        """A stray or repeated call finds nothing to claim and ends."""
        try:
            run_until_idle(configuration, stopping, worker)
        except Unavailable as error:
            log.warning("looking for jobs was given up: %s", error)


def run_until_idle(configuration: Configuration, stopping: Stopping, worker: str) -> None:
    records = Records.of(configuration)
    while not stopping.is_set() and (claim := records.claim(worker)) is not None:
        concern(subject_of(claim))
        log.info("job %s: attempt %d begins", claim.job_id, claim.attempt)
        death = run_apart(claim, configuration, stopping, partial(records.standing, claim))
        if death is not None:
            log.error("job %s: %s", claim.job_id, death)
            records.crashed(claim, death)
        concern(Subject())

"""A job that was told to stop leaves in time, even in the middle of a sweep that takes longer."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from worker.configuration import Configuration
from worker.contract import Claim
from worker.errors import Unavailable
from worker.records import Records

# With what the API and Celery need, everything has stopped within half a minute.
LONGEST_SECONDS = 15.0

log = logging.getLogger("ncp.job")


def grace(configuration: Configuration) -> float:
    """What a sweep may still take. The other half is for handing back."""
    return min(LONGEST_SECONDS, configuration.stop_seconds / 2)


@contextmanager
def leaving_in_time(records: Records, claim: Claim, stop: threading.Event, seconds: float) -> Iterator[None]:
    """Inside, the process ends by itself `seconds` after `stop`; the last checkpoint stands."""
    done = threading.Event()
    threading.Thread(target=_watch, args=(records, claim, stop, done, seconds), name="grace", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _watch(records: Records, claim: Claim, stop: threading.Event, done: threading.Event, seconds: float) -> None:
    stop.wait()
    if done.wait(seconds):
        return
    log.warning("job %s: its sweep takes longer than the time to stop, its last checkpoint stands", claim.job_id)
    try:
        records.hand_back(claim)
    except Unavailable:
        log.warning("job %s: Redis is away, the lease runs out instead", claim.job_id)
    finally:
        os._exit(0)

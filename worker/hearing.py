"""Notice a worker that has lost its ear: connected to Redis, alive, idle, and yet taking no calls."""

import logging
import os
import signal
import threading

import celery.worker.state as celery_state

from worker.configuration import Configuration

# Celery connects again within half a minute at most; where that takes longer than this, a new worker is quicker.
PATIENCE_SECONDS = 20.0

log = logging.getLogger("ncp.worker")


class Hearing:
    """Asked at every look of the reaper. Looks are counted, not seconds: none happens while Redis is away."""

    def __init__(self, configuration: Configuration, pause_seconds: float) -> None:
        self._children = configuration.workers
        self._patience = max(PATIENCE_SECONDS, 2 * configuration.lease_seconds) / pause_seconds
        self._taken = 0
        self._missed = 0

    def is_lost(self, calls_waiting: int) -> bool:
        """Calls have waited for too long, look after look, while a child was idle."""
        taken, busy = celery_state.all_total_count[0], len(celery_state.reserved_requests)
        deaf = calls_waiting > 0 and busy < self._children and taken == self._taken
        self._missed, self._taken = (self._missed + 1 if deaf else 0), taken
        return self._missed > self._patience


def end_to_be_replaced(stop_seconds: float) -> None:
    """As a deploy would: running jobs are handed back. If even that hangs, at once. Then another is started."""
    log.error("this worker does not hear its calls any more, it ends to be started again")
    insist = threading.Timer(stop_seconds, os._exit, [1])
    insist.daemon = True
    insist.start()
    os.kill(os.getpid(), signal.SIGTERM)

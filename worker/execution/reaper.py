"""The reaper: the worker's heartbeat, expired leases, lost wake-ups, a stalled consumer."""

import logging
import os
import signal
import threading
import time

import celery.worker.state as celery_state

from sparse_ncp.worker.broker import pending_wakeups, wake_worker
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import StoreFull, StoreUnavailable, Unavailable
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.records.claims import ExecutionRecords
from sparse_ncp.worker.store.local import open_store

log = logging.getLogger("ncp.worker")


class StalledConsumerCheck:
    """Finds out that Celery takes no messages any more. Rounds are counted, not seconds: none passes without Redis."""

    def __init__(self, configuration: Configuration, pause_seconds: float) -> None:
        self._children = configuration.workers
        self._patience = max(configuration.stalled_seconds, 2 * configuration.lease_seconds) / pause_seconds
        self._taken = 0
        self._missed = 0

    def is_stalled(self, pending_wakeups: int) -> bool:
        """Whether messages have waited for too many rounds while a child was idle. Asked in every round."""
        taken, busy = celery_state.all_total_count[0], len(celery_state.reserved_requests)
        idle = pending_wakeups > 0 and busy < self._children and taken == self._taken
        self._missed, self._taken = (self._missed + 1 if idle else 0), taken
        return self._missed > self._patience


def restart_worker(stop_seconds: float) -> None:
    """End this worker as a deployment would, so that another is started. If even that hangs, end it at once."""
    log.error("this worker receives no messages any more, it ends to be started again")
    exit_timer = threading.Timer(stop_seconds, os._exit, [1])
    exit_timer.daemon = True
    exit_timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


class Reaper(threading.Thread):
    """Acts every third of a lease. At its start and after an outage it takes no job back for a full lease.

    The living renew first, by whatever clock Redis has now: it may have been set while nobody looked.
    """

    def __init__(self, configuration: Configuration, worker: str) -> None:
        super().__init__(name="reaper", daemon=True)
        self._configuration = configuration
        self._worker = worker
        self._records = ExecutionRecords.of(configuration)
        store = open_store(configuration)
        self._jobs = JobOperations(self._records, store, configuration)
        self._tensors = TensorOperations(self._records, store)
        self._ended = threading.Event()
        self._lease = configuration.lease_seconds
        self._pause = min(self._lease / 3, configuration.reaper_seconds)
        self._consumer = StalledConsumerCheck(configuration, self._pause)
        # By our clock, which never steps; by that of Redis; and which Redis that was.
        self._last_round: tuple[float, float, str] | None = None
        self._quiet_until = 0.0

    def run(self) -> None:
        while True:
            try:
                self.reap()
            except (Unavailable, StoreFull, StoreUnavailable) as error:
                log.warning("the reaper was held up: %s", error)
            except Exception:
                # The border of the thread: a worker whose reaper is dead would seem dead to all others.
                log.exception("the reaper failed, it tries again")
            if self._ended.wait(self._pause):
                return

    def end(self) -> None:
        """Return once the thread has ended and the worker is no longer counted."""
        self._ended.set()
        if self.is_alive():
            self.join()
        try:
            self._records.leases.remove(self._worker)
        except Unavailable:
            log.info("Redis is away: the worker's heartbeat will expire by itself")

    def reap(self) -> None:
        """Do one round of everything that the reaper looks after."""
        leases = self._records.leases
        now = leases.heartbeat(self._worker)
        self._check_for_outage(now / 1000, leases.redis_run_id())
        if time.monotonic() >= self._quiet_until:
            for job_id in leases.reap(until=now):
                log.warning("job %s: its worker fell silent, the job goes back to the queue", job_id)
        pending = pending_wakeups(self._configuration)
        if self._consumer.is_stalled(pending):
            self._ended.set()
            restart_worker(self._configuration.stop_seconds)
        if not pending:
            self._repeat_lost_wakeups()
        self._jobs.settle_all()
        self._tensors.remove_abandoned_uploads()

    def _check_for_outage(self, redis_time: float, run_id: str) -> None:
        """Wait for a lease after a long gap: Redis was away, the machine slept, or the clock of Redis was set forward.

        Nobody could renew meanwhile, or all leases seem to have run out at once.
        """
        now = time.monotonic()
        before, redis_before, seen = self._last_round or (now, redis_time, "")
        if run_id != seen or max(now - before, redis_time - redis_before) > self._pause + self._lease / 3:
            self._quiet_until = now + self._lease
        self._last_round = now, redis_time, run_id

    def _repeat_lost_wakeups(self) -> None:
        """Send wake-ups for queued jobs, while none is pending: busy workers claim again when they are done."""
        for _ in range(min(self._records.jobs.count_queued(), self._configuration.workers)):
            wake_worker(self._configuration)

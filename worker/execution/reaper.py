"""The reaper thread: the worker's heartbeat, expired leases, lost wake-up messages, a stalled consumer."""

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
    """Detect that Celery no longer receives messages. It counts rounds, not seconds: without Redis there are none."""

    def __init__(self, configuration: Configuration, pause_seconds: float) -> None:
        self._children = configuration.workers
        self._patience = max(configuration.stalled_seconds, 2 * configuration.lease_seconds) / pause_seconds
        self._taken = 0
        self._missed = 0

    def is_stalled(self, pending_wakeups: int) -> bool:
        """Return whether messages have waited for too many rounds while a child was idle. Call it once per round."""
        taken, busy = celery_state.all_total_count[0], len(celery_state.reserved_requests)
        idle = pending_wakeups > 0 and busy < self._children and taken == self._taken
        self._missed, self._taken = (self._missed + 1 if idle else 0), taken
        return self._missed > self._patience


def restart_worker(stop_seconds: float) -> None:
    """Stop this worker by SIGTERM, so that a new one is started. If that takes too long, exit at once."""
    log.error("this worker no longer receives messages and stops, to be restarted")
    exit_timer = threading.Timer(stop_seconds, os._exit, [1])
    exit_timer.daemon = True
    exit_timer.start()
    os.kill(os.getpid(), signal.SIGTERM)


class Reaper(threading.Thread):
    """Return jobs of dead workers to the queue, and repeat lost wake-up messages, several times per lease.

    For a full lease after its start or an outage it takes no job back, so that live workers can renew theirs first.
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
        # Monotonic time, time of Redis, and run id of Redis.
        self._last_round: tuple[float, float, str] | None = None
        self._quiet_until = 0.0

    def run(self) -> None:
        while True:
            try:
                self.reap()
            except (Unavailable, StoreFull, StoreUnavailable) as error:
                log.warning("the reaper could not finish a round: %s", error)
            except Exception:
                # Without its reaper, the worker would seem dead to all others.
                log.exception("a round of the reaper failed")
            if self._ended.wait(self._pause):
                return

    def end(self) -> None:
        """Stop the thread, and remove the worker from the list of live ones."""
        self._ended.set()
        if self.is_alive():
            self.join()
        try:
            self._records.leases.remove(self._worker)
        except Unavailable:
            log.info("Redis is unavailable: the heartbeat of the worker will expire")

    def reap(self) -> None:
        """Run one round."""
        leases = self._records.leases
        now = leases.heartbeat(self._worker, self._configuration.workers)
        self._check_for_outage(now / 1000, leases.redis_run_id())
        if time.monotonic() >= self._quiet_until:
            for job_id in leases.reap(until=now):
                log.warning("job %s: its worker sends no heartbeat, the job goes back to the queue", job_id)
        pending = pending_wakeups(self._configuration)
        if self._consumer.is_stalled(pending):
            self._ended.set()
            restart_worker(self._configuration.stop_seconds)
        if not pending:
            # Perhaps they were lost. Busy workers claim the next job by themselves.
            for _ in range(min(self._records.jobs.count_queued(), self._configuration.workers)):
                wake_worker(self._configuration)
        self._jobs.settle_all()
        self._jobs.collect_long_streams()
        self._tensors.remove_abandoned_uploads()

    def _check_for_outage(self, redis_time: float, run_id: str) -> None:
        """After a gap, take no jobs back for a full lease, since live workers could not renew theirs either.

        Gaps are outages of Redis, sleep of the machine, and forward steps of Redis's clock.
        """
        now = time.monotonic()
        before, redis_before, seen = self._last_round or (now, redis_time, "")
        if run_id != seen or max(now - before, redis_time - redis_before) > self._pause + self._lease / 3:
            self._quiet_until = now + self._lease
        self._last_round = now, redis_time, run_id

"""The worker's conscience: says that it lives, takes back what the dead left, repeats calls that were lost."""

import logging
import threading
import time

from kombu.exceptions import OperationalError

from worker.configuration import Configuration
from worker.errors import StoreFull, Unavailable
from worker.hearing import Hearing, end_to_be_replaced
from worker.records import Records
from worker.store import Store
from worker.wake import calls_waiting, wake

log = logging.getLogger("ncp.worker")


class Reaper(threading.Thread):
    """Looks every third of a lease. After an outage it lets a full lease pass: the living renew first."""

    def __init__(self, configuration: Configuration, worker: str) -> None:
        super().__init__(name="reaper", daemon=True)
        self._configuration = configuration
        self._worker = worker
        self._records = Records.of(configuration)
        self._store = Store(configuration.data)
        self._ended = threading.Event()
        self._lease = configuration.lease_seconds
        self._pause = min(self._lease / 3, 5.0)
        self._hearing = Hearing(configuration, self._pause)
        self._last_seen = time.time()
        self._quiet_until = 0.0

    def run(self) -> None:
        while True:
            try:
                self.look()
            except (Unavailable, OperationalError, StoreFull) as error:
                log.warning("looking after the queue was put off: %s", error)
            except Exception:
                # The border of the thread: a worker whose reaper is dead would seem dead to all others.
                log.exception("looking after the queue failed, it is tried again")
            if self._ended.wait(self._pause):
                return

    def end(self) -> None:
        self._ended.set()
        if self.is_alive():
            self.join()
        try:
            self._records.gone(self._worker)
        except Unavailable:
            log.info("Redis is away: the worker's mark will fade by itself")

    def look(self) -> None:
        """One round."""
        now = self._records.tick(self._worker)
        self._notice_outage()
        if self._is_calm():
            for job_id in self._records.reap(until=now):
                log.warning("job %s: its worker fell silent, the job was taken back", job_id)
        calls = calls_waiting(self._configuration)
        if self._hearing.is_lost(calls):
            self._ended.set()
            end_to_be_replaced(self._configuration.stop_seconds)
        if not calls:
            self._repeat_lost_calls()
        for job_id in self._records.unsettled():
            self._records.settle(job_id)
        self._store.remove_abandoned_uploads(self._records.content_unused)

    def _notice_outage(self) -> None:
        """A long gap since the last round: Redis was away, or the machine slept. Leases ran out while nobody looked."""
        now = time.time()
        if now - self._last_seen > self._pause + self._lease / 3:
            self._quiet_until = now + self._lease
        self._last_seen = now

    def _is_calm(self) -> bool:
        return time.time() >= self._quiet_until and self._records.uptime_seconds() > self._lease + 1

    def _repeat_lost_calls(self) -> None:
        """Only while no call is waiting: workers that are busy look again when they are done."""
        for _ in range(min(self._records.count_queued(), self._configuration.workers)):
            wake(self._configuration)

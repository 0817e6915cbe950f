"""Sinks for the progress of an attempt: published live by a thread, or kept until the end of a short run."""

import logging
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Protocol

from sparse_ncp.solvers.runtime import Resolved
from sparse_ncp.worker.contract import Claim, Preparation, Progress
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.execution.heartbeat import Heartbeat
from sparse_ncp.worker.records.claims import ClaimRecords
from sparse_ncp.worker.store.store import Store

# The most iterations that are published at once.
BATCH_ROWS = 500
# The progress of a preparation is published at this interval. Most preparations are shorter and never appear.
PREPARATION_SECONDS = 0.5
# A run of a batch that takes longer than this publishes its iterations like any other run.
LIVE_AFTER_SECONDS = 0.5
log = logging.getLogger("ncp.job")


class ProgressSink(Protocol):
    """Receiver of the progress of one attempt."""

    def publish_preparation(self, preparation: Preparation | None) -> None:
        """Publish how far the first sweep is prepared; None once the preparation has ended."""

    def put(self, row: Progress) -> None:
        """Accept the next iteration."""

    def publish_resolved(self, resolved: Resolved) -> None:
        """Publish the settings that depended on the method or on the tensor."""

    def publish_diagnosing(self) -> None:
        """Publish that only the diagnosis is left."""

    def save_checkpoint(self, name: str, iteration: int) -> bool:
        """Point the job's record to a stored checkpoint; return False if the claim was lost."""


class LiveSink:
    """Publish progress from a thread, in batches, until the context ends or the claim is lost."""

    def __init__(self, claims: ClaimRecords, claim: Claim, heartbeat: Heartbeat, pause_seconds: float = 0.1) -> None:
        self._pause_seconds = pause_seconds
        self._claims = claims
        self._claim = claim
        self._heartbeat = heartbeat
        self._rows: deque[Progress] = deque()
        self._preparing: Preparation | None = None
        self._published_preparation: Preparation | None = None
        self._publish_from = time.monotonic() + PREPARATION_SECONDS
        self._sending = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> "LiveSink":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def publish_preparation(self, preparation: Preparation | None) -> None:
        """Leave the preparation for the thread, which publishes it at intervals."""
        self._preparing = preparation

    def put(self, row: Progress) -> None:
        """Leave the iteration for the thread, at no cost to the solver."""
        self._rows.append(row)

    def publish_resolved(self, resolved: Resolved) -> None:
        """Publish the resolved settings; without Redis the next attempt does, and the result has them anyway."""
        try:
            self._claims.publish_resolved(self._claim, resolved)
        except Unavailable as error:
            log.warning("job %s: could not publish the resolved settings: %s", self._claim.job_id, error)

    def publish_diagnosing(self) -> None:
        """Publish the phase; without Redis it stays that of the last sweep."""
        try:
            self._claims.publish_diagnosing(self._claim)
        except Unavailable as error:
            log.warning("job %s: could not publish the phase: %s", self._claim.job_id, error)

    def save_checkpoint(self, name: str, iteration: int) -> bool:
        return self._claims.save_checkpoint(self._claim, name, iteration)

    def flush(self) -> None:
        """Publish everything that is left, now."""
        with self._sending:
            self._send_preparation()
            while self._rows and not self._heartbeat.lost:
                self._send()

    def _run(self) -> None:
        while not self._done.wait(self._pause_seconds) and not self._heartbeat.lost:
            with self._sending:
                try:
                    self._send_preparation()
                    self._send()
                    while len(self._rows) > BATCH_ROWS and not self._heartbeat.lost:
                        self._send()
                except Unavailable:
                    # The rows stay; the heartbeat logs that Redis is unavailable.
                    continue

    def _send_preparation(self) -> None:
        """Publish a change of the preparation, at intervals; its end at once."""
        now, preparing = time.monotonic(), self._preparing
        if preparing == self._published_preparation or (preparing is not None and now < self._publish_from):
            return
        if not self._heartbeat.lost:
            self._claims.publish_preparation(self._claim, preparing)
            self._published_preparation, self._publish_from = preparing, now + PREPARATION_SECONDS

    def _send(self) -> None:
        """Send one batch. An empty one still finds out about a cancellation; one that is sent twice counts once."""
        batch = [self._rows[index] for index in range(min(len(self._rows), BATCH_ROWS))]
        self._heartbeat.apply(self._claims.publish(self._claim, batch))
        for _ in batch:
            self._rows.popleft()


class BatchSink:
    """Keep the iterations of a short run, which ends together with others.

    A run that takes longer than expected is published live, apart from its latest iterations.

    Attributes
    ----------
    rows : list of Progress
        All iterations of this attempt.
    resolved : Resolved or None
        The resolved settings, once the first sweep has ended.
    """

    def __init__(
        self, claims: ClaimRecords, claim: Claim, heartbeat: Heartbeat, store: Store, pause_seconds: float = 0.1
    ) -> None:
        self._pause_seconds = pause_seconds
        self.rows: list[Progress] = []
        self.resolved: Resolved | None = None
        self._claims = claims
        self._claim = claim
        self._heartbeat = heartbeat
        self._store = store
        self._sent = 0
        self._due = time.monotonic() + LIVE_AFTER_SECONDS

    def publish_preparation(self, preparation: Preparation | None) -> None:
        """Ignore the preparation: it is over before anyone could see it."""

    def put(self, row: Progress) -> None:
        """Keep the iteration; if the run takes long, publish those before it."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._pause_seconds
            with suppress(Unavailable):  # they are sent with the next
                self.publish()
        self.rows.append(row)

    def publish_resolved(self, resolved: Resolved) -> None:
        """Keep the resolved settings, which are stored with the result."""
        self.resolved = resolved

    def publish_diagnosing(self) -> None:
        """Ignore the phase of a short run."""

    def save_checkpoint(self, name: str, iteration: int) -> bool:
        """Flush the deferred files first: a record must not point to a file that a power failure would lose."""
        self._store.flush()
        return self._claims.save_checkpoint(self._claim, name, iteration)

    def publish(self) -> None:
        """Publish all iterations so far."""
        while self._sent < len(self.rows) and not self._heartbeat.lost:
            batch = self.rows[self._sent : self._sent + BATCH_ROWS]
            self._heartbeat.apply(self._claims.publish(self._claim, batch))
            self._sent += len(batch)

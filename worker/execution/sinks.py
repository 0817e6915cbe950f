"""Progress of a running job: its iterations are published in batches, by a thread of their own; before the first, how
far it is being prepared."""

import threading
import time
from collections import deque

from sparse_ncp.worker.contract import Claim, Preparation, Progress
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.execution.heartbeat import Heartbeat
from sparse_ncp.worker.records.claims import ClaimRecords

BATCH_SECONDS = 0.1
BATCH_ROWS = 500
# How often a preparation is told of, the first time after so long: most take less.
PREPARATION_SECONDS = 0.5


class LiveSink:
    """Publishes what the solver puts in, in a thread, until the context ends or the claim is lost."""

    def __init__(self, claims: ClaimRecords, claim: Claim, heartbeat: Heartbeat) -> None:
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

    def prepare(self, preparation: Preparation | None) -> None:
        """How far the first sweep is being prepared, which the thread tells now and then; None once it has ended."""
        self._preparing = preparation

    def put(self, row: Progress) -> None:
        """Add a row, which the thread will send: this costs the solver nothing."""
        self._rows.append(row)

    def flush(self) -> None:
        """Send what is left, now."""
        with self._sending:
            self._publish_preparation()
            while self._rows and not self._heartbeat.lost:
                self._send()

    def _run(self) -> None:
        while not self._done.wait(BATCH_SECONDS) and not self._heartbeat.lost:
            with self._sending:
                try:
                    self._publish_preparation()
                    self._send()
                    while len(self._rows) > BATCH_ROWS and not self._heartbeat.lost:
                        self._send()
                except Unavailable:
                    # The rows stay; the heartbeat logs that Redis is away.
                    continue

    def _publish_preparation(self) -> None:
        """Tell what has changed, but not too often; that it is over, at once."""
        now, preparing = time.monotonic(), self._preparing
        if preparing == self._published_preparation or (preparing is not None and now < self._publish_from):
            return
        if not self._heartbeat.lost:
            self._claims.publish_preparation(self._claim, preparing)
            self._published_preparation, self._publish_from = preparing, now + PREPARATION_SECONDS

    def _send(self) -> None:
        """Send one batch. An empty one still finds out whether the owner cancelled; one sent twice counts once."""
        batch = [self._rows[place] for place in range(min(len(self._rows), BATCH_ROWS))]
        self._heartbeat.apply(self._claims.publish(self._claim, batch))
        for _ in batch:
            self._rows.popleft()

"""Progress of a running job: its iterations are published in batches, by a thread of their own."""

import threading
from collections import deque

from worker.contract import Claim, Progress
from worker.errors import Unavailable
from worker.execution.heartbeat import Heartbeat
from worker.records.claims import ClaimRecords

BATCH_SECONDS = 0.1
BATCH_ROWS = 500


class ProgressPublisher:
    """Publishes what the solver puts in, in a thread, until the context ends or the claim is lost."""

    def __init__(self, claims: ClaimRecords, claim: Claim, heartbeat: Heartbeat) -> None:
        self._claims = claims
        self._claim = claim
        self._heartbeat = heartbeat
        self._rows: deque[Progress] = deque()
        self._sending = threading.Lock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> "ProgressPublisher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def put(self, row: Progress) -> None:
        """Add a row, which the thread will send: this costs the solver nothing."""
        self._rows.append(row)

    def flush(self) -> None:
        """Send what is left, now."""
        with self._sending:
            while self._rows and not self._heartbeat.lost:
                self._send()

    def _run(self) -> None:
        while not self._done.wait(BATCH_SECONDS) and not self._heartbeat.lost:
            with self._sending:
                try:
                    self._send()
                    while len(self._rows) > BATCH_ROWS and not self._heartbeat.lost:
                        self._send()
                except Unavailable:
                    # The rows stay; the heartbeat logs that Redis is away.
                    continue

    def _send(self) -> None:
        """Send one batch. An empty one still finds out whether the owner cancelled; one sent twice counts once."""
        batch = [self._rows[place] for place in range(min(len(self._rows), BATCH_ROWS))]
        self._heartbeat.apply(self._claims.publish(self._claim, batch))
        for _ in batch:
            self._rows.popleft()

"""Two threads beside the solver: one keeps the lease, one tells readers how far the run is."""

import logging
import threading
import time
from collections import deque

from worker.claim_records import Standing
from worker.configuration import Configuration
from worker.contract import Claim, Progress
from worker.errors import Unavailable
from worker.records import Records

BATCH_SECONDS = 0.1
BATCH_ROWS = 500
RETRY_SECONDS = 0.5

log = logging.getLogger("ncp.job")


class Spent:
    """The computing time of all attempts, as it can be told from beside the solver: a sweep may take an hour."""

    def __init__(self, seconds: float) -> None:
        self._mark: tuple[float, float | None] = seconds, None

    def reach(self, seconds: float) -> None:
        """The solver's clock says so now, and goes on."""
        self._mark = seconds, time.monotonic()

    def rest(self) -> None:
        """Nothing more is computed."""
        self._mark = self._mark[0], None

    def now(self) -> float:
        seconds, since = self._mark
        return seconds if since is None else seconds + time.monotonic() - since


class Watch:
    """`lost`: the claim is no longer ours. `cancel`: the owner wants the run to end. Asked after every sweep."""

    def __init__(self, records: Records, claim: Claim, configuration: Configuration) -> None:
        self._records = records
        self._claim = claim
        self._rows: deque[Progress] = deque()
        self._sending = threading.Lock()
        self._done = threading.Event()
        self._renewal_seconds = configuration.lease_seconds / 3
        self.spent = Spent(claim.spent_seconds)
        self.lost = False
        self.cancel = False

    def __enter__(self) -> "Watch":
        self._threads = [
            threading.Thread(target=self._keep_lease, name="lease", daemon=True),
            threading.Thread(target=self._keep_publishing, name="progress", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def put(self, row: Progress) -> None:
        """Costs the solver nothing: the row is sent by another thread."""
        self._rows.append(row)

    def flush(self) -> None:
        """Send what is left, now."""
        with self._sending:
            while self._rows and not self.lost:
                self._send()

    def _keep_lease(self) -> None:
        pause = self._renewal_seconds
        try:
            while not self._done.wait(pause) and not self.lost:
                pause = self._renewal_seconds if self._renewed() else min(RETRY_SECONDS, self._renewal_seconds)
        finally:
            self.lost = self.lost or not self._done.is_set()

    def _renewed(self) -> bool:
        try:
            self._heed(self._records.renew(self._claim, self.spent.now()))
        except Unavailable as error:
            log.warning("job %s: the lease could not be renewed: %s", self._claim.job_id, error)
            return False
        return True

    def _keep_publishing(self) -> None:
        while not self._done.wait(BATCH_SECONDS) and not self.lost:
            with self._sending:
                try:
                    self._send()
                    while len(self._rows) > BATCH_ROWS and not self.lost:
                        self._send()
                except Unavailable:
                    # The rows stay; the other thread says in the log that Redis is away.
                    continue

    def _send(self) -> None:
        """One batch, which may be empty: the answer still says whether the owner cancelled. Sent twice, it is one."""
        batch = [self._rows[place] for place in range(min(len(self._rows), BATCH_ROWS))]
        self._heed(self._records.publish(self._claim, batch))
        for _ in batch:
            self._rows.popleft()

    def _heed(self, standing: Standing) -> None:
        self.lost = self.lost or standing == "lost"
        self.cancel = self.cancel or standing == "cancel"

"""The heartbeat of a running job, a thread that renews its lease, and the clock of its computing time."""

import logging
import threading
import time

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.records.claims import ClaimRecords, LeaseStatus

log = logging.getLogger("ncp.job")


class ComputeClock:
    """Computing time of all attempts, readable at any time during a sweep."""

    def __init__(self, seconds: float) -> None:
        self._mark: tuple[float, float | None] = seconds, None

    def run_from(self, seconds: float) -> None:
        """Start the clock at the computing time so far."""
        self._mark = seconds, time.monotonic()

    def stop(self) -> None:
        """Stop the clock at its last mark."""
        self._mark = self._mark[0], None

    def now(self) -> float:
        """Return the computing time in seconds."""
        seconds, since = self._mark
        return seconds if since is None else seconds + time.monotonic() - since


class Heartbeat:
    """A context in which a thread renews the lease of a claim.

    Attributes
    ----------
    lost : bool
        The claim is no longer held, so the attempt must stop.
    cancel_requested : bool
        The owner has cancelled the job.
    quota_reached : bool
        The history of the job has passed the quota of its owner.
    is_paused : bool
        The operator has paused the owner, so the attempt must stop now.
    resume_seconds : float or None
        What it costs to hand the job back and resume it, which decides how long its turns are; None while this attempt
        has no new sweep to hand back, so that it does not give way before.
    """

    def __init__(self, claims: ClaimRecords, claim: Claim, configuration: Configuration) -> None:
        self._claims = claims
        self._claim = claim
        self._retry_seconds = configuration.redis_retry_seconds
        self._pause = pause_seconds(configuration)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.compute_clock = ComputeClock(claim.spent_seconds)
        self.lost = False
        self.cancel_requested = False
        self.quota_reached = False
        self.is_paused = False
        self.resume_seconds: float | None = None
        self._should_yield = False

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def apply(self, status: LeaseStatus) -> None:
        """Update the attributes from the status of the claim."""
        self.lost = self.lost or status == "lost"
        self.cancel_requested = self.cancel_requested or status == "cancel_requested"
        self.quota_reached = self.quota_reached or status == "full"

    def _run(self) -> None:
        pause = self._pause
        try:
            while not self._done.wait(pause) and not self.lost:
                pause = self._pause if self.renew() else min(self._retry_seconds, self._pause)
        finally:  # a run whose lease is not renewed must end
            self.lost = self.lost or not self._done.is_set()

    def renew(self) -> bool:
        """Renew the lease now; return False if Redis is unavailable."""
        try:
            status = self._claims.renew(self._claim, self.compute_clock.now(), self.resume_seconds)
        except Unavailable as error:
            log.warning("job %s: could not renew the lease: %s", self._claim.job_id, error)
            return False
        self.apply(status)
        self.is_paused, self._should_yield = status == "paused", status == "yield"
        return True

    def should_yield(self) -> bool:
        """Return whether the job should give way, after another renewal: the others may have been served since."""
        return self._should_yield and self.renew() and self._should_yield

    def decline_to_yield(self) -> None:
        """Continue until the next heartbeat, because the state cannot be saved now."""
        self._should_yield = False


def pause_seconds(configuration: Configuration) -> float:
    """Return the time between two heartbeats, of which a lease has three and a turn four."""
    return min(configuration.lease_seconds / 3, configuration.turn_seconds / 4)

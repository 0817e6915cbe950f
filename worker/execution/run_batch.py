"""What a process does that many tiny runs of a study share: claim some, run them, store and end them together."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sparse_ncp.solvers.runtime import Resolved, single_threaded_blas
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, Event, JobError, Progress
from sparse_ncp.worker.errors import StoreFull, Unavailable
from sparse_ncp.worker.execution.attempt import Attempt, Ended
from sparse_ncp.worker.execution.heartbeat import Heartbeat
from sparse_ncp.worker.execution.run_job import (
    discard_late_files,
    exit_after_grace_period,
    grace_seconds,
    handle_stop,
    outcome_of,
    report_outcome,
    retry_redis,
)
from sparse_ncp.worker.execution.sinks import BATCH_ROWS, BATCH_SECONDS, LiveSink
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.records.claims import ClaimRecords, EndedRun, ExecutionRecords
from sparse_ncp.worker.records.redis.connection import RedisConnection
from sparse_ncp.worker.store.files import is_storage_failure
from sparse_ncp.worker.store.local import open_store
from sparse_ncp.worker.store.store import Store

Answer = TypeVar("Answer")
# The first runs tell how long one takes; then so many are claimed that they take about this time. So long others wait.
FIRST_RUNS, MAX_RUNS, MIN_BATCH_SECONDS = 8, 200, 1.0
COMPUTING_PER_STORING, MAX_BATCH_SECONDS = 4, 5.0
# A run that takes longer is watched like any other: its iterations are published.
LIVE_AFTER_SECONDS = 0.5
# How often the record of the present run is looked at for a cancel.
CANCEL_POLL_SECONDS = 0.2
log = logging.getLogger("ncp.job")


def run_batch(first: Claim, configuration: Configuration) -> None:
    """Run tiny runs of one study until none is left, another owner waits, or the worker stops."""
    stop = handle_stop()
    batch = Batch(first, configuration, stop)
    hand_back = batch.hand_back_all
    with (
        single_threaded_blas(),  # once for all: to set it in every sweep takes a tenth of a tiny one
        batch.heartbeat,
        exit_after_grace_period(hand_back, first.job_id, stop, grace_seconds(configuration)),
    ):
        claims = [first, *batch.claim(FIRST_RUNS - 1)]
        while claims:
            computing, storing = batch.run(claims)
            claims = [] if stop.is_set() else batch.claim(_next_count(len(claims), computing, storing))


def _next_count(count: int, computing: float, storing: float) -> int:
    """Runs for about a second of computing; for longer where storing them takes long, so that it stays a small part."""
    seconds = min(MAX_BATCH_SECONDS, max(MIN_BATCH_SECONDS, COMPUTING_PER_STORING * storing))
    return min(MAX_RUNS, max(1, round(count * seconds / max(computing, 1e-3))))


class BatchHeartbeat:
    """Renews the leases of all claims that are held, and looks whether the present one was cancelled, in a thread."""

    def __init__(self, claims: ClaimRecords, lease_seconds: float) -> None:
        self._claims = claims
        self._lease_seconds = lease_seconds
        self._held: dict[str, Heartbeat] = {}
        self._current: Claim | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "BatchHeartbeat":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def hold(self, claims: Sequence[Claim]) -> None:
        self._held = {claim.job_id: Heartbeat(self._claims, claim, self._lease_seconds) for claim in claims}

    def begin(self, claim: Claim) -> Heartbeat:
        self._current = claim
        return self._held[claim.job_id]

    def release(self, claim: Claim) -> None:
        held = dict(self._held)
        held.pop(claim.job_id, None)
        self._held = held  # the thread may be going through the other

    def _run(self) -> None:
        renewed = time.monotonic()
        while not self._done.wait(CANCEL_POLL_SECONDS):
            try:
                current = self._current
                if current is not None and current.job_id in self._held:
                    self._held[current.job_id].apply(self._claims.status_of_run(current))
                if time.monotonic() - renewed >= self._lease_seconds / 3:
                    renewed = time.monotonic()
                    for heartbeat in self._held.values():
                        heartbeat.renew()
            except (Unavailable, KeyError):  # Redis is away, or the run was released just now
                continue


class BatchClaims(ClaimRecords):
    """The claims of one batch: what need not be told at once is kept until the run ends."""

    def __init__(self, connection: RedisConnection, store: Store) -> None:
        super().__init__(connection)
        self._store = store
        self.last_resolved: Resolved | None = None

    def publish_resolved(self, claim: Claim, resolved: Resolved) -> bool:
        self.last_resolved = resolved
        return True

    def publish_diagnosing(self, claim: Claim) -> bool:
        return True

    def save_checkpoint(self, claim: Claim, name: str, iteration: int) -> bool:
        self._store.flush()
        return super().save_checkpoint(claim, name, iteration)


class BatchProgress(LiveSink):
    """The iterations of one run. Those of one that takes long are published, all but the last so far."""

    def __init__(self, claims: ClaimRecords, claim: Claim, heartbeat: Heartbeat) -> None:
        super().__init__(claims, claim, heartbeat)
        self.rows: list[Progress] = []
        self._sent = 0
        self._due = time.monotonic() + LIVE_AFTER_SECONDS

    def put(self, row: Progress) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + BATCH_SECONDS
            with suppress(Unavailable):  # they are sent with the next
                self.publish()
        self.rows.append(row)

    def publish(self) -> None:
        """Send what was put so far."""
        while self._sent < len(self.rows) and not self._heartbeat.lost:
            part = self.rows[self._sent : self._sent + BATCH_ROWS]
            self._heartbeat.apply(self._claims.publish(self._claim, part))
            self._sent += len(part)


class Batch:
    def __init__(self, first: Claim, configuration: Configuration, stop: threading.Event) -> None:
        self._first = first
        self._configuration = configuration
        self._stop = stop
        self._records = ExecutionRecords.of(configuration)
        store = open_store(configuration)
        self._store = store.deferred()
        self._jobs = JobOperations(self._records, store, configuration)
        self._claims = BatchClaims(RedisConnection.of(configuration), self._store)
        self._held: list[Claim] = [first]
        self.heartbeat = BatchHeartbeat(self._records.claims, configuration.lease_seconds)

    def claim(self, count: int) -> list[Claim]:
        return self._retry_redis(lambda: self._claims.claim_more(self._first, count))

    def hand_back_all(self) -> None:
        for claim in self._held:
            report_outcome(self._claims, self._jobs, claim, None)

    def run(self, claims: Sequence[Claim]) -> tuple[float, float]:
        """Run them one after another; those that succeed end together. Gives the seconds of computing, of storing."""
        started = time.monotonic()
        self._held = list(claims)
        self.heartbeat.hold(claims)
        ended: list[tuple[Claim, Ended, Resolved, list[Progress]]] = []
        for claim in claims:
            if self._stop.is_set():
                break
            heartbeat = self.heartbeat.begin(claim)
            self._claims.last_resolved = None
            progress = BatchProgress(self._claims, claim, heartbeat)
            attempt = Attempt(
                claim, self._claims, self._store, self._configuration, heartbeat, progress, self._stop.is_set
            )
            outcome, resolved = outcome_of(attempt), self._claims.last_resolved
            if isinstance(outcome, Ended) and not outcome.cancelled and resolved is not None and progress.rows:
                ended.append((claim, outcome, resolved, progress.rows))
            else:
                self._report(claim, outcome, progress, heartbeat)
        computed = time.monotonic()
        try:
            self._end(ended)
        except OSError as error:
            if not isinstance(error, StoreFull) and not is_storage_failure(error):
                raise
            log.warning("%d runs go back to the queue: %s", len(ended), error)
        for claim in [*self._held]:
            self._retry_redis(partial(report_outcome, self._claims, self._jobs, claim, None))
            self._release(claim)
        return computed - started, time.monotonic() - computed

    def _report(
        self, claim: Claim, outcome: Ended | JobError | None, progress: BatchProgress, heartbeat: Heartbeat
    ) -> None:
        """A run that did not succeed, or has to go on elsewhere, like any other job."""
        self._retry_redis(progress.publish)
        if heartbeat.lost:
            self._retry_redis(lambda: discard_late_files(self._jobs, claim.job_id))
        else:
            self._store.flush()
            self._retry_redis(lambda: report_outcome(self._claims, self._jobs, claim, outcome))
        self._release(claim)

    def _end(self, ended: Sequence[tuple[Claim, Ended, Resolved, list[Progress]]]) -> None:
        """Store the histories, flush everything once, and end all runs in one step."""
        if not ended:
            return
        ids = [claim.job_id for claim, *_ in ended]
        changes = self._retry_redis(lambda: self._records.events.changes_of(ids))
        runs = []
        for (claim, outcome, resolved, rows), before in zip(ended, changes, strict=True):
            if outcome.result is None or outcome.measures is None:
                raise RuntimeError("a run ended without a result")
            files = self._store.job(claim.job_id)
            last = rows[-1]
            files.save_history(self._all_rows(claim, rows), [*before, *_last_changes(claim, last)])
            runs.append(EndedRun(claim, outcome.result, outcome.measures, resolved, last, files.nbytes()))
        self._store.flush()
        answers = self._retry_redis(lambda: self._claims.finish_many(runs))
        log.info("study %s: %d runs ended", self._first.study_id, sum(answers))
        for run, is_ended in zip(runs, answers, strict=True):
            if not is_ended:
                self._retry_redis(partial(discard_late_files, self._jobs, run.claim.job_id))
            self._release(run.claim)

    def _all_rows(self, claim: Claim, rows: list[Progress]) -> list[Progress]:
        """With those that an attempt before this one has published."""
        missing = rows[0].iteration - 1
        return [*self._records.events.history(claim.job_id, 0, missing), *rows] if missing else rows

    def _release(self, claim: Claim) -> None:
        self.heartbeat.release(claim)
        self._held = [held for held in self._held if held is not claim]

    def _retry_redis(self, call: Callable[[], Answer]) -> Answer:
        return retry_redis(call, self._stop)


def _last_changes(claim: Claim, last: Progress) -> list[Event]:
    """The events that the end of a run makes, as the record counts them."""
    state = f'{{"state":"succeeded","attempt":{claim.attempt}}}'
    return [
        Event(id=f"{last.iteration}-1", kind="state", payload=state),
        Event(id=f"{last.iteration}-2", kind="end", payload=""),
    ]

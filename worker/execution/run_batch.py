"""The process of many tiny runs of one study: claim some, run them, store and end them together."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from sparse_ncp.solvers.runtime import Resolved, single_threaded_blas
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, Event, JobError, Progress
from sparse_ncp.worker.errors import StoreFull, Unavailable
from sparse_ncp.worker.execution.attempt import Attempt, Ended
from sparse_ncp.worker.execution.heartbeat import Heartbeat, pause_seconds
from sparse_ncp.worker.execution.run_job import (
    discard_late_files,
    exit_after_grace_period,
    grace_seconds,
    handle_stop,
    outcome_of,
    report_outcome,
    retry_redis,
)
from sparse_ncp.worker.execution.sinks import BatchSink
from sparse_ncp.worker.operations.jobs import LIVE_EVENTS, JobOperations
from sparse_ncp.worker.records.claims import ClaimRecords, EndedRun, ExecutionRecords
from sparse_ncp.worker.store.files import is_storage_failure
from sparse_ncp.worker.store.local import open_store

Answer = TypeVar("Answer")
# Runs claimed at first, to measure how long one takes. After that, so many that they take about `batch_seconds`:
# for that long another owner's job may have to wait.
FIRST_RUNS = 8
COMPUTING_PER_STORING, MAX_BATCH_SECONDS = 4, 5.0
# Iterations of a run that is stored with others. The stream of a longer one may have been moved to the store in part.
LONGEST_TOGETHER = LIVE_EVENTS // 2
# How often to check whether the current run was cancelled.
CANCEL_POLL_SECONDS = 0.2
log = logging.getLogger("ncp.job")


def run_batch(first: Claim, configuration: Configuration) -> None:
    """Run tiny runs of one study until none is left, another owner waits, or the worker stops."""
    stop = handle_stop()
    batch = Batch(first, configuration, stop)
    hand_back = batch.hand_back_all
    with (
        single_threaded_blas(),  # once for all runs: setting it in every sweep takes a tenth of a tiny sweep
        batch.heartbeat,
        exit_after_grace_period(hand_back, first.job_id, stop, grace_seconds(configuration)),
    ):
        claims = [first, *batch.claim(min(FIRST_RUNS, configuration.max_batch_runs) - 1)]
        while claims:
            computing, storing = batch.run(claims)
            claims = [] if stop.is_set() else batch.claim_next(len(claims), computing, storing)


class FinishedRun(NamedTuple):
    """A run that has succeeded and is not stored yet."""

    claim: Claim
    outcome: Ended
    resolved: Resolved
    rows: list[Progress]


class BatchHeartbeat:
    """A thread that renews the leases of all claims of a batch, and checks whether the current run was cancelled."""

    def __init__(self, claims: ClaimRecords, configuration: Configuration) -> None:
        self._claims = claims
        self._configuration = configuration
        self._pause_seconds = pause_seconds(configuration)
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
        """Renew the leases of these claims from now on."""
        self._held = {claim.job_id: Heartbeat(self._claims, claim, self._configuration) for claim in claims}

    def begin(self, claim: Claim) -> Heartbeat:
        """Make one of the claims the current one, and return its heartbeat."""
        self._current = claim
        return self._held[claim.job_id]

    def gives_way(self) -> bool:
        """Return whether the runs that have not begun should be handed back."""
        return any(heartbeat.is_paused or heartbeat.should_yield() for heartbeat in self._held.values())

    def release(self, claim: Claim) -> None:
        """Stop renewing the lease of a claim."""
        held = dict(self._held)
        held.pop(claim.job_id, None)
        self._held = held  # a new dictionary: the thread may be iterating over the old one

    def _run(self) -> None:
        renewed = time.monotonic()
        while not self._done.wait(CANCEL_POLL_SECONDS):
            try:
                current = self._current
                if current is not None and current.job_id in self._held:
                    self._held[current.job_id].apply(self._claims.status_of_run(current))
                if time.monotonic() - renewed >= self._pause_seconds:
                    renewed = time.monotonic()
                    for heartbeat in self._held.values():
                        heartbeat.renew()
            except (Unavailable, KeyError):  # Redis is unavailable, or the run was just released
                continue


class Batch:
    """Runs of one study that share a process; those that succeed are stored and ended together."""

    def __init__(self, first: Claim, configuration: Configuration, stop: threading.Event) -> None:
        self._first = first
        self._configuration = configuration
        self._stop = stop
        self._records = ExecutionRecords.of(configuration)
        self._claims = self._records.claims
        store = open_store(configuration)
        self._store = store.deferred()
        self._jobs = JobOperations(self._records, store, configuration)
        self._held: list[Claim] = [first]
        self.heartbeat = BatchHeartbeat(self._claims, configuration)

    def claim(self, count: int) -> list[Claim]:
        """Claim up to `count` further runs of the study."""
        return self._retry_redis(lambda: self._claims.claim_more(self._first, count))

    def claim_next(self, count: int, computing: float, storing: float) -> list[Claim]:
        """Claim as many runs as fit into the time of a batch, after `count` runs that took these seconds.

        Where storing takes long, the batch is longer, so that storing remains a small part of it.
        """
        at_least, at_most = self._configuration.batch_seconds, self._configuration.max_batch_runs
        seconds = min(max(MAX_BATCH_SECONDS, at_least), max(at_least, COMPUTING_PER_STORING * storing))
        return self.claim(min(at_most, max(1, round(count * seconds / max(computing, 1e-3)))))

    def hand_back_all(self) -> None:
        """Return every run that has not ended to the queue."""
        for claim in self._held:
            report_outcome(self._claims, self._jobs, claim, None)

    def run(self, claims: Sequence[Claim]) -> tuple[float, float]:
        """Run the claims one after another, then end those that succeeded together.

        Returns
        -------
        computing, storing : float
            Seconds that each of the two has taken.
        """
        started = time.monotonic()
        self._held = list(claims)
        self.heartbeat.hold(claims)
        ended: list[FinishedRun] = []
        for claim in claims:
            if self._stop.is_set() or self.heartbeat.gives_way():
                break
            heartbeat = self.heartbeat.begin(claim)
            sink = BatchSink(self._claims, claim, heartbeat, self._store, self._configuration.progress_seconds)
            must_stop = partial(self._must_stop, heartbeat)
            outcome = outcome_of(
                Attempt(claim, self._claims, self._store, self._configuration, heartbeat, sink, must_stop)
            )
            is_short = sink.rows and sink.rows[-1].iteration <= LONGEST_TOGETHER
            if isinstance(outcome, Ended) and not outcome.cancelled and sink.resolved is not None and is_short:
                ended.append(FinishedRun(claim, outcome, sink.resolved, sink.rows))
            else:
                self._report(claim, outcome, sink, heartbeat)
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

    def _must_stop(self, heartbeat: Heartbeat) -> bool:
        return self._stop.is_set() or heartbeat.is_paused

    def _report(self, claim: Claim, outcome: Ended | JobError | None, sink: BatchSink, heartbeat: Heartbeat) -> None:
        """Report a run that is long, did not succeed, or needs another process to go on, like any other job."""
        self._retry_redis(sink.publish)
        resolved = sink.resolved
        if resolved is not None:
            self._retry_redis(lambda: self._claims.publish_resolved(claim, resolved))
        if heartbeat.lost:
            self._retry_redis(lambda: discard_late_files(self._jobs, claim.job_id))
        else:
            self._store.flush()
            self._retry_redis(lambda: report_outcome(self._claims, self._jobs, claim, outcome))
        self._release(claim)

    def _end(self, finished: Sequence[FinishedRun]) -> None:
        """Store the histories, flush all files at once, and end all runs in one step."""
        if not finished:
            return
        ids = [run.claim.job_id for run in finished]
        changes = self._retry_redis(lambda: self._records.events.changes_of(ids))
        runs = []
        for (claim, outcome, resolved, rows), before in zip(finished, changes, strict=True):
            if outcome.result is None or outcome.measures is None:
                raise RuntimeError("a run ended without a result")
            files, last, missing = self._store.job(claim.job_id), rows[-1], rows[0].iteration - 1
            earlier = self._records.events.history(claim.job_id, 0, missing) if missing else []
            state = f'{{"state":"succeeded","attempt":{claim.attempt}}}'
            final = [  # the events that the end of the run publishes, with the ids that the record gives them
                Event(id=f"{last.iteration}-1", kind="state", payload=state),
                Event(id=f"{last.iteration}-2", kind="end", payload=""),
            ]
            files.save_history([*earlier, *rows], [*before, *final])
            runs.append(EndedRun(claim, outcome.result, outcome.measures, resolved, last, files.nbytes()))
        self._store.flush()
        answers = self._retry_redis(lambda: self._claims.finish_many(runs))
        log.info("study %s: %d runs ended", self._first.study_id, sum(answers))
        for run, is_ended in zip(runs, answers, strict=True):
            if not is_ended:
                self._retry_redis(partial(discard_late_files, self._jobs, run.claim.job_id))
            self._release(run.claim)

    def _release(self, claim: Claim) -> None:
        self.heartbeat.release(claim)
        self._held = [held for held in self._held if held is not claim]

    def _retry_redis(self, call: Callable[[], Answer]) -> Answer:
        return retry_redis(call, self._stop, self._configuration)

"""One attempt at a job: from its checkpoint or its start to its end, or to where it must stop."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from sparse_ncp.solvers import Clock, Diagnostics, State, diagnose, sweeps
from sparse_ncp.solvers.metrics import psnr
from sparse_ncp.solvers.runtime import Array, Booleans, PreparationStep, Resolved, Scan
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, JobResult, Preparation, Progress
from sparse_ncp.worker.errors import StoreFull, StoreUnavailable, Unavailable
from sparse_ncp.worker.execution.heartbeat import Heartbeat
from sparse_ncp.worker.execution.sinks import LiveSink
from sparse_ncp.worker.records.claims import ClaimRecords
from sparse_ncp.worker.store.files import is_storage_failure
from sparse_ncp.worker.store.store import Store
from sparse_ncp.worker.study_contract import Measures

Answer = TypeVar("Answer")
# Between two tries of a disk that is full or away.
STORAGE_RETRY_SECONDS = 1.0
# A diagnosis that takes longer is published as a phase.
PHASE_DELAY_SECONDS = 1.0
log = logging.getLogger("ncp.job")


@dataclass(frozen=True)
class Ended:
    """The run is over and its factors are in the store. A task of a study that is no run has no result."""

    result: JobResult | None
    cancelled: bool = False
    measures: Measures | None = None


class Interrupted(Exception):
    """The run need not be prepared any further: it was cancelled, the worker stops, or the claim was lost."""


class Attempt:
    def __init__(
        self,
        claim: Claim,
        claims: ClaimRecords,
        store: Store,
        configuration: Configuration,
        heartbeat: Heartbeat,
        progress: LiveSink,
        must_stop: Callable[[], bool],
    ) -> None:
        self._claim = claim
        self._claims = claims
        self._store = store
        self._files = store.job(claim.job_id)
        self._configuration = configuration
        self._heartbeat = heartbeat
        self._progress = progress
        self._must_stop = must_stop
        self._checkpoint_due = time.monotonic() + configuration.checkpoint_seconds

    def run(self) -> Ended | None:
        """Run to the end; None if it stopped before: the worker stops, the claim was lost, or the disk failed."""
        try:
            try:
                return self._run()
            except Interrupted:
                ends = self._heartbeat.cancel_requested and not self._heartbeat.lost
                return self._end_before_first_sweep() if ends else None
        except OSError as error:
            if not isinstance(error, StoreFull) and not is_storage_failure(error):
                raise
            log.warning("job %s: goes back to the queue: %s", self._claim.job_id, error)
            return None

    def _run(self) -> Ended | None:
        scan = self._verify(self._claim.sha256)
        if self._claim.mask_sha256 is not None:
            self._verify(self._claim.mask_sha256)
        resume = self._retry_storage(self._last_checkpoint)
        if resume is not None:
            self._publish_up_to(resume)
        has_ended = resume is not None and resume.stop_reason is not None  # it died while it was diagnosed
        state = resume if has_ended else self._sweep(resume, scan)
        return None if state is None else self._end(state)

    def _verify(self, sha256: str) -> Scan | None:
        """Check that the bytes are those that were uploaded; what is known of the entries, if anything is."""
        self._report_preparation("check", 0.0)
        threads, on_progress = self._configuration.threads_per_job, partial(self._report_preparation, "check")
        return self._retry_storage(lambda: self._store.verify_tensor(sha256, threads, on_progress))

    def _report_preparation(self, step: Literal["check", PreparationStep], share: float) -> None:
        """Tell how far the first sweep is prepared; Interrupted if there shall be none."""
        if self._heartbeat.lost or self._heartbeat.cancel_requested or self._must_stop():
            raise Interrupted
        self._progress.prepare(Preparation(step=step, share=share))

    def _end_before_first_sweep(self) -> Ended | None:
        """Cancelled before a sweep of this attempt: with what an attempt before has saved, if there was one."""
        state = self._retry_storage(self._last_checkpoint)
        if state is None:
            return Ended(None, cancelled=True)
        self._publish_up_to(state)
        return self._end(state.cancelled())

    def _sweep(self, resume: State | None, scan: Scan | None) -> State | None:
        """The state in which the run ends; None if it stopped before."""
        for state in self._states(resume, scan):
            self._progress.prepare(None)
            self._heartbeat.compute_clock.run_from(state.seconds)
            if state.iteration == (resume.iteration if resume else 0) + 1:
                self._publish_resolved(state)
            self._publish(state, state.iteration)
            if self._heartbeat.lost:
                return None
            if self._heartbeat.cancel_requested or state.stop_reason is not None:
                return state.cancelled()
            stopping = self._must_stop()
            if stopping or time.monotonic() >= self._checkpoint_due:
                self._checkpoint(state)
            if stopping:
                return None
        raise RuntimeError("the solver ended without a reason")

    def _last_checkpoint(self) -> State | None:
        name = self._claim.checkpoint
        state = None if name is None else self._files.last_checkpoint(name)
        if name is not None and state is None:
            log.warning("job %s: its checkpoints are damaged, it starts from the beginning", self._claim.job_id)
        if state is not None:
            log.info("job %s: resumes after iteration %d", self._claim.job_id, state.iteration)
        return state

    def _states(self, resume: State | None, scan: Scan | None) -> Iterator[State]:
        claim = self._claim
        initial = None if resume else self._retry_storage(self._initial)
        fixed = None if resume else self._retry_storage(self._fixed)
        clock = self._clock()
        self._heartbeat.compute_clock.run_from(max(clock.spent_seconds, resume.seconds if resume else 0.0))
        return sweeps(
            self._retry_storage(lambda: self._store.open_tensor(claim.sha256)),
            claim.settings,
            initial=initial,
            mask=self._mask(),
            fixed=fixed,
            resume=resume,
            threads=self._configuration.threads_per_job,
            clock=clock,
            scan=scan,
            on_prepare=self._report_preparation,
        )

    def _clock(self) -> Clock:
        """The clock of the run: repeats what readers have seen whatever the time, and ends where time had ended it."""
        claim, limit = self._claim, self._claim.settings.stop.max_seconds
        if claim.published is None:
            return Clock(claim.spent_seconds)
        ended = limit is not None and claim.published.seconds >= limit
        return Clock(claim.spent_seconds, enforce_after_iteration=claim.published.iteration - ended)

    def _initial(self) -> list[Array] | None:
        other = self._claim.initial_job_id
        return None if other is None else self._files.freeze_initial(self._store.job(other))

    def _mask(self) -> Booleans | None:
        sha256 = self._claim.mask_sha256
        return None if sha256 is None else self._retry_storage(lambda: self._store.open_tensor(sha256))

    def _fixed(self) -> dict[int, Array] | None:
        """The factors that stay. The job they are of has ended, and cannot be deleted while this one lives."""
        fixed = self._claim.fixed
        if fixed is None:
            return None
        factors = self._store.job(fixed.job_id).factors()
        return {mode: factors[mode - 1] for mode in fixed.modes}

    def _publish_up_to(self, state: State) -> None:
        """Publish what a checkpoint has ahead of the readers: its attempt may have died before it did."""
        seen = self._claim.published.iteration if self._claim.published else 0
        for iteration in range(seen + 1, state.iteration + 1):
            self._publish(state, iteration)

    def _publish(self, state: State, iteration: int) -> None:
        """Publish an iteration, unless readers have seen it."""
        if self._claim.published is None or iteration > self._claim.published.iteration:
            self._progress.put(Progress.from_state(state, iteration))

    def _publish_resolved(self, state: State) -> None:
        """Once in every attempt; without Redis, the next attempt's or none: the result has the same numbers."""
        try:
            self._claims.publish_resolved(self._claim, Resolved.of(state))
        except Unavailable as error:
            log.warning("job %s: its resolved settings were not published: %s", self._claim.job_id, error)

    def _publish_diagnosing(self) -> None:
        """Without Redis the phase stays that of the last sweep."""
        try:
            self._claims.publish_diagnosing(self._claim)
        except Unavailable as error:
            log.warning("job %s: its phase was not published: %s", self._claim.job_id, error)

    def _checkpoint(self, state: State) -> None:
        """Save a checkpoint. Without a disk or Redis the run continues: a checkpoint only saves time."""
        started = time.monotonic()
        try:
            self._files.save_source(self._claim.source)
            name = self._files.save_checkpoint(self._claim.fence, state)
            if self._claims.save_checkpoint(self._claim, name, state.iteration):
                self._files.drop_checkpoints(keep=name)
        except (StoreFull, StoreUnavailable, Unavailable) as error:
            log.warning("job %s: no checkpoint: %s", self._claim.job_id, error)
        self._schedule_checkpoint(started)

    def _schedule_checkpoint(self, started: float) -> None:
        """The next one comes so late that all of them take a small share of the run."""
        ended = time.monotonic()
        pause = max(self._configuration.checkpoint_seconds, (ended - started) / self._configuration.checkpoint_share)
        self._checkpoint_due = ended + pause

    def _end(self, state: State) -> Ended | None:
        """Diagnose and save the result; None if the worker stops, or the claim is lost, before it is diagnosed."""
        self._heartbeat.compute_clock.stop()
        self._progress.prepare(None)
        result, diagnostics = JobResult.from_state(state), None
        if self._claim.settings.diagnose and state.stop_reason != "cancelled":
            diagnostics = self._diagnose(state)
            if diagnostics is not None:
                self._retry_storage(lambda: self._files.save_diagnostics(diagnostics))
            elif not self._heartbeat.cancel_requested:  # whoever cancels now has the factors sooner
                return None
        self._retry_storage(lambda: self._save(state, result))
        measures = None if self._claim.study_id is None else self._measures(state, diagnostics)
        return Ended(result, state.stop_reason == "cancelled", measures)

    def _measures(self, state: State, diagnostics: Diagnostics | None) -> Measures:
        """What a study compares besides the result."""
        found, reference = None, self._claim.reference
        if reference is not None:
            true = self._retry_storage(lambda: self._store.open_tensor(reference.sha256))
            found = psnr(state.outcome()[0][reference.mode - 1], np.asarray(true, np.float64))
        return Measures(psnr=found, core_consistency=diagnostics.core_consistency if diagnostics else None)

    def _diagnose(self, state: State) -> Diagnostics | None:
        """None if it was interrupted. The state, with its reason to stop, is checkpointed like any other."""
        publish_from, is_published = time.monotonic() + PHASE_DELAY_SECONDS, False

        def interrupted() -> bool:
            nonlocal is_published
            if not is_published and time.monotonic() >= publish_from:
                is_published = True
                self._publish_diagnosing()
            stopping = self._must_stop()
            if stopping or time.monotonic() >= self._checkpoint_due:
                self._checkpoint(state)
            return stopping or self._heartbeat.lost or self._heartbeat.cancel_requested

        return diagnose(
            self._retry_storage(lambda: self._store.open_tensor(self._claim.sha256)),
            state.outcome()[0],
            mask=self._mask(),
            threads=self._configuration.threads_per_job,
            cancelled=interrupted,
        )

    def _save(self, state: State, result: JobResult) -> None:
        self._files.save_source(self._claim.source)
        self._files.save_factors(self._claim.fence, state, result)

    def _retry_storage(self, call: Callable[[], Answer]) -> Answer:
        """Wait for a disk that is full or away, for hours if need be; not if the worker stops or the claim is lost."""
        while True:
            try:
                return call()
            except (StoreFull, StoreUnavailable) as error:
                if self._must_stop() or self._heartbeat.lost:
                    raise
                log.warning("job %s: waits for the disk: %s", self._claim.job_id, error)
                time.sleep(STORAGE_RETRY_SECONDS)

"""One attempt at a job: from its checkpoint or its start until the job ends or the attempt must stop."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from sparse_ncp.solvers import Clock, Diagnostics, Stability, State, assess_stability, diagnose, sweeps
from sparse_ncp.solvers.metrics import psnr
from sparse_ncp.solvers.runtime import Array, Booleans, PreparationStep, Resolved, Scan, excluded_rows, mask_of_readings
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import Claim, JobResult, Preparation, Progress
from sparse_ncp.worker.errors import HistoryTooLarge, StoreFull, StoreUnavailable, Unavailable
from sparse_ncp.worker.execution.heartbeat import Heartbeat
from sparse_ncp.worker.execution.inputs import Inputs, StorageRetry
from sparse_ncp.worker.execution.sinks import ProgressSink
from sparse_ncp.worker.operations.exclusion import name_index, resolve_labels
from sparse_ncp.worker.records.claims import ClaimRecords
from sparse_ncp.worker.store.files import is_storage_failure
from sparse_ncp.worker.store.store import Store
from sparse_ncp.worker.study_contract import Measures

# Publish the phase "diagnosing" if the diagnosis takes longer than this.
PHASE_DELAY_SECONDS = 1.0
log = logging.getLogger("ncp.job")


@dataclass(frozen=True)
class Ended:
    """The outcome of an attempt that ended its job, with all files stored.

    Tasks of a study that are not decompositions have no result.
    """

    result: JobResult | None
    cancelled: bool = False
    measures: Measures | None = None


class Interrupted(Exception):
    """Preparation must stop: the job was cancelled, the worker stops, or the claim was lost."""


class Attempt:
    """Run one attempt.

    Parameters
    ----------
    claim : Claim
        The job, and the right to run it.
    claims : ClaimRecords
        Records that the holder of a claim may write.
    store : Store
        Where inputs are read and results are written.
    configuration : Configuration
        Threads, and how often to write checkpoints.
    heartbeat : Heartbeat
        Says whether the claim was lost or cancelled.
    sink : ProgressSink
        Receives the iterations.
    must_stop : callable
        Returns True once the worker stops.
    """

    def __init__(
        self,
        claim: Claim,
        claims: ClaimRecords,
        store: Store,
        configuration: Configuration,
        heartbeat: Heartbeat,
        sink: ProgressSink,
        must_stop: Callable[[], bool],
    ) -> None:
        # The axes are those at the time of submission, which has checked the labels.
        self._claim = claim.model_copy(update={"settings": resolve_labels(claim.settings, claim.axes)})
        self._claims = claims
        self._files = store.job(claim.job_id)
        self._configuration = configuration
        self._heartbeat = heartbeat
        self._sink = sink
        self._must_stop = must_stop
        pause_seconds = configuration.storage_retry_seconds
        self._retry = StorageRetry(claim.job_id, lambda: must_stop() or heartbeat.lost, pause_seconds)
        self._inputs = Inputs(claim, store, configuration, self._retry)
        self._checkpoint_due = time.monotonic() + configuration.checkpoint_seconds
        self._published = claim.published.iteration if claim.published else 0
        self._notes: tuple[str, ...] = ()
        self._started = time.monotonic()
        self._start_seconds = 0.0

    def run(self) -> Ended | None:
        """Run to the end; return None if the worker stops, the claim is lost, or storage fails before that."""
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
        scan = self._inputs.verify(partial(self._report_preparation, "check"))
        resume = self._load_checkpoint()
        if resume is not None:
            self._publish(resume)  # the attempt before may have died before it had published all of it
        has_ended = resume is not None and resume.stop_reason is not None  # it died during the diagnosis
        state = resume if has_ended else self._sweep(resume, scan)
        return None if state is None else self._end(state)

    def _report_preparation(self, step: Literal["check", PreparationStep], share: float) -> None:
        """Publish how far the first sweep is prepared; raise Interrupted if the attempt must stop."""
        if self._heartbeat.lost or self._heartbeat.cancel_requested or self._must_stop():
            raise Interrupted
        self._sink.publish_preparation(Preparation(step=step, share=share))

    def _end_before_first_sweep(self) -> Ended | None:
        """End a job that was cancelled during preparation, with the last checkpoint of an earlier attempt, if any."""
        state = self._load_checkpoint()
        if state is None:
            return Ended(None, cancelled=True)
        self._publish(state)
        return self._end(state.cancelled())

    def _load_checkpoint(self) -> State | None:
        """Load the checkpoint to resume from; None if there is none, or none that can be used."""
        name = self._claim.checkpoint
        if name is None:
            return None
        state = self._retry(lambda: self._files.last_checkpoint(name))
        if state is None:
            self._note_unusable_checkpoint(name)
        else:
            log.info("job %s: resumes after iteration %d", self._claim.job_id, state.iteration)
        return state

    def _note_unusable_checkpoint(self, name: str) -> None:
        """Warn, in the log and in the result, that the run starts again, and why."""
        if self._retry(lambda: self._files.study_checkpoint(name)) is None:
            reason = "its checkpoints were missing or damaged"
        else:
            reason = "its checkpoint was written by another version of sparse-ncp"
        note = f"{reason}, so the run started again from its seed"
        log.warning("job %s: %s", self._claim.job_id, note)
        self._notes = (note,)

    def _annotate(self, state: State) -> State:
        """Add the notes of this attempt, which become warnings of the result."""
        return replace(state, notes=(*state.notes, *self._notes)) if self._notes else state

    def _sweep(self, resume: State | None, scan: Scan | None) -> State | None:
        """Sweep until the run ends, and return its last state; None if the attempt must stop before."""
        clock = self._clock()
        self._heartbeat.compute_clock.run_from(max(clock.spent_seconds, resume.seconds if resume else 0.0))
        states = sweeps(
            self._inputs.open_tensor(),
            self._claim.settings,
            initial=None if resume else self._inputs.initial(),
            mask=self._inputs.mask(),
            fixed=None if resume else self._inputs.fixed(),
            resume=resume,
            threads=self._configuration.threads_per_job,
            clock=clock,
            scan=scan,
            on_prepare=self._report_preparation,
        )
        is_first = True
        for state in map(self._annotate, states):
            self._sink.publish_preparation(None)
            self._heartbeat.compute_clock.run_from(state.seconds)
            if is_first:
                swept = state.seconds - (resume.seconds if resume else 0.0)
                self._start_seconds = max(0.0, time.monotonic() - self._started - swept)
                self._sink.publish_resolved(Resolved.of(state))
                is_first = False
            if self._heartbeat.resume_seconds is None and state.iteration > self._published:
                self._heartbeat.resume_seconds = self._start_seconds
            self._publish(state)
            if self._heartbeat.lost:
                return None
            if self._heartbeat.quota_reached:
                self._checkpoint(state)
                raise HistoryTooLarge
            if self._heartbeat.cancel_requested or state.stop_reason is not None:
                return state.cancelled()
            if self._leaves_after_checkpoint(partial(self._checkpoint, state)):
                return None
        raise RuntimeError("the solver ended without a reason")

    def _leaves_after_checkpoint(self, checkpoint: Callable[[], bool]) -> bool:
        """Write a checkpoint if one is due, and return whether the attempt must stop, or gives way to others.

        It does not give way if the checkpoint cannot be saved: what was computed would be lost.
        """
        stopping = self._must_stop()
        yields = not stopping and self._heartbeat.should_yield()
        saved = (stopping or yields or time.monotonic() >= self._checkpoint_due) and checkpoint()
        if yields and not saved:
            self._heartbeat.decline_to_yield()
        return stopping or (yields and saved)

    def _clock(self) -> Clock:
        """Return a clock that lets the run repeat every published iteration, however long that takes now."""
        claim, limit = self._claim, self._claim.settings.stop.max_seconds
        if claim.published is None:
            return Clock(claim.spent_seconds)
        ended = limit is not None and claim.published.seconds >= limit
        return Clock(claim.spent_seconds, enforce_after_iteration=claim.published.iteration - ended)

    def _publish(self, state: State) -> None:
        """Publish the iterations of a state that no attempt has published yet."""
        for iteration in range(self._published + 1, state.iteration + 1):
            self._sink.put(Progress.from_state(state, iteration))
            self._published = iteration

    def _checkpoint(self, state: State) -> bool:
        def write() -> str:
            self._files.save_source(self._claim.source)
            return self._files.save_checkpoint(self._claim.fence, state)

        return self._save_checkpoint(write, state.iteration)

    def _save_checkpoint(self, write: Callable[[], str], iteration: int) -> bool:
        """Write a checkpoint and schedule the next, so that all of them take a small share of the run.

        Returns whether it was saved. Without storage or Redis the run continues: a checkpoint only saves time.
        """
        started, saved = time.monotonic(), False
        try:
            name = write()
            saved = self._sink.save_checkpoint(name, iteration)
            if saved:
                self._files.drop_checkpoints(keep=name)
        except (StoreFull, StoreUnavailable, Unavailable) as error:
            log.warning("job %s: no checkpoint was saved: %s", self._claim.job_id, error)
        ended = time.monotonic()
        if saved and self._heartbeat.resume_seconds is not None:
            self._heartbeat.resume_seconds = self._start_seconds + ended - started
        pause = max(self._configuration.checkpoint_seconds, (ended - started) / self._configuration.checkpoint_share)
        self._checkpoint_due = ended + pause
        return saved

    def _end(self, state: State) -> Ended | None:
        """Diagnose, assess and save the result; return None if the attempt must stop before that has ended."""
        self._heartbeat.compute_clock.stop()
        self._sink.publish_preparation(None)
        settings, diagnostics, stability = self._claim.settings, None, None
        rows, observed = dict[int, Array](), None
        diagnoses = settings.diagnose and state.stop_reason != "cancelled"
        if diagnoses or settings.exclude:
            observed = mask_of_readings(
                self._inputs.open_tensor(), settings.zeros, self._inputs.mask(), settings.exclude
            )
        if settings.exclude:
            fixed, threads = self._inputs.fixed(), self._configuration.threads_per_job
            rows = excluded_rows(self._inputs.open_tensor(), state, mask=observed, fixed=fixed, threads=threads)
        factors = state.whole_factors(rows)
        if diagnoses:
            diagnostics = self._diagnose(state, factors, observed)
            if diagnostics is not None:
                self._retry(lambda: self._files.save_diagnostics(diagnostics))
            elif not self._heartbeat.cancel_requested:  # cancelling now gives the factors without diagnostics
                return None
        cancelled = state.stop_reason == "cancelled" or self._heartbeat.cancel_requested
        if settings.stability and not cancelled:
            stability = self._assess(state, factors)
            if stability is not None:
                self._retry(lambda: self._files.save_stability(stability))
            elif not self._heartbeat.cancel_requested:  # and then without stability
                return None
        result = JobResult.from_state(state, diagnostics, stability, rows, partial(name_index, self._claim.axes))

        def save() -> None:
            self._files.save_source(self._claim.source)
            self._files.save_factors(self._claim.fence, state, result, factors, stability)

        self._retry(save)
        measures = None
        if self._claim.study_id is not None:
            reference, true = self._claim.reference, self._inputs.reference()
            measures = Measures(
                psnr=psnr(factors[reference.mode - 1], true) if reference and true is not None else None,
                core_consistency=diagnostics.core_consistency if diagnostics else None,
            )
        return Ended(result, state.stop_reason == "cancelled", measures)

    def _diagnose(self, state: State, factors: Sequence[Array], observed: Booleans | None) -> Diagnostics | None:
        """Diagnose the model; None if interrupted. Meanwhile the ended state is checkpointed like any other."""
        publish_at: float | None = time.monotonic() + PHASE_DELAY_SECONDS

        def is_interrupted() -> bool:
            nonlocal publish_at
            if publish_at is not None and time.monotonic() >= publish_at:
                publish_at = None
                self._sink.publish_diagnosing()
            return self._is_interrupted(state)

        settings, claim = self._claim.settings, self._claim
        is_one_of_many = claim.study_id is not None and claim.task == "run"  # refits would cost more than the run
        return diagnose(
            self._inputs.open_tensor(),
            factors,
            mask=observed,
            exclude=settings.exclude,
            samples_mode=None if is_one_of_many else settings.samples_mode,
            threads=self._configuration.threads_per_job,
            cancelled=is_interrupted,
        )

    def _assess(self, state: State, factors: Sequence[Array]) -> Stability | None:
        """Assess the stability of the model; None if interrupted. An attempt that resumes begins it again."""

        def publish(share: float) -> None:
            self._sink.publish_preparation(Preparation(step="resample", share=share))

        publish(0.0)
        found = assess_stability(
            self._inputs.open_tensor(),
            factors,
            state.settings,
            resolved=Resolved.of(state),
            mask=self._inputs.mask(),
            fixed=[mode + 1 for mode in state.fixed],
            threads=self._configuration.threads_per_job,
            cancelled=lambda: self._is_interrupted(state),
            on_progress=publish,
        )
        self._sink.publish_preparation(None)
        return found

    def _is_interrupted(self, state: State) -> bool:
        """Checkpoint the ended state where that is due, and return whether the attempt must stop."""
        stopping = self._must_stop()
        if stopping or time.monotonic() >= self._checkpoint_due:
            self._checkpoint(state)
        return stopping or self._heartbeat.lost or self._heartbeat.cancel_requested

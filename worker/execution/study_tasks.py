"""Tasks of a study that are not single runs: a choice, and the validation of a comparison."""

import logging
import math
import time
from collections.abc import Callable
from functools import partial

from pydantic import TypeAdapter

from sparse_ncp.solvers import History, InvalidInput, Settings, State
from sparse_ncp.solvers.runtime import Exclusion, given_weights
from sparse_ncp.solvers.studies.advice import Advice
from sparse_ncp.solvers.studies.choice import choose
from sparse_ncp.solvers.studies.settings import ChoiceSettings, ComparisonSettings
from sparse_ncp.solvers.studies.state import Choice, ChoiceState
from sparse_ncp.solvers.studies.validation import check_validation, checks, fitted_part, observed_entries, run_check
from sparse_ncp.worker.errors import Unavailable
from sparse_ncp.worker.execution.attempt import Attempt, Ended
from sparse_ncp.worker.study_contract import ChoiceFound

# Checkpoints of a choice are numbered by its progress, in millionths.
PARTS = 10**6
log = logging.getLogger("ncp.job")


class StudyAttempt(Attempt):
    """Attempt at a task that has no result before it ends, and stores it in the study."""

    def _end_before_first_sweep(self) -> Ended:
        return Ended(None, cancelled=True)

    def _save(self, save: Callable[[], bool]) -> bool:
        """Store a result, waiting for Redis if need be; return whether the claim still held."""
        while not self._heartbeat.lost and not self._must_stop():
            try:
                return save()
            except Unavailable:
                time.sleep(1.0)
        return False


class ChoiceAttempt(StudyAttempt):
    """Attempt at a choice, which ends like a run with the chosen model."""

    _reached: ChoiceState | None = None

    def _run(self) -> Ended | None:
        self._inputs.verify(partial(self._report_preparation, "check"))
        self._sink.publish_preparation(None)  # from here on the study reports its own progress
        started = time.monotonic() - self._claim.spent_seconds
        self._heartbeat.compute_clock.run_from(self._claim.spent_seconds)
        tensor = self._inputs.open_tensor()
        self._reached = self._retry(self._last_choice)
        settings = ChoiceSettings.model_validate_json(str(self._claim.study_request)).model_copy(
            update={"exclude": self._claim.settings.exclude}  # whose labels are resolved
        )
        limit, threads = self._claim.settings.stop.max_seconds, self._configuration.threads_per_job
        self._start_seconds = time.monotonic() - self._started
        for state in choose(tensor, settings, mask=self._inputs.mask(), resume=self._reached, threads=threads):
            self._reached = state
            self._publish_choosing(state)
            if self._heartbeat.lost:
                return None
            if self._heartbeat.cancel_requested:
                return Ended(None, cancelled=True)
            if limit is not None and time.monotonic() - started > limit and state.outcome is None:
                remedy = "raise it, or give fewer seeds or a lower rank"
                raise InvalidInput("stop.max_seconds", f"the choice takes longer than {limit:g} s", remedy)
            self._heartbeat.resume_seconds = self._heartbeat.resume_seconds or self._start_seconds
            if self._leaves_after_checkpoint(self._checkpoint_choice):
                return None
        outcome = self._reached.outcome if self._reached else None
        if self._reached is None or outcome is None:
            raise RuntimeError("the choice ended without an outcome")
        self._save_choice(outcome)
        norm = self._reached.unit * math.sqrt(self._reached.observed)
        chosen = self._annotate(_as_state(outcome, self._claim.settings, norm, time.monotonic() - started))
        self._publish(chosen)
        return self._end(chosen)

    def _last_choice(self) -> ChoiceState | None:
        """Load the last checkpoint of the choice; None if there is none that can be used."""
        name = self._claim.checkpoint
        content = None if name is None else self._files.study_checkpoint(name)
        try:
            if content is not None:
                return ChoiceState.from_bytes(content)
        except InvalidInput:
            pass
        if name is not None:
            self._note_unusable_checkpoint(name)
        return None

    def _checkpoint(self, state: State) -> bool:
        """Save the choice, not the model, while the chosen model is diagnosed."""
        return self._checkpoint_choice()

    def _checkpoint_choice(self) -> bool:
        reached = self._reached
        if reached is None:
            return False
        place = int(PARTS * reached.progress)
        return self._save_checkpoint(
            lambda: self._files.save_study_checkpoint(self._claim.fence, place, reached.to_bytes()), place
        )

    def _publish_choosing(self, state: ChoiceState) -> None:
        """Publish the progress; a step that Redis misses is not published again."""
        try:
            self._claims.publish_choice_progress(self._claim, state.stage, state.progress)
        except Unavailable as error:
            log.warning("job %s: its progress was not published: %s", self._claim.job_id, error)

    def _save_choice(self, outcome: Choice) -> None:
        """Store the advice, without which the study is worthless."""
        found = ChoiceFound(
            relative_error=outcome.relative_error,
            noise=outcome.noise,
            noise_level=outcome.noise_level,
            points=outcome.points,
            validated=outcome.validated,
        )
        advice = TypeAdapter(Advice).dump_json(outcome.advice).decode()
        self._save(partial(self._claims.save_choice, self._claim, advice, found.model_dump_json()))


def _as_state(outcome: Choice, asked: Settings, norm: float, seconds: float) -> State:
    """Return the chosen model as the final state of a run without a penalty."""
    settings = asked.model_copy(update={"rank": outcome.factors[0].shape[1], "alpha": 0.0})
    objective = 0.5 * (outcome.relative_error * norm) ** 2
    return State(
        settings=settings,
        weights=given_weights(settings, len(outcome.factors)),
        tensor_norm=norm,
        factors=outcome.factors,
        memory=(),
        history=History().plus(objective, outcome.relative_error, seconds),
        stop_reason="tolerance",
        objective=objective,
    )


class ValidationAttempt(StudyAttempt):
    """Attempt at the validation of a comparison; the results are stored in the study."""

    def _run(self) -> Ended | None:
        self._inputs.verify(partial(self._report_preparation, "check"))
        self._sink.publish_preparation(None)  # from here on the study reports its own progress
        self._heartbeat.compute_clock.run_from(self._claim.spent_seconds)
        grid, found = (
            ComparisonSettings.model_validate_json(str(self._claim.study_request)),
            list(self._claim.validation_results),
        )
        common, threads, whole = self._claim.settings, self._configuration.threads_per_job, self._inputs.open_tensor()
        tensor, mask = fitted_part(whole, common, self._inputs.mask())
        # The server searches neither large tensors nor hidden holes that no worker has found yet.
        observed, exclusion = observed_entries(tensor, mask), Exclusion.of(common.exclude, whole.shape)
        check_validation(grid.validation, tensor.shape, observed, exclusion)
        start_seconds = time.monotonic() - self._started
        for check in checks(grid.validation, grid.ranks)[len(found) :]:
            if self._heartbeat.cancel_requested:
                return Ended(None, cancelled=True)
            if self._heartbeat.lost or self._must_stop():
                return None
            found.append(run_check(tensor, grid.validation, check, common, threads, mask=mask))
            if not self._save(partial(self._claims.keep_validation_results, self._claim, found)):
                return None
            self._heartbeat.resume_seconds = start_seconds
            if self._heartbeat.should_yield():
                return None
        return Ended(None)

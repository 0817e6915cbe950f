"""One attempt at a job: from its checkpoint or its start to the end, or to where it must stop."""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from solvers import Earlier, State, sweeps
from solvers.arrays import Array
from worker.configuration import Configuration
from worker.contract import Claim, JobResult
from worker.errors import StoreFull, Unavailable
from worker.outcome import progress_at, result_of
from worker.records import Records
from worker.standing import Watch
from worker.store import Store

Answer = TypeVar("Answer")
# Between two looks whether the disk has room again.
ROOM_SECONDS = 1.0
# Checkpoints take at most this share of the run.
CHECKPOINT_SHARE = 0.02

log = logging.getLogger("ncp.job")


@dataclass(frozen=True)
class Ended:
    """The run is over and its factors are in the store."""

    result: JobResult


class Attempt:
    def __init__(
        self,
        claim: Claim,
        records: Records,
        store: Store,
        configuration: Configuration,
        must_stop: Callable[[], bool],
    ) -> None:
        self._claim = claim
        self._records = records
        self._store = store
        self._folder = store.job(claim.job_id)
        self._configuration = configuration
        self._must_stop = must_stop
        self._checkpoint_due = time.monotonic() + configuration.checkpoint_seconds

    def run(self, watch: Watch) -> Ended | None:
        """None if the run stopped before its end: the worker stops, or the claim was lost."""
        try:
            return self._run(watch)
        except StoreFull:
            return None

    def _run(self, watch: Watch) -> Ended | None:
        self._store.check_tensor(self._claim.sha256)
        resume = self._resumed()
        if resume is not None:
            self._catch_up(resume, watch)
        for state in self._states(resume, watch):
            watch.spent.reach(state.seconds)
            self._publish(state, state.iteration, watch)
            if watch.lost:
                return None
            if watch.cancel or state.stop_reason is not None:
                return self._end(state.cancelled(), watch)
            stopping = self._must_stop()
            if stopping or time.monotonic() >= self._checkpoint_due:
                self._checkpoint(state)
            if stopping:
                return None
        raise RuntimeError("the solver ended without a reason")

    def _resumed(self) -> State | None:
        name = self._claim.checkpoint
        state = None if name is None else self._folder.last_checkpoint(name)
        if name is not None and state is None:
            log.warning("job %s: its checkpoints are damaged, it begins anew", self._claim.job_id)
        if state is not None:
            log.info("job %s: goes on after iteration %d", self._claim.job_id, state.iteration)
        return state

    def _states(self, resume: State | None, watch: Watch) -> Iterator[State]:
        claim = self._claim
        initial = None if resume else self._with_room(self._initial, watch)
        earlier = self._earlier()
        watch.spent.reach(max(earlier.seconds, resume.seconds if resume else 0.0))
        return sweeps(
            self._store.open_tensor(claim.sha256),
            claim.settings,
            initial=initial,
            resume=resume,
            threads=self._configuration.threads_per_job,
            earlier=earlier,
        )

    def _earlier(self) -> Earlier:
        """What readers have seen is repeated whatever the time; but where time had ended the run, it does so again."""
        claim, limit = self._claim, self._claim.settings.stop.max_seconds
        if claim.published is None:
            return Earlier(0, claim.spent_seconds)
        ended = limit is not None and claim.published.seconds >= limit
        return Earlier(claim.published.iteration - ended, claim.spent_seconds)

    def _initial(self) -> list[Array] | None:
        other = self._claim.initial_job_id
        return None if other is None else self._folder.freeze_initial(self._store.job(other))

    def _catch_up(self, state: State, watch: Watch) -> None:
        """A checkpoint may be ahead of what was published when the attempt before this one died."""
        seen = self._claim.published.iteration if self._claim.published else 0
        for iteration in range(seen + 1, state.iteration + 1):
            self._publish(state, iteration, watch)

    def _publish(self, state: State, iteration: int, watch: Watch) -> None:
        """Silent up to the last iteration that readers have seen."""
        if self._claim.published is None or iteration > self._claim.published.iteration:
            watch.put(progress_at(state, iteration))

    def _checkpoint(self, state: State) -> None:
        """Without room or Redis the run goes on: a checkpoint only saves time."""
        started = time.monotonic()
        try:
            name = self._folder.save_checkpoint(self._claim.fence, state)
            if self._records.checkpointed(self._claim, name, state.iteration):
                self._folder.drop_checkpoints(keep=name)
        except (StoreFull, Unavailable) as error:
            log.warning("job %s: no checkpoint: %s", self._claim.job_id, error)
        ended = time.monotonic()
        pause = max(self._configuration.checkpoint_seconds, (ended - started) / CHECKPOINT_SHARE)
        self._checkpoint_due = ended + pause

    def _end(self, state: State, watch: Watch) -> Ended:
        watch.spent.rest()
        result = result_of(state)
        self._with_room(lambda: self._folder.save_factors(self._claim.fence, state, result), watch)
        return Ended(result)

    def _with_room(self, write: Callable[[], Answer], watch: Watch) -> Answer:
        """Hours of work wait for room on the disk. StoreFull only if the worker stops or the claim is lost."""
        while True:
            try:
                return write()
            except StoreFull:
                if self._must_stop() or watch.lost:
                    raise
                log.warning("job %s: waits for room on the disk", self._claim.job_id)
                time.sleep(ROOM_SECONDS)

"""Operations on jobs that need both their records and their files."""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from sparse_ncp.solvers import InvalidInput, Settings
from sparse_ncp.solvers.runtime import Array
from sparse_ncp.worker.broker import WakeUpThread
from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.contract import TERMINAL, Axes, Event, Export, JobRequest, Preparation, Progress, parse_event_id
from sparse_ncp.worker.errors import NoFactorsYet, NotFound, QuotaReached, TooManyJobs
from sparse_ncp.worker.operations.admission import Inputs, Problem, assess, check_job, problems_of_invalid, with_fields
from sparse_ncp.worker.operations.result_sizes import result_size
from sparse_ncp.worker.owner_limits import UNLIMITED, Limits
from sparse_ncp.worker.records.events import START
from sparse_ncp.worker.records.jobs import Submission, Submitted, settings_record
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.blobs import OpenFile
from sparse_ncp.worker.store.job_files import JobFiles
from sparse_ncp.worker.store.manifests import Manifest
from sparse_ncp.worker.store.store import Store

Answer = TypeVar("Answer")
# Iterations read at once: a few milliseconds for Redis and for other requests of this process.
ROWS_PER_PAGE = 1000
# Events moved to the store at once, with one flush.
EVENTS_PER_PIECE = 5000
# Events in the stream of a running job from which the older ones are moved, about 4 MB, and how many stay for readers.
LIVE_EVENTS, KEPT_EVENTS = 20_000, 5000
log = logging.getLogger("ncp.jobs")


class Estimate(NamedTuple):
    """Memory and settings of a job that is not submitted yet, and the reasons why it would be refused."""

    memory_bytes: int | None
    memory_limit_bytes: int
    problems: list[InvalidInput | NotFound]
    warnings: tuple[str, ...]
    settings: Settings


class JobOperations:
    """Submit, read and delete jobs, and move the history of ended jobs from Redis to the store."""

    def __init__(self, records: Records, store: Store, configuration: Configuration) -> None:
        self._records = records
        self._store = store
        self._memory_limit = configuration.max_job_memory_bytes
        self._settle_seconds = configuration.lease_seconds / 3  # so that the caller can renew its own lease meanwhile
        self._wake_ups = WakeUpThread(configuration)

    def open(self) -> None:
        """Prepare for the first submission."""
        self._wake_ups.open()

    def close(self) -> None:
        """Wait until wake-up messages for the submitted jobs are sent."""
        self._wake_ups.close()

    def submit(
        self,
        owner: str,
        request: JobRequest,
        key: str | None = None,
        limits: Limits = UNLIMITED,
        request_id: str | None = None,
    ) -> Submitted:
        """Queue a job and wake a worker. Repeating the same key and body returns the same job.

        Raises
        ------
        InvalidJob, NotFound, NoFactorsYet
            If the job cannot run.
        TooManyJobs, QuotaReached
            If the owner has reached a limit.
        IdempotencyKeyReused
            If the key was used with another body.
        """
        (outcome,) = self.submit_many([Submission(owner, request, key, limits, request_id)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def submit_many(self, submissions: Sequence[Submission]) -> list[Submitted | Exception]:
        """Submit each request as `submit` does, in one round trip; return its job or the exception for each."""
        inputs = Inputs(self._records, self._store)
        inputs.fetch_tensors([submission.request.tensor_id for submission in submissions])
        outcomes = [self._admit(submission, inputs) for submission in submissions]
        admitted = [outcome for outcome in outcomes if isinstance(outcome, Submission)]
        made = self._records.jobs.submit_many(admitted) if admitted else []
        self._wake_ups.notify(sum(isinstance(outcome, Submitted) and not outcome.replayed for outcome in made))
        remaining = iter(made)
        return [next(remaining) if isinstance(outcome, Submission) else outcome for outcome in outcomes]

    def _admit(self, submission: Submission, inputs: Inputs) -> Submission | Submitted | Exception:
        """Return a job to queue with its warnings, the job that its key has made before, or why it cannot run."""
        owner, request, key, limits, *_ = submission
        try:
            try:
                warnings = check_job(request, owner, limits, inputs, self._memory_limit)
            except Exception:  # an earlier job is returned even if, for example, the disk has failed since
                earlier = self._records.jobs.replay(owner, request, key) if key is not None else None
                if earlier is None:
                    raise
                return Submitted(earlier, replayed=True)
        except Exception as error:  # it must not affect other submissions
            return error
        size = result_size(request.settings(), inputs.tensor(owner, request.tensor_id))
        nbytes = size.kept + size.working
        return submission._replace(warnings=warnings, nbytes=nbytes, label_copies=size.label_copies)

    def estimate(self, owner: str, request: JobRequest, limits: Limits = UNLIMITED) -> Estimate:
        """Check a request without queueing it. Raises NotFound if the tensor does not exist."""
        inputs = Inputs(self._records, self._store)
        tensor = inputs.tensor(owner, request.tensor_id)
        found = assess(request, owner, limits, inputs, self._memory_limit)
        problems = with_fields(found.problems)
        usage = self._records.stats.usage(owner)
        if limits.live_jobs is not None and usage.live_jobs >= limits.live_jobs:
            problem = str(TooManyJobs(limits.live_jobs))
            problems.append(InvalidInput("live_jobs", problem, "wait until one has ended, or cancel one"))
        size, taken = result_size(request.settings(), tensor), usage.stored_bytes + usage.reserved_bytes
        nbytes = size.kept + size.working
        if limits.stored_bytes is not None and taken + nbytes > limits.stored_bytes:
            problem = str(QuotaReached(limits.stored_bytes, taken, results=nbytes))
            remedy = "delete tensors or jobs that you no longer need"
            problems.append(InvalidInput("stored_bytes", problem, remedy))
        settings = Settings.from_stored(settings_record(request.settings(), limits.job_seconds))
        return Estimate(found.memory_bytes, self._memory_limit, problems, found.warnings, settings)

    def problems_of_invalid(self, owner: str, body: object, limits: Limits = UNLIMITED) -> list[Problem]:
        """Return further problems of a body that the schema has refused, as far as its valid fields show them."""
        return problems_of_invalid(body, owner, limits, Inputs(self._records, self._store))

    def wake_worker(self) -> None:
        """Wake a worker, without waiting until the message is sent."""
        self._wake_ups.notify()

    def delete(self, owner: str, id: str) -> None:
        """Delete a finished job with its factors and history."""
        self._records.jobs.delete(owner, id)
        self.remove_files(id)

    def remove_files(self, id: str) -> None:
        """Remove the files of a job whose record was deleted."""
        self._store.remove_job(id)

    def axes(self, owner: str, id: str) -> Axes | None:
        """Return the labels that the tensor had when the job was submitted."""
        return self._records.tensors.axes_of_job(self._records.jobs.get(owner, id).id)

    def open_factors(self, owner: str, id: str, name: str) -> OpenFile:
        """Open `factors.npz`, `factors.mat` or `A1.npy` …; while the job runs, of its last checkpoint."""
        return self._open(owner, id, lambda files: files.open_factors(name))

    def open_published_factors(self, owner: str, id: str, name: str) -> OpenFile | None:
        """Open a file of factors as `open_factors` does if it is there as it is; None if it has to be made."""
        return self._open(owner, id, lambda files: files.open_published(name))

    def published_factors(self, owner: str, id: str) -> Manifest | None:
        """Return the manifest of the factors, of the last checkpoint while the job runs; None if not made yet."""
        return self._open(owner, id, lambda files: files.published())

    def export(self, owner: str, id: str, asked: Export) -> tuple[bytes, int | None]:
        """Return the factors in another format, and their iteration; while the job runs, of its last checkpoint."""
        return self._open(owner, id, lambda files: files.export(asked))

    def _open(self, owner: str, id: str, read: Callable[[JobFiles], Answer]) -> Answer:
        job = self._records.jobs.get(owner, id)
        try:
            return read(self._store.job(job.id))
        except NoFactorsYet as error:
            if job.state in TERMINAL:
                raise NotFound("factors", id) from error  # it ended before its first checkpoint
            raise

    def factors(self, owner: str, id: str) -> list[Array]:
        """Return the factors; while the job runs, those of its last checkpoint."""
        return self._open(owner, id, lambda files: files.factors())

    # Events and history: from the stream of a job, or from the store once it is settled

    def history(self, owner: str, id: str, after: int = 0, count: int | None = None) -> list[Progress]:
        """Return the progress of at most `count` iterations after `after`, by default of all."""
        pages = self.history_pages(owner, id, after, count or sys.maxsize)
        return [row for page in pages for row in page]

    def history_pages(self, owner: str, id: str, after: int = 0, count: int = sys.maxsize) -> Iterator[list[Progress]]:
        """Return the history in pages that are read one by one, so that a long history takes little memory."""
        if self._records.jobs.owner_of(id) != owner:
            raise NotFound("job", id)
        return self._pages(id, after, count)

    def _pages(self, id: str, after: int, count: int) -> Iterator[list[Progress]]:
        while count > 0:
            page = self._page(id, after, min(count, ROWS_PER_PAGE))
            if not page:
                return
            yield page
            after, count = page[-1].iteration, count - len(page)

    def _page(self, id: str, after: int, count: int) -> list[Progress]:
        if not self._is_settled(id):  # perhaps since the page before
            page = self._records.events.history(id, after, count)
            if parse_event_id(self._records.jobs.collected(id))[0] <= after:
                return page
            place = (after, 0)
            while found := self._store.job(id).collected_events(place, count):
                rows = [Progress.model_validate_json(event.payload) for event in found if event.kind == "progress"]
                if rows:
                    return rows
                place = parse_event_id(found[-1].id)
        return self._store.job(id).history(after, count)

    def events_after(self, id: str, event_id: str | None = None, count: int = 1000) -> list[Event]:
        """Return at most `count` events after the one with this id, in order. Fewer are all that are recorded.

        Events of a settled job, and the older ones of a long job, are read from the store. Their ids are the same.
        """
        files, place = self._store.job(id), parse_event_id(event_id or START)
        if not self._is_settled(id):
            live = self._records.events.after(id, event_id or START, count)
            if place >= parse_event_id(self._records.jobs.collected(id)):  # read afterwards: it was so before, too
                return live
            if found := files.collected_events(place, count):
                rest = count - len(found)
                return found + self.events_after(id, found[-1].id, rest) if rest else found
        rows = [
            Event(id=f"{row.iteration}-0", kind="progress", payload=row.model_dump_json())
            for row in files.history(place[0], count)
        ]
        changes = [change for change in files.changes() if parse_event_id(change.id) > place]
        merged = sorted([*rows, *changes], key=lambda event: parse_event_id(event.id))[:count]
        return [self._records.events.event(id, event.id, event.model_dump()) for event in merged]

    def has_ended(self, id: str) -> bool:
        """Return whether the job has succeeded, failed or been cancelled."""
        status = self._records.jobs.status(id)
        return status is not None and status.state in TERMINAL

    def preparing(self, id: str) -> Preparation | None:
        """Return how far the first sweep of the job is prepared; None if it is not being prepared."""
        return self._records.jobs.preparing(id)

    def _is_settled(self, id: str) -> bool:
        status = self._records.jobs.status(id)
        if status is None:
            raise NotFound("job", id)
        return status.settled

    # After the end

    def settle(self, id: str, until: float | None = None) -> None:
        """Move the history of an ended job to the store, and remove files that only the run needed.

        Parameters
        ----------
        id : str
            The job.
        until : float, optional
            Monotonic time at which to stop and leave the rest to the next call; by default a third of a lease from now.
        """
        jobs, files = self._records.jobs, self._store.job(id)
        until = time.monotonic() + self._settle_seconds if until is None else until
        status = jobs.status(id)
        if status is not None and not status.settled:  # else the stream may have expired
            last_id = f"{files.collected_length()}-0"
            while (piece := self._records.events.piece(id, last_id, EVENTS_PER_PIECE)) is not None:
                files.collect_history(piece.rows, piece.changes)
                last_id = piece.last_id
                if piece.rows and time.monotonic() > until:  # the next call continues after the stored iterations
                    log.info("job %s: its history is long and is moved to the store in several steps", id)
                    return
            files.complete_history()
        files.tidy()
        if not jobs.mark_settled(id, files.nbytes()):
            self.remove_files(id)

    def collect_long_streams(self) -> None:
        """Move the older events of running jobs with long streams to the store."""
        for id in self._records.jobs.with_long_streams(LIVE_EVENTS):
            files, events = self._store.job(id), self._records.events
            last_id = max(f"{files.collected_length()}-0", self._records.jobs.collected(id), key=parse_event_id)
            surplus = events.length(id) - KEPT_EVENTS
            while surplus > 0 and (piece := events.piece(id, last_id, min(surplus, EVENTS_PER_PIECE))) is not None:
                files.collect_history(piece.rows, piece.changes)
                last_id, surplus = piece.last_id, surplus - len(piece.rows) - len(piece.changes)
            if not self._records.jobs.mark_collected(id, last_id):
                self.discard_late_files(id)

    def settle_all(self) -> None:
        """Settle ended jobs that are not settled yet, for a third of a lease; the rest at the next call."""
        until = time.monotonic() + self._settle_seconds
        for id in self._records.jobs.unsettled():
            self.settle(id, until)
            if time.monotonic() > until:
                return

    def discard_late_files(self, id: str) -> None:
        """Remove files that an attempt wrote after it lost its claim, if the job has ended or was deleted."""
        status = self._records.jobs.status(id)
        if status is None:
            self.remove_files(id)
        elif status.state in TERMINAL:
            self.settle(id)

"""Apply the retention policy and remove leftover files, in a thread of the worker or once."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal

from sparse_ncp.worker.config import Configuration
from sparse_ncp.worker.errors import InUse, JobNotFinished, NotFound, StudyNotFinished, Unavailable
from sparse_ncp.worker.operations.jobs import JobOperations
from sparse_ncp.worker.operations.studies import StudyOperations
from sparse_ncp.worker.operations.tensors import TensorOperations
from sparse_ncp.worker.records.records import Records
from sparse_ncp.worker.store.local import open_store
from sparse_ncp.worker.store.store import Store

DAY_SECONDS = 86_400.0
# An attempt that lost its claim may write files of a deleted job, until it is killed long before this time.
LATE_WRITE_SECONDS = 3600.0
log = logging.getLogger("ncp.retention")


@dataclass(frozen=True)
class Removed:
    """Something that was removed, or that would be removed by a dry run."""

    kind: Literal["job", "study", "tensor", "file"]
    name: str
    owner: str | None
    nbytes: int

    def __str__(self) -> str:
        whose = f" of {self.owner}" if self.owner else ""
        return f"{self.kind} {self.name}{whose}, {self.nbytes:,} bytes"


class Cleanup:
    """One run of the cleanup."""

    def __init__(self, records: Records, store: Store, configuration: Configuration, dry_run: bool = False) -> None:
        self._records = records
        self._store = store
        self._jobs = JobOperations(records, store, configuration)
        self._studies = StudyOperations(records, store, configuration)
        self._tensors = TensorOperations(records, store)
        self._configuration = configuration
        self._dry_run = dry_run

    def run(self) -> Iterator[Removed]:
        """Remove what has expired, and yield each item. Jobs and studies go first, since they may be using tensors."""
        keep_jobs, keep_tensors = self._configuration.keep_jobs_days, self._configuration.keep_tensors_days
        expired = self._records.expired
        if keep_jobs is not None:
            moment = expired.milliseconds_ago(keep_jobs * DAY_SECONDS)
            for job in expired.jobs_ended_before(moment):
                removed = Removed("job", job.id, job.owner, self._store.job(job.id).nbytes())
                yield from self._remove(removed, partial(self._jobs.delete, job.owner, job.id))
            for study in expired.studies_ended_before(moment):
                removed = Removed("study", study.id, study.owner, self._studies.nbytes(study.id))
                yield from self._remove(removed, partial(self._studies.delete, study.owner, study.id))
        if keep_tensors is not None:
            moment = expired.milliseconds_ago(keep_tensors * DAY_SECONDS)
            for tensor in expired.tensors_unused_since(moment):
                with suppress(NotFound):
                    nbytes = self._records.tensors.get(tensor.owner, tensor.id).nbytes
                    removed = Removed("tensor", tensor.id, tensor.owner, nbytes)
                    yield from self._remove(removed, partial(self._tensors.delete, tensor.owner, tensor.id, moment))
        yield from self._finish_deletions()
        yield from self._remove_leftovers()

    def _remove(self, removed: Removed, delete: Callable[[], None]) -> Iterator[Removed]:
        """Delete an item and yield it, unless its owner has deleted it meanwhile or it is in use again."""
        if not self._dry_run:
            try:
                delete()
            except (NotFound, JobNotFinished, StudyNotFinished, InUse):
                return
        yield removed

    def _finish_deletions(self) -> Iterator[Removed]:
        """Remove files of deleted records whose deletion was interrupted."""
        discarded = self._records.expired.discarded()
        moment = self._records.expired.milliseconds_ago(LATE_WRITE_SECONDS)
        for kind, id in discarded:
            if kind == "study":
                if not self._dry_run:
                    self._studies.finish_deletion(id)
                continue
            item = self._store.find("job" if kind == "job" else "content", id)
            if item is None or (kind == "content" and not self._records.tensors.is_content_unused(id)):
                continue
            yield Removed("file", item.name, None, item.nbytes)
            if not self._dry_run:
                remove = self._jobs.remove_files if kind == "job" else self._tensors.remove_content
                remove(id)
        if not self._dry_run:
            self._records.expired.forget_discarded(moment)

    def _remove_leftovers(self) -> Iterator[Removed]:
        """Remove interrupted uploads, and files that killed processes left or wrote too late."""
        for item in self._store.abandoned_uploads():
            yield Removed("file", item.name, None, item.nbytes)
        if not self._dry_run:
            self._tensors.remove_abandoned_uploads()
        for item in self._store.interrupted_writes():
            yield Removed("file", item.name, None, item.nbytes)
            if not self._dry_run:
                self._store.remove_leftover(item)
        for id, item in self._store.superseded():
            status = self._records.jobs.status(id)
            if status is not None and status.settled:
                yield Removed("file", item.name, None, item.nbytes)
                if not self._dry_run:
                    self._jobs.discard_late_files(id)


class CleanupThread(threading.Thread):
    """Apply the retention policy at intervals while a worker runs. Several workers take turns."""

    def __init__(self, configuration: Configuration, worker: str) -> None:
        super().__init__(name="cleanup", daemon=True)
        self._records = Records.of(configuration)
        self._cleanup = Cleanup(self._records, open_store(configuration), configuration)
        self._pause = configuration.tidy_seconds
        self._worker = worker
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                if self._records.expired.acquire_cleanup_turn(self._worker, self._pause):
                    for removed in self._cleanup.run():
                        log.info("removed %s", removed)
                        if self._ended.is_set():
                            return
            except Unavailable as error:
                log.warning("cleanup was postponed: %s", error)
            except Exception:
                # The thread must survive: what could not be removed is tried again in the next round.
                log.exception("cleanup failed and will be repeated")
            self._ended.wait(self._pause)

    def end(self) -> None:
        """Stop the thread and wait for it."""
        self._ended.set()
        if self.is_alive():
            self.join()

"""Removing what has had its time: ended jobs and unused tensors if so configured, what the dead left in any case.

Every removal is the one a caller could have asked for: the record first, in one step with the question whether
anybody needs it, then the files. So it can run beside anything, any number of times.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from worker.configuration import Configuration
from worker.errors import InUse, NotFound, StillLive
from worker.files import remove
from worker.old_records import Old
from worker.records import Records
from worker.store import Store

DAY_SECONDS = 86_400.0
# A belated attempt may write to the folder of a deleted job for a while; its parent kills it long before this.
BELATED_SECONDS = 3600.0


@dataclass(frozen=True)
class Removed:
    """One thing that went, or would go."""

    kind: Literal["job", "tensor", "file"]
    name: str
    owner: str | None
    nbytes: int

    def __str__(self) -> str:
        whose = f" of {self.owner}" if self.owner else ""
        return f"{self.kind} {self.name}{whose}, {self.nbytes:,} bytes"


class Retention:
    def __init__(self, records: Records, store: Store, configuration: Configuration, dry_run: bool = False) -> None:
        self._records = records
        self._store = store
        self._configuration = configuration
        self._dry_run = dry_run

    def run(self) -> Iterator[Removed]:
        """Jobs first: a tensor that only they used goes in the same round, if its own time has come."""
        jobs, tensors = self._configuration.keep_jobs_days, self._configuration.keep_tensors_days
        if jobs is not None:
            for old in self._records.jobs_ended_before(self._records.milliseconds_ago(jobs * DAY_SECONDS)):
                yield from self._remove_job(old)
        if tensors is not None:
            moment = self._records.milliseconds_ago(tensors * DAY_SECONDS)
            for old in self._records.tensors_unused_since(moment):
                yield from self._remove_tensor(old, moment)
        yield from self._finish_deletions()
        yield from self._remove_files_of_the_dead()

    def _remove_job(self, old: Old) -> Iterator[Removed]:
        removed = Removed("job", old.id, old.owner, self._store.nbytes_of(self._store.job_path(old.id)))
        if not self._dry_run:
            try:
                self._records.delete_job(old.owner, old.id)
            except (NotFound, StillLive, InUse):
                return  # its owner was quicker, or a new job starts from it
            self._store.remove_job(old.id)
        yield removed

    def _remove_tensor(self, old: Old, moment: int) -> Iterator[Removed]:
        with suppress(NotFound, InUse):  # its owner was quicker, or somebody uses it again
            record = self._records.tensor(old.owner, old.id)
            if not self._dry_run:
                sha256 = self._records.delete_tensor(old.owner, old.id, moment)
                if sha256 is not None:
                    self._store.remove_tensor(sha256, self._records.content_unused)
            yield Removed("tensor", old.id, old.owner, record.nbytes)

    def _finish_deletions(self) -> Iterator[Removed]:
        """Files whose record was deleted by somebody who died before the files were."""
        discarded = self._records.discarded()
        moment = self._records.milliseconds_ago(BELATED_SECONDS)
        for kind, id in discarded:
            path = self._store.job_path(id) if kind == "job" else self._store.tensor_path(id)
            if not path.exists() or (kind == "content" and not self._records.content_unused(id)):
                continue
            yield self._file(path)
            if not self._dry_run:
                self._discard(kind, id)
        if not self._dry_run:
            self._records.forget_discarded(moment)

    def _discard(self, kind: str, id: str) -> None:
        if kind == "job":
            self._store.remove_job(id)
        else:
            self._store.remove_tensor(id, self._records.content_unused)

    def _remove_files_of_the_dead(self) -> Iterator[Removed]:
        for path in self._store.abandoned_uploads():
            yield self._file(path)
        if not self._dry_run:
            self._store.remove_abandoned_uploads(self._records.content_unused)
        for path in self._store.left_behind():
            yield self._file(path)
            if not self._dry_run:
                remove(path)

    def _file(self, path: Path) -> Removed:
        return Removed("file", str(path.relative_to(self._store.root)), None, self._store.nbytes_of(path))

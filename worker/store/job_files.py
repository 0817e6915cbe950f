"""The folder of one job: its checkpoints, factors, diagnostics and history."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from sparse_ncp.solvers import Diagnostics, InvalidInput, State
from sparse_ncp.solvers.runtime import Array
from sparse_ncp.worker.contract import Event, Export, JobResult, Progress, Source
from sparse_ncp.worker.errors import NoFactorsYet
from sparse_ncp.worker.store import history
from sparse_ncp.worker.store.exports import export, read_model
from sparse_ncp.worker.store.files import (
    atomic_write,
    fsync_folder,
    locked,
    private_folder,
    remove,
    size_of,
    temporary_file,
)
from sparse_ncp.worker.store.results import ALL, open_result, write_factors
from sparse_ncp.worker.store.store import JobFiles, OpenFile

# Checkpoints kept besides the last: a disk may spoil a file after it was written.
SPARE_CHECKPOINTS = 1
# How often to try to open factors that are removed before they can be opened.
TRIES = 20
# Of these, an ended job keeps its final factors alone.
SUPERSEDED = ("checkpoint-", "partial-", "factors-")
DIAGNOSTICS = "diagnostics.json"
SOURCE = "source.json"
CHECKPOINT = re.compile(r"checkpoint-(\d+)-(\d+)-([0-9a-f]{64})\.npz")


class JobFolder(JobFiles):
    """The files of a job in a folder. Each is written once, aside, and renamed; none is changed in place.

    With `deferred` none is flushed, and factors are compact: the store flushes those of many jobs at once.
    """

    def __init__(self, path: Path, job_id: str, deferred: bool = False) -> None:
        self._path = path
        self._id = job_id
        self._deferred = deferred

    def nbytes(self) -> int:
        return size_of(self._path)

    # Checkpoints

    def save_checkpoint(self, fence: int, state: State) -> str:
        """Save a state under attempt, iteration and digest: attempts never collide, a damaged file is found out."""
        return self.save_study_checkpoint(fence, state.iteration, state.to_bytes())

    def save_study_checkpoint(self, fence: int, place: int, content: bytes) -> str:
        name = f"checkpoint-{fence}-{place}-{sha256(content).hexdigest()}.npz"
        atomic_write(private_folder(self._path) / name, content)
        return name

    def study_checkpoint(self, name: str) -> bytes | None:
        found = CHECKPOINT.fullmatch(name)
        try:
            content = (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        return content if found is not None and sha256(content).hexdigest() == found[3] else None

    def load_checkpoint(self, name: str) -> State | None:
        """The state; None if it is gone, damaged or of another version. A run without it comes to the same bits."""
        content = self.study_checkpoint(name)
        try:
            return None if content is None else State.from_bytes(content)
        except InvalidInput:
            return None

    def last_checkpoint(self, name: str) -> State | None:
        """The one called `name`, or if it is damaged the furthest that is whole: attempts agree bit for bit."""
        names = [name, *(other for other in self._checkpoints() if other != name)]
        return next((state for state in map(self.load_checkpoint, names) if state is not None), None)

    def drop_checkpoints(self, keep: str) -> None:
        others = [name for name in self._checkpoints() if name != keep]
        for name in others[SPARE_CHECKPOINTS:]:
            (self._path / name).unlink(missing_ok=True)
        for folder in self._path.glob("partial-*"):
            if int(folder.name.removeprefix("partial-")) < _iteration(keep):
                remove(folder)

    def tidy(self) -> None:
        """Remove what only a run needs. A job without final factors keeps its last checkpoint."""
        left = [path for path in self._path.glob("*") if path.name == "initial" or path.name.startswith(".")]
        for path in [*left, *self.superseded()]:
            remove(path)

    def superseded(self) -> list[Path]:
        """What lies beside the final factors: checkpoints, their factors, and the factors of other attempts."""
        final = self._final()
        if final is None:
            return []
        return [path for path in self._path.glob("*") if path != final and path.name.startswith(SUPERSEDED)]

    def settling(self) -> AbstractContextManager[object]:
        """A lock: a second one would take the first one's unfinished files for those of a dead attempt."""
        return locked(private_folder(self._path))

    def _checkpoints(self) -> list[str]:
        """Their names, the furthest first. Attempts agree bit for bit, so it does not matter whose it is."""
        names = [path.name for path in self._path.glob("checkpoint-*.npz") if CHECKPOINT.fullmatch(path.name)]
        return sorted(names, key=_iteration, reverse=True)

    # Factors

    def save_source(self, source: Source) -> None:
        path = private_folder(self._path) / SOURCE
        if not path.exists():
            atomic_write(path, source.model_dump_json().encode(), flush=not self._deferred)

    def _source(self) -> Source | None:
        """None for a job that an older version has run."""
        try:
            return Source.model_validate_json((self._path / SOURCE).read_bytes())
        except FileNotFoundError:
            return None

    def save_factors(self, fence: int, state: State, result: JobResult) -> None:
        private_folder(self._path)
        write_factors(self._path / f"factors-{fence}", state, result, self._source(), compact=self._deferred)

    def open_factors(self, name: str) -> OpenFile:
        """Open one of the files. If it is removed between finding and opening it, find it again."""
        for _ in range(TRIES):
            with suppress(FileNotFoundError):
                return open_result(self._factors_folder(), name)
        raise NoFactorsYet(self._id)

    def export(self, asked: Export) -> OpenFile:
        opened = self.open_factors(ALL)
        with opened.file as file:
            content = export(read_model(file), asked)
        try:
            made = temporary_file(self._path, content)
        except FileNotFoundError as error:
            raise NoFactorsYet(self._id) from error  # the job was deleted meanwhile
        return OpenFile(made, sha256(content).hexdigest(), len(content), opened.iteration)

    def factors(self) -> list[Array]:
        with self.open_factors(ALL).file as file:
            return list(read_model(file).factors)

    def _factors_folder(self) -> Path:
        # Once more at the end: the job may have ended, and its checkpoints gone, in between.
        folder = self._final() or self._partial() or self._final()
        if folder is None:
            raise NoFactorsYet(self._id)
        return folder

    def _final(self) -> Path | None:
        """The folder of the final factors, of the last attempt that wrote any."""
        finals = self._path.glob("factors-*")
        return max(finals, key=lambda folder: int(folder.name.removeprefix("factors-")), default=None)

    def _partial(self) -> Path | None:
        """The factors of the last checkpoint, written at the first request. FileNotFoundError if it is removed then."""
        names = self._checkpoints()
        for name in names:
            partial = self._path / f"partial-{_iteration(name)}"
            if partial.is_dir():
                return partial
            state = self.load_checkpoint(name)
            if state is not None:
                write_factors(partial, state, source=self._source())
                return self._unless_ended(partial)
        for name in names:
            (self._path / name).stat()
        return None

    def _unless_ended(self, partial: Path) -> Path:
        """Remove it if the job has ended meanwhile, and was tidied before this was there."""
        final = self._final()
        if final is not None:
            remove(partial)
        return final or partial

    # Diagnostics

    def save_diagnostics(self, diagnostics: Diagnostics) -> None:
        content = json.dumps(asdict(diagnostics)).encode()
        atomic_write(private_folder(self._path) / DIAGNOSTICS, content, flush=not self._deferred)

    def diagnostics(self) -> bytes | None:
        try:
            return (self._path / DIAGNOSTICS).read_bytes()
        except FileNotFoundError:
            return None

    # The factors to start from

    def freeze_initial(self, other: JobFiles) -> list[Array]:
        """The initial factors, copied once: a later attempt starts from the same."""
        mine = private_folder(self._path) / "initial"
        if not mine.is_dir():
            with other.open_factors(ALL).file as file:
                content = file.read()
            aside = private_folder(self._path / f".initial.{os.getpid()}")
            atomic_write(aside / ALL, content)
            aside.rename(mine)
            fsync_folder(self._path)
        with (mine / ALL).open("rb") as file:
            return list(read_model(file).factors)

    # History

    def collected_length(self) -> int:
        return history.collected_length(self._path)

    def collect_history(self, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
        history.collect(self._path, rows, changes)

    def complete_history(self) -> None:
        history.complete(self._path)

    def save_history(self, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
        history.write(private_folder(self._path), rows, changes, flush=not self._deferred)

    def history(self, after: int = 0, count: int | None = None) -> list[Progress]:
        return history.read_history(self._path, after, count)

    def changes(self) -> list[Event]:
        return history.read_changes(self._path)


def _iteration(name: str) -> int:
    found = CHECKPOINT.fullmatch(name)
    return int(found[2]) if found else -1

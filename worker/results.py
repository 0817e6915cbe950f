"""The folder of one job: its checkpoints, its factors, its history."""

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from solvers import InvalidInput, State
from solvers.arrays import Array
from worker.contract import Event, JobResult, Progress
from worker.errors import NotYet
from worker.factor_files import ALL, FactorsFile, find, read_factors, write_factors
from worker.files import flush_folder, folder_bytes, private_folder, remove, write_whole
from worker.history_files import read_changes, read_history, write_history

Answer = TypeVar("Answer")

# Checkpoints kept besides the last: a disk may spoil a file after it was written.
SPARE_CHECKPOINTS = 1
# How often to look for factors that vanish under a reader's hands.
LOOKS = 20
CHECKPOINT = re.compile(r"checkpoint-(\d+)-(\d+)-([0-9a-f]{64})\.npz")


class JobFolder:
    """Every file is written once, aside and renamed; nothing is ever changed in place."""

    def __init__(self, path: Path, job_id: str) -> None:
        self._path = path
        self._id = job_id

    def nbytes(self) -> int:
        """What the job takes of the disk."""
        return folder_bytes(self._path)

    # Checkpoints

    def save_checkpoint(self, fence: int, state: State) -> str:
        """Its name carries attempt, iteration and digest: a reader can tell a damaged file, attempts never collide."""
        content = state.to_bytes()
        name = f"checkpoint-{fence}-{state.iteration}-{sha256(content).hexdigest()}.npz"
        write_whole(private_folder(self._path) / name, content)
        return name

    def load_checkpoint(self, name: str) -> State | None:
        """None if it is gone, damaged or of another version: the run then begins anew and comes to the same bits."""
        found = CHECKPOINT.fullmatch(name)
        try:
            content = (self._path / name).read_bytes()
        except FileNotFoundError:
            return None
        if found is None or sha256(content).hexdigest() != found[3]:
            return None
        try:
            return State.from_bytes(content)
        except InvalidInput:
            return None

    def last_checkpoint(self, name: str) -> State | None:
        """The one called `name`, or if it is damaged the furthest that is whole: attempts agree bit for bit."""
        names = [name, *(other for other in self._checkpoints() if other != name)]
        return next((state for state in map(self.load_checkpoint, names) if state is not None), None)

    def drop_checkpoints(self, keep: str | None) -> None:
        """Remove all but one and a spare; called once the record points to that one. None removes all."""
        kept = None if keep is None else _iteration(keep)
        others = [name for name in self._checkpoints() if name != keep]
        for name in others[0 if keep is None else SPARE_CHECKPOINTS :]:
            (self._path / name).unlink(missing_ok=True)
        for folder in self._path.glob("partial-*"):
            if kept is None or int(folder.name.removeprefix("partial-")) < kept:
                remove(folder)

    def tidy(self) -> None:
        """After the end: what only a run needs goes, and what killed or belated attempts left.

        A job without final factors keeps its last checkpoint's.
        """
        final = self._final()
        if final is not None:
            self.drop_checkpoints(keep=None)
        left = [path for path in self._path.glob("*") if path.name == "initial" or path.name.startswith(".")]
        for path in [*left, *(older for older in self._path.glob("factors-*") if older != final)]:
            remove(path)

    @contextmanager
    def settling(self) -> Iterator[None]:
        """One at a time: a second would take the first one's unfinished files for those of the dead."""
        folder = os.open(private_folder(self._path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _checkpoints(self) -> list[str]:
        """The furthest first. Attempts agree bit for bit, so it does not matter whose it is."""
        names = [path.name for path in self._path.glob("checkpoint-*.npz") if CHECKPOINT.fullmatch(path.name)]
        return sorted(names, key=_iteration, reverse=True)

    # Factors

    def save_factors(self, fence: int, state: State, result: JobResult) -> None:
        """The final factors, as this attempt found them; a later attempt's count instead."""
        private_folder(self._path)
        write_factors(self._path / f"factors-{fence}", state, result)

    def with_factors(self, name: str, use: Callable[[FactorsFile], Answer]) -> Answer:
        """Let `use` open `factors.npz`, `factors.mat` or `A1.npy` …: of the finished job, else of its last checkpoint.

        The worker, or a delete, may take the files away between finding and opening them: then look again.
        """
        for _ in range(LOOKS):
            with suppress(FileNotFoundError):
                return use(find(self._factors_folder(), name))
        raise NotYet(self._id)

    def factors(self) -> list[Array]:
        return self.with_factors(ALL, lambda file: read_factors(file.path))

    def _factors_folder(self) -> Path:
        # Asked again at the end: the job may have ended, and its checkpoints gone, while we looked.
        folder = self._final() or self._partial() or self._final()
        if folder is None:
            raise NotYet(self._id)
        return folder

    def _final(self) -> Path | None:
        """The last attempt's."""
        finals = self._path.glob("factors-*")
        return max(finals, key=lambda folder: int(folder.name.removeprefix("factors-")), default=None)

    def _partial(self) -> Path | None:
        """The last checkpoint's, written when they are first asked for. FileNotFoundError if it vanishes meanwhile."""
        names = self._checkpoints()
        for name in names:
            partial = self._path / f"partial-{_iteration(name)}"
            if partial.is_dir():
                return partial
            state = self.load_checkpoint(name)
            if state is not None:
                write_factors(partial, state)
                return self._unless_ended(partial)
        for name in names:
            (self._path / name).stat()
        return None

    def _unless_ended(self, partial: Path) -> Path:
        """If the job has ended meanwhile, what its tidying could not see yet goes."""
        final = self._final()
        if final is not None:
            remove(partial)
        return final or partial

    # The factors to start from

    def freeze_initial(self, other: "JobFolder") -> list[Array]:
        """The other job's factors as they are now: a later attempt starts from the same, however far that job got."""
        mine = private_folder(self._path) / "initial"
        if not mine.is_dir():
            content = other.with_factors(ALL, lambda file: file.path.read_bytes())
            aside = private_folder(self._path / f".initial.{os.getpid()}")
            write_whole(aside / ALL, content)
            aside.rename(mine)
            flush_folder(self._path)
        return read_factors(mine / ALL)

    # History

    def save_history(self, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
        """What the event stream held: the numbers of every iteration, and the changes of state with their ids."""
        write_history(private_folder(self._path), rows, changes)

    def history(self, after: int = 0, count: int | None = None) -> list[Progress]:
        """The iterations after `after`, of a job that has ended."""
        return read_history(self._path, after, count)

    def changes(self) -> list[Event]:
        return read_changes(self._path)


def _iteration(name: str) -> int:
    found = CHECKPOINT.fullmatch(name)
    return int(found[2]) if found else -1

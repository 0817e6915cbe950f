"""What any store of arrays and files offers. It hands out arrays and open files, never paths."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol, TypeAlias

from numpy.typing import NDArray

from sparse_ncp.solvers import Diagnostics, State
from sparse_ncp.solvers.runtime import Array, OnProgress, Scan
from sparse_ncp.worker.contract import Event, Export, JobResult, Progress, Source
from sparse_ncp.worker.store.npy_validation import Facts

# Whether no record names the bytes with this SHA-256.
IsUnused: TypeAlias = Callable[[str], bool]


class OpenFile(NamedTuple):
    """A stored file, open for reading: it stays whole for its reader, even if it is replaced or removed meanwhile."""

    file: BinaryIO
    sha256: str
    nbytes: int
    iteration: int | None = None  # that the factors in it are of


class StoredItem(NamedTuple):
    """A file or folder in the store: a name for people, and its size.

    `sha256` is given for the marker of an upload that was kept: bytes that may have no record.
    """

    name: str
    nbytes: int
    sha256: str | None = None


class Upload(Protocol):
    """One upload, a context: whatever was not kept when it ends is gone.

    The tensor's record must be added before it ends: until then nobody else may remove the same content.
    """

    nbytes: int

    @property
    def sha256(self) -> str: ...

    def write(self, chunk: bytes | memoryview) -> None: ...

    def keep(self, expected_sha256: str | None = None, threads: int | None = None) -> tuple[str, Facts]:
        """Check the file and make it durable under its SHA-256. BadTensor if it cannot be decomposed."""

    def discard(self, is_unused: IsUnused) -> None:
        """Leave nothing of an upload that was kept, but whose record was refused."""

    def __enter__(self) -> "Upload": ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class JobFiles(Protocol):
    """The checkpoints, factors and history of one job."""

    def nbytes(self) -> int:
        """What the job takes of the disk."""

    def save_checkpoint(self, fence: int, state: State) -> str:
        """Its name, for the record."""

    def save_study_checkpoint(self, fence: int, place: int, content: bytes) -> str:
        """The same for what is no run: its state as bytes, and a place that grows."""

    def study_checkpoint(self, name: str) -> bytes | None:
        """None if it is gone or damaged."""

    def last_checkpoint(self, name: str) -> State | None:
        """The one called `name`; if it is damaged, the furthest that is whole; None if there is none."""

    def drop_checkpoints(self, keep: str) -> None:
        """Remove all but one and a spare, once the record points to that one."""

    def save_source(self, source: Source) -> None:
        """What the job runs on, for the files of its factors: saved before any checkpoint or factors."""

    def save_factors(self, fence: int, state: State, result: JobResult) -> None:
        """The final factors, as this attempt found them; a later attempt's count instead."""

    def save_diagnostics(self, diagnostics: Diagnostics) -> None:
        """Every attempt finds the same: saved before the factors, so that a job that has ended has them."""

    def diagnostics(self) -> bytes | None:
        """As JSON; None if there are none."""

    def open_factors(self, name: str) -> OpenFile:
        """Open `factors.npz`, `factors.mat` or `A1.npy` …: of the finished job, else of its last checkpoint.

        NoFactorsYet before the first checkpoint, NotFound for a file that no job has.
        """

    def export(self, asked: Export) -> OpenFile:
        """The same factors in a file that is made now, and gone once it is closed."""

    def factors(self) -> list[Array]: ...

    def freeze_initial(self, other: "JobFiles") -> list[Array]:
        """The other job's factors as they are now; every later call gives the same, however far that job gets."""

    def collected_length(self) -> int:
        """How many iterations of the event stream were collected by `collect_history`."""

    def collect_history(self, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
        """Add a piece of the event stream: the numbers of the next iterations, and changes of state with their ids."""

    def complete_history(self) -> None:
        """What was collected is all: `history` and `changes` give it from now on."""

    def save_history(self, rows: Sequence[Progress], changes: Sequence[Event]) -> None:
        """Store a short event stream at once."""

    def history(self, after: int = 0, count: int | None = None) -> list[Progress]:
        """At most `count` iterations after `after`, of a job that has ended."""

    def changes(self) -> list[Event]: ...

    def settling(self) -> AbstractContextManager[object]:
        """Held by whoever moves the history here and removes what only a run needs: one at a time."""

    def tidy(self) -> None:
        """Remove what only a run needs, and what killed or belated attempts left."""


class Store(Protocol):
    """The arrays and files of one server: tensors under their SHA-256, and the files of every job."""

    def upload(self) -> Upload: ...

    def open_tensor(self, sha256: str) -> NDArray[Any]:
        """A read-only array, whose entries are read when they are used."""

    def open_content(self, sha256: str) -> OpenFile:
        """The `.npy` file as it was uploaded."""

    def summary(self, sha256: str) -> bytes | None:
        """What `save_summary` was given for this tensor; None if there is none, or it is damaged."""

    def save_summary(self, sha256: str, content: bytes) -> None:
        """Keep what was computed of a tensor for as long as the tensor itself. Nothing if that is gone."""

    def verify_tensor(self, sha256: str, threads: int | None = None, on_progress: OnProgress = ...) -> Scan | None:
        """CorruptFile if the bytes are no longer those that were uploaded. What a scan finds in them, if it was made.

        `on_progress` is called with the fraction done.
        """

    def remove_tensor(self, sha256: str, is_unused: IsUnused) -> bool:
        """Remove the bytes unless a record names them: `is_unused` is asked while no upload can be kept."""

    def job(self, job_id: str) -> JobFiles: ...

    def deferred(self) -> "Store":
        """The same store for many small jobs: what is written to their files lasts once `flush` has returned."""

    def flush(self) -> None:
        """Make durable whatever was written."""

    def remove_job(self, job_id: str) -> None:
        """Remove the files of a job whose record is gone."""

    def find(self, kind: Literal["job", "content"], id: str) -> StoredItem | None:
        """The files of a job, or the bytes of a tensor by their SHA-256; None if there are none."""

    def abandoned_uploads(self) -> list[StoredItem]:
        """Uploads whose writer is gone, and markers of uploads that were kept without a record."""

    def interrupted_writes(self) -> list[StoredItem]:
        """What somebody who was killed was writing or removing in the files of jobs."""

    def superseded(self) -> list[tuple[str, StoredItem]]:
        """What lies beside the final factors of a job, with the job's id: late files, if the job has ended."""

    def remove_leftover(self, item: StoredItem) -> None:
        """Remove something that one of the two methods above has named."""

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int:
        """The size of the disk."""

    def check_writable(self) -> None:
        """StoreFull or StoreUnavailable if nothing can be written just now."""

    def stored_bytes(self) -> Mapping[str, int]:
        """Bytes of tensors, jobs and uploads. Asks for the size of every file: not for every request."""

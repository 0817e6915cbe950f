"""A job on the server: watch it, wait for it, take its factors."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ncp_client.http.connection import Connection
from ncp_client.http.download import copy, download
from ncp_client.http.errors import JobFailed, NcpError
from ncp_client.http.events import follow_events
from ncp_client.http.record import RunningRecord

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ncp_client.result import Result

NEXT = re.compile(r'rel="?next')
FORMATS = ("npz", "mat", "csv", "nc")


class Progress(NamedTuple):
    """The numbers of one iteration."""

    iteration: int
    objective: float
    relative_error: float
    fit: float
    seconds: float
    phase: str = "exact"
    start: int | None = None

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Progress":
        """From the server's JSON, which may have fields that this client does not know yet."""
        return cls(**{name: content[name] for name in cls._fields if name in content})


class Preparation(NamedTuple):
    """What a job does before its first sweep has ended, and what share of that is done."""

    step: str
    share: float

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Preparation":
        return cls(str(content["step"]), float(content["share"]))


class History(NamedTuple):
    """The numbers of all iterations, one array each; `phase` and `start` are lists."""

    iteration: "NDArray[np.int64]"
    objective: "NDArray[np.float64]"
    relative_error: "NDArray[np.float64]"
    fit: "NDArray[np.float64]"
    seconds: "NDArray[np.float64]"
    phase: list[str]
    start: list[int | None]


class Job(RunningRecord):
    """A job. `record` is all that the server last told of it; `refresh` asks again."""

    collection = "jobs"

    def __init__(self, connection: Connection, record: dict[str, Any]) -> None:
        super().__init__(connection, record)
        self._result: Result | None = None

    @property
    def progress(self) -> Progress | None:
        """The last iteration in the record."""
        return Progress.of(self.record["progress"]) if self.record["progress"] else None

    @property
    def preparation(self) -> Preparation | None:
        """How far its first sweep is being prepared, where that takes a while; None at any other time."""
        found = self.record.get("preparing")  # a server of before does not tell
        return Preparation.of(found) if found else None

    @property
    def reference(self) -> dict[str, str]:
        """How another job names this one."""
        return {"job_id": self.id}

    def rename(self, name: str | None) -> None:
        """Give it another name, or none."""
        self.record = self._connection.call("PATCH", self._path, body={"name": name}, repeatable=True).json()

    def watch(
        self, timeout: float | None = None, on_preparation: Callable[[Preparation], object] = lambda preparation: None
    ) -> Iterator[Progress]:
        """Every iteration once and in order, from the first to the last, whatever happens to connection and server.

        `on_preparation` hears now and then how far the first sweep is, while that takes a while.

        The record follows: when the iterator ends, so has the job.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        late = self.ended  # then the record is the last word, and the events are history
        for event in follow_events(self._connection, f"{self._path}/events", deadline):
            if event.kind == "end":
                self.record = event.content
            elif event.kind == "state" and not late:
                self.record = {**self.record, **event.content}
            elif event.kind == "progress":
                if not late:
                    self.record = {**self.record, "progress": event.content, "preparing": None}
                yield Progress.of(event.content)
            elif event.kind == "preparing" and not late:
                self.record = {**self.record, "phase": "preparing", "preparing": event.content}
                on_preparation(Preparation.of(event.content))
        if not self.ended:
            self.refresh()

    def diagnostics(self) -> dict[str, Any]:
        """Residual and leverage of every index, congruence of components, core consistency; once the job has ended."""
        found: dict[str, Any] = self._connection.call("GET", f"{self._path}/diagnostics").json()
        return found

    def history(self, after: int = 0) -> History:
        """The numbers of every iteration after `after`."""
        import numpy as np

        rows: list[Progress] = []
        page, more = [], True
        while more:
            answer = self._connection.call("GET", f"{self._path}/history", params={"after": after})
            page = [Progress.of(row) for row in answer.json()]
            rows += page
            more = bool(page) and NEXT.search(answer.headers.get("link", "")) is not None
            after = rows[-1].iteration if rows else after
        columns = {name: [getattr(row, name) for row in rows] for name in Progress._fields}
        arrays = {name: np.array(columns[name], np.float64) for name in History._fields[1:5]}
        return History(
            np.array(columns["iteration"], np.int64), **arrays, phase=columns["phase"], start=columns["start"]
        )

    def factors(self) -> "list[NDArray[Any]]":
        """One array per mode, length × rank; while the job runs, those of its last checkpoint."""
        import numpy as np

        with tempfile.TemporaryFile() as file:
            copy(self._connection, f"{self._path}/factors", file)
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                names = sorted((name for name in arrays if re.fullmatch(r"A\d+", name)), key=lambda name: int(name[1:]))
                return [arrays[name] for name in names]

    def download(
        self,
        path: "str | PathLike[str]",
        format: str | None = None,
        mode: int | None = None,
        scale: str | None = None,
        order: str | None = None,
        zeros: str | None = None,
    ) -> None:
        """The factors as a file, whole or not at all, in the format of its ending; one mode as `.npy` or `.csv`."""
        wanted = {"scale": scale, "order": order, "zeros": zeros}
        found = format or file_format(path, mode)
        if found == "npy":
            download(self._connection, f"{self._path}/factors/{mode}", path, **wanted)
        else:
            download(self._connection, f"{self._path}/factors", path, format=found, mode=mode, **wanted)

    @property
    def result(self) -> "Result":
        """The result of an ended job. JobFailed if there is none; NcpError if it has not ended."""
        from ncp_client.result import Result

        if not self.ended:
            raise NcpError(f"job {self.id} is {self.state}: call wait() first, or factors() for what there is")
        if self.record["result"] is None:
            raise JobFailed(self.record)
        if self._result is None:
            axes = self._connection.get(f"{self._path}/axes") or None
            self._result = Result(self.record, self.factors(), axes)
        return self._result

    def _summary(self) -> str:
        return self.state


def file_format(path: "str | PathLike[str]", mode: int | None = None) -> str:
    """The format that a file's ending tells; tables of all modes come in an archive."""
    ending = PurePath(path).suffix.removeprefix(".").lower()
    if mode is None and ending in ("csv", "npy"):
        raise ValueError(f"{path}: {ending} holds one mode; name a mode, or a file that ends in .npz or .zip")
    found = {"": "npz" if mode is None else "npy", "zip": "csv"}.get(ending, ending)
    if found not in (*FORMATS, "npy"):
        raise ValueError(f"{path}: there is no format {ending}; name a file that ends in .npz, .mat, .zip or .nc")
    return found

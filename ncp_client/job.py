"""A job on the server: watch it, wait for it, get its factors."""

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ncp_client.history import History, Preparation, Progress
from ncp_client.http.connection import Connection
from ncp_client.http.download import copy, download
from ncp_client.http.errors import JobFailed, NcpError
from ncp_client.http.events import follow_events
from ncp_client.http.record import RunningRecord

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ncp_client.result import Result

NEXT = re.compile(r'rel="?next')
FORMATS = ("npz", "mat", "csv", "nc")


class Job(RunningRecord):
    """A job on the server, as returned by `Client.submit` and `Client.job`.

    Attributes
    ----------
    record : dict
        The last record received from the server: state, settings, progress, result or error. `refresh` updates it.

    Examples
    --------
    >>> job = client.submit(client.upload(array), rank=2)
    >>> job.wait().state
    'succeeded'
    >>> [factor.shape for factor in job.factors()]
    [(8, 2), (7, 2), (6, 2)]
    """

    collection = "jobs"

    def __init__(self, connection: Connection, record: dict[str, Any]) -> None:
        super().__init__(connection, record)
        self._result: Result | None = None

    @property
    def progress(self) -> Progress | None:
        """Last iteration in the record, or None before the first."""
        return Progress.of(self.record["progress"]) if self.record["progress"] else None

    @property
    def preparation(self) -> Preparation | None:
        """Current step before the first sweep, or None if it takes less than half a second or is over."""
        found = self.record.get("preparing")
        return Preparation.of(found) if found else None

    @property
    def reference(self) -> dict[str, str]:
        """Reference to this job in the fields of another."""
        return {"job_id": self.id}

    def rename(self, name: str | None) -> None:
        """Change the name.

        Parameters
        ----------
        name : str or None
            The new name; None removes it.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2)
        >>> job.rename("second")
        >>> job.name
        'second'
        """
        self.record = self._connection.call("PATCH", self._path, body={"name": name}, repeatable=True).json()

    def watch(
        self,
        timeout: float | None = None,
        on_preparation: Callable[[Preparation], object] = lambda preparation: None,
        on_pause: Callable[[str], object] = lambda message: None,
    ) -> Iterator[Progress]:
        """Iterate over the iterations of the job until it has ended.

        Each iteration is yielded once and in order, from the first on, even if the connection is lost or the server is
        restarted. The record is kept up to date meanwhile.

        Parameters
        ----------
        timeout : float, optional
            Longest time to watch, in seconds.
        on_preparation : callable, optional
            Called with a `Preparation` while the first sweep is being prepared.
        on_pause : callable, optional
            Called with a message when the job gives way to other users; it goes on by itself.

        Yields
        ------
        Progress
            Numbers of one iteration.

        Raises
        ------
        TimeoutError
            If the job has not ended in time. It continues on the server.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2, method="hals", stop={"max_iterations": 5})
        >>> errors = [row.relative_error for row in job.watch()]
        >>> job.state
        'succeeded'
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        late = self.ended  # the record is final, and the events are older than it
        for event in follow_events(self._connection, f"{self._path}/events", deadline):
            if event.kind == "end":
                self.record = event.content
            elif event.kind == "state" and not late:
                self.record = {**self.record, "paused": None, **event.content}
                if self.record["paused"]:
                    on_pause(self.record["paused"]["message"])
            elif event.kind == "progress":
                if not late:
                    self.record = {**self.record, "progress": event.content, "preparing": None}
                yield Progress.of(event.content)
            elif event.kind == "preparing" and not late:
                phase = "resampling" if event.content["step"] == "resample" else "preparing"
                self.record = {**self.record, "phase": phase, "preparing": event.content}
                on_preparation(Preparation.of(event.content))
        if not self.ended:
            self.refresh()

    def diagnostics(self) -> dict[str, Any]:
        """Return the diagnostics of the model of an ended job.

        Returns
        -------
        dict
            Residual and leverage of every index, congruence of the components, core consistency, outlying samples.

        Raises
        ------
        NotFound
            If the job has not ended, or was submitted with ``diagnose=False``.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2).wait()
        >>> len(job.diagnostics()["modes"])
        3
        """
        found: dict[str, Any] = self._connection.call("GET", f"{self._path}/diagnostics").json()
        return found

    def stability(self) -> dict[str, Any]:
        """Return the stability of the components and loadings of an ended job.

        Returns
        -------
        dict
            ``replicability`` and ``split_half`` of every component, and in ``modes`` for every mode ``lower`` and
            ``upper`` bounds of its loadings, one row per index; None for the mode of the samples.

        Raises
        ------
        NotFound
            If the job has ended without: submit it with ``stability=True``, or start a study of kind stability.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2, stability=True, resamples=5).wait()
        >>> len(job.stability()["replicability"])
        2
        """
        found: dict[str, Any] = self._connection.call("GET", f"{self._path}/stability").json()
        return found

    def compare(self, other: "Job | str") -> dict[str, Any]:
        """Compare the model with that of another job, such as the fit before some samples were excluded.

        Parameters
        ----------
        other : Job or str
            The other job or its id. Its tensor must have the same shape.

        Returns
        -------
        dict
            ``components`` has the pairs that match best, with their ``congruence`` and weights; ``relative_error`` and
            ``core_consistency`` are of this job, ``other_relative_error`` and ``other_core_consistency`` of the other;
            ``left_out`` has the scores of indices that only one of the jobs has fitted.

        Examples
        --------
        >>> tensor = client.upload(array)
        >>> before = client.submit(tensor, rank=2).wait()
        >>> after = client.submit(tensor, rank=2, exclude={1: [3]}).wait()
        >>> [sample["index"] for sample in after.compare(before)["left_out"]]
        [3]
        """
        params = {"other": other if isinstance(other, str) else other.id}
        found: dict[str, Any] = self._connection.call("GET", f"{self._path}/comparison", params=params).json()
        return found

    def history(self, after: int = 0) -> History:
        """Return the numbers of all iterations so far.

        Parameters
        ----------
        after : int, default 0
            Only iterations after this one.

        Returns
        -------
        History
            One array for each number.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2, method="hals", stop={"max_iterations": 5, "tolerance": 0})
        >>> job.wait().history(after=3).iteration
        array([4, 5])
        """
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
        """Return the factors; while the job is running, those of its last checkpoint.

        Returns
        -------
        list of ndarray
            One array of shape (length, rank) per mode.

        Raises
        ------
        Refused
            If there is no checkpoint yet.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2).wait()
        >>> [factor.shape for factor in job.factors()]
        [(8, 2), (7, 2), (6, 2)]
        """
        return self._stored()[0]

    def _stored(self) -> "tuple[list[NDArray[Any]], list[tuple[NDArray[Any], NDArray[Any]] | None]]":
        """Return the factors, and the lower and upper bounds of each where the stability was assessed."""
        from ncp_client.formats.npz import read_npz

        with tempfile.TemporaryFile() as file:
            copy(self._connection, f"{self._path}/factors", file)
            file.seek(0)
            arrays = read_npz(file)
        names = sorted((name for name in arrays if re.fullmatch(r"A\d+", name)), key=lambda name: int(name[1:]))
        bands = [
            (arrays[f"lower_{name}"], arrays[f"upper_{name}"]) if f"lower_{name}" in arrays else None for name in names
        ]
        return [arrays[name] for name in names], bands

    def download(
        self,
        path: "str | PathLike[str]",
        format: str | None = None,
        mode: int | None = None,
        scale: str | None = None,
        order: str | None = None,
        zeros: str | None = None,
    ) -> None:
        """Download the factors to a file, which appears only when it is complete.

        Parameters
        ----------
        path : str or path
            The file to write. Without `format` its extension decides: `.npz`, `.mat`, `.nc`, or `.zip` with one
            table per mode; `.npy` and `.csv` hold a single mode.
        format : {"npz", "mat", "csv", "nc"}, optional
            Format of the file.
        mode : int, optional
            Only the factor of this mode, counted from 1.
        scale : {"none", "unit", "max"}, optional
            How the columns are scaled: as computed, to norm 1 or to maximum 1.
        order : {"none", "share"}, optional
            Order of the components: as computed, or the largest first.
        zeros : {"keep", "drop"}, optional
            Keep or drop components that vanished.

        Examples
        --------
        >>> job = client.submit(client.upload(array), rank=2).wait()
        >>> job.download("factors.npz", scale="unit")
        >>> np.load("factors.npz")["A1"].shape
        (8, 2)
        """
        wanted = {"scale": scale, "order": order, "zeros": zeros}
        found = format or file_format(path, mode)
        if found == "npy":
            download(self._connection, f"{self._path}/factors/{mode}", path, **wanted)
        else:
            download(self._connection, f"{self._path}/factors", path, format=found, mode=mode, **wanted)

    @property
    def result(self) -> "Result":
        """Result of an ended job.

        Raises
        ------
        JobFailed
            If the job ended without a result.
        NcpError
            If the job has not ended.
        """
        from ncp_client.result import Result

        if not self.ended:
            raise NcpError(f"job {self.id} is {self.state}: call wait() first, or factors() for its last checkpoint")
        if self.record["result"] is None:
            raise JobFailed(self.record)
        if self._result is None:
            axes = self._connection.get(f"{self._path}/axes") or None
            factors, bands = self._stored()
            self._result = Result(self.record, factors, axes, bands, self.diagnostics)
        return self._result

    def _summary(self) -> str:
        return self.state


def file_format(path: "str | PathLike[str]", mode: int | None = None) -> str:
    """Return the format for a file by its extension. Tables of all modes are put into an archive."""
    ending = PurePath(path).suffix.removeprefix(".").lower()
    if mode is None and ending in ("csv", "npy"):
        raise ValueError(f"{path}: {ending} holds one mode; give a mode, or a file that ends in .npz or .zip")
    found = {"": "npz" if mode is None else "npy", "zip": "csv"}.get(ending, ending)
    if found not in (*FORMATS, "npy"):
        raise ValueError(f"{path}: there is no format {ending}; give a file that ends in .npz, .mat, .zip or .nc")
    return found
